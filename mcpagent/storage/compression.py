"""Bytes of plain, `.gz` and `.zst` files. A truncated file is an error, never a short read."""

from __future__ import annotations

import gzip
import io
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

_BUFFER_BYTES = 1 << 17
_ZSTD_INPUT_BYTES = 1 << 10  # a decompressed piece may be a thousand times as long
_ZSTD_LEVEL = 10
# What decompression raises for damaged input.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


def is_compressed(path: Path) -> bool:
    return path.suffix in (".gz", ".zst")


def plain_suffix(path: Path) -> str:
    """`.jsonl` of `train.jsonl.zst`."""
    return Path(path.stem).suffix if is_compressed(path) else path.suffix


def open_bytes(path: Path) -> BinaryIO:
    """The decompressed bytes of `path`. Raises OSError here and `DAMAGE` while reading."""
    if path.suffix == ".gz":
        return gzip.open(path, "rb")  # pyright: ignore[reportReturnType]
    if path.suffix == ".zst":
        return io.BufferedReader(_ZstdReader(path), buffer_size=_BUFFER_BYTES)
    return path.open("rb")


@contextmanager
def compressed_writer(path: Path, *, suffix: str) -> Iterator[BinaryIO]:
    """A file that is compressed as `suffix` says; the same bytes in give the same bytes out."""
    with path.open("wb") as raw:
        if suffix == ".gz":
            # No name and no time in the header, or the bytes would differ from run to run.
            with gzip.GzipFile(filename="", mode="wb", fileobj=raw, mtime=0) as stream:
                yield stream  # pyright: ignore[reportReturnType]
        elif suffix == ".zst":
            compressor = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True)
            with compressor.stream_writer(raw, closefd=False) as stream:
                yield stream  # pyright: ignore[reportReturnType]
        else:
            yield raw


class _ZstdReader(io.RawIOBase):
    """zstandard's own stream reader ends quietly where a frame was cut off; this one raises EOFError."""

    def __init__(self, path: Path) -> None:
        self._file = path.open("rb")
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._is_inside = False
        self._pending = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._pending:
            if not self._fill():
                return 0
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        return count

    def close(self) -> None:
        self._file.close()
        super().close()

    def _fill(self) -> bool:
        """Decompress a little more; False at the end of the last whole frame."""
        if self._frame.eof:
            rest = self._frame.unused_data
            self._frame = zstandard.ZstdDecompressor().decompressobj()
            self._is_inside = False
        else:
            rest = b""
        chunk = rest or self._file.read(_ZSTD_INPUT_BYTES)
        if not chunk:
            if self._is_inside:
                raise EOFError("the zstd frame ends before its end marker")
            return False
        self._is_inside = True
        self._pending = self._frame.decompress(chunk)
        return True
