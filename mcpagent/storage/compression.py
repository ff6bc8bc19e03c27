"""Bytes of plain, `.gz` and `.zst` files. A truncated file is an error, never a short read; nor does a small
file become a huge one: what expands too far is an error too."""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

import zstandard

from mcpagent.errors import UserError

_BUFFER_BYTES = 1 << 17
_ZSTD_INPUT_BYTES = 1 << 10  # a decompressed piece has at most 32 MiB: four bytes may stand for 128 KiB
_ZSTD_LEVEL = 10
EXPANSION_ENV, LINE_ENV = "MCPAGENT_MAX_EXPANSION", "MCPAGENT_MAX_LINE_MB"
_EXPANSION = 300  # times; datasets of one question reworded reach about 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
_LINE_MB = 64
# What decompression raises for damaged input.
DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


def is_compressed(path: Path) -> bool:
    return path.suffix in (".gz", ".zst")


def plain_suffix(path: Path) -> str:
    """`.jsonl` of `train.jsonl.zst`."""
    return Path(path.stem).suffix if is_compressed(path) else path.suffix


def open_bytes(path: Path) -> io.BufferedReader:
    """The decompressed bytes of `path`. Raises OSError here, and `DAMAGE` and UserError while reading."""
    if not is_compressed(path):
        return path.open("rb")
    packed = path.open("rb")
    plain = gzip.GzipFile(fileobj=packed, mode="rb") if path.suffix == ".gz" else _ZstdReader(packed)
    return io.BufferedReader(_Bounded(path, packed, plain), buffer_size=_BUFFER_BYTES)


def max_line_bytes() -> int:
    """The longest line, or record of an array, that is read. Raises UserError."""
    return _setting(LINE_ENV, _LINE_MB) << 20


def _setting(name: str, default: int) -> int:
    text = os.environ.get(name, "").strip()
    if not text:
        return default
    if not text.isdecimal() or not 1 <= int(text[:9]) <= 10**6:
        raise UserError(f"{name} is {text!r}", where="environment", remedy="set it to a whole number from 1")
    return int(text)


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


class _Bounded(io.RawIOBase):
    """`plain`, which decompresses `packed`, as long as it does not expand beyond measure: a few kilobytes may
    stand for gigabytes, which nobody meant to read, to hold or to write to a temporary file."""

    def __init__(self, path: Path, packed: BinaryIO, plain: io.BufferedIOBase | io.RawIOBase) -> None:
        self._path, self._packed, self._plain = path, packed, plain
        self._packed_bytes = os.fstat(packed.fileno()).st_size
        self._times = _setting(EXPANSION_ENV, _EXPANSION)
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        count = self._plain.readinto(buffer) or 0
        self._given += count
        if self._given > max(_ALWAYS_ALLOWED_BYTES, self._times * self._packed_bytes):
            raise UserError(
                f"expands to more than {self._times} times its {self._packed_bytes} bytes",
                where=str(self._path),
                remedy=f"if that is meant, expand it yourself, or set {EXPANSION_ENV} to a larger number",
            )
        return count

    def close(self) -> None:
        self._plain.close()
        self._packed.close()
        super().close()


class _ZstdReader(io.RawIOBase):
    """zstandard's own stream reader ends quietly where a frame was cut off; this one raises EOFError."""

    def __init__(self, packed: BinaryIO) -> None:
        self._file = packed
        self._frame = zstandard.ZstdDecompressor().decompressobj()
        self._is_inside = False
        self._pending = memoryview(b"")

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
        self._pending = memoryview(self._frame.decompress(chunk))
        return True
