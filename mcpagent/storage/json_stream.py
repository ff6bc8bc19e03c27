"""JSON objects out of plain, `.gz` and `.zst` files, one at a time, each with the line that it starts at."""

from __future__ import annotations

import codecs
import gzip
import io
import json
import os
import re
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import zstandard

from mcpagent.core.records import JsonObject, short_repr
from mcpagent.core.values import JSON_DECODER
from mcpagent.errors import UserError

_COMPRESSED = (".gz", ".zst")
_BUFFER_BYTES = 1 << 17
_ZSTD_INPUT_BYTES = 1 << 10  # a decompressed piece has at most 32 MiB: four bytes may stand for 128 KiB
_ZSTD_LEVEL = 10
_EXPANSION = 300  # times; datasets of one question reworded reach about 100
_ALWAYS_ALLOWED_BYTES = 64 << 20
_LINE_BYTES = 64 << 20
_ARRAY_BYTES = 1 << 30
# What decompression raises for damaged input.
_DAMAGE = (EOFError, gzip.BadGzipFile, zlib.error, zstandard.ZstdError)


def plain_suffix(path: Path) -> str:
    """`.jsonl` of `train.jsonl.zst`."""
    return Path(path.stem).suffix if path.suffix in _COMPRESSED else path.suffix


def open_bytes(path: Path) -> io.BufferedReader:
    """Return the decompressed bytes of `path`. Raises what `reading` turns into a UserError."""
    if path.suffix not in _COMPRESSED:
        return path.open("rb")
    return io.BufferedReader(_Bounded(path, path.open("rb")), buffer_size=_BUFFER_BYTES)


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


def compressed(data: bytes, *, suffix: str) -> bytes:
    """Return `data` as `suffix` has it: what a file of that name may be appended."""
    if suffix == ".gz":
        return gzip.compress(data, mtime=0)
    if suffix == ".zst":
        return zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compress(data)
    return data


class _Bounded(io.RawIOBase):
    """A compressed file, decompressed as long as it does not expand beyond measure: a few kilobytes may stand
    for gigabytes, more than anyone means to read, to hold or to write to a temporary file."""

    def __init__(self, path: Path, packed: BinaryIO) -> None:
        self._path, self._packed = path, packed
        self._packed_bytes = os.fstat(packed.fileno()).st_size
        self._pieces = _gzip_pieces(packed) if path.suffix == ".gz" else _zstd_pieces(packed)
        self._pending = memoryview(b"")
        self._given = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: memoryview) -> int:  # pyright: ignore[reportIncompatibleMethodOverride]
        while not self._pending and (piece := next(self._pieces, None)) is not None:
            self._pending = memoryview(piece)
        count = min(len(buffer), len(self._pending))
        buffer[:count] = self._pending[:count]
        self._pending = self._pending[count:]
        self._given += count
        if self._given > max(_ALWAYS_ALLOWED_BYTES, _EXPANSION * self._packed_bytes):
            raise UserError(
                f"expands to more than {_EXPANSION} times its {self._packed_bytes} bytes",
                where=str(self._path),
                remedy="if that is meant, expand it yourself",
            )
        return count

    def close(self) -> None:
        self._packed.close()
        super().close()


def _gzip_pieces(packed: BinaryIO) -> Iterator[bytes]:
    with gzip.GzipFile(fileobj=packed, mode="rb") as plain:
        while piece := plain.read1(_BUFFER_BYTES):
            yield piece


def _zstd_pieces(packed: BinaryIO) -> Iterator[bytes]:
    """Decompress one frame after the other. Raises EOFError if one was cut off, which zstandard's own reader
    takes for its end."""
    chunk = packed.read(_ZSTD_INPUT_BYTES)
    while chunk:
        frame = zstandard.ZstdDecompressor().decompressobj()
        while not frame.eof:
            if not chunk:
                raise EOFError("the zstd frame ends before its end marker")
            yield frame.decompress(chunk)
            chunk = frame.unused_data or packed.read(_ZSTD_INPUT_BYTES)


_SPACES = re.compile(r"[ \t\r\n]*+")


class Located(NamedTuple):
    """A line, and the object that begins on it or what is wrong with it."""

    line: int
    record: JsonObject | UserError


def read_records(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """Yield (line, object) for each object of a JSONL file, with one line in memory, or of a JSON array,
    whose text is read whole.

    The first character decides which of the two it is, not the name; `.gz` and `.zst` are decompressed.
    Raises UserError for a missing, damaged or malformed file, and for anything in it that is not an object.
    """
    with reading(path), open_bytes(path) as stream:
        for located in locate_records(stream, path):
            if isinstance(located.record, UserError):
                raise located.record
            yield located.line, located.record


def locate_records(
    stream: io.BufferedReader, path: Path, *, list_field: str | None = None, is_lines: bool = False
) -> Iterator[Located]:
    """Every record of the decompressed `stream`, which errors call `path`. A broken line of JSONL is an item
    and not the end; a broken array, and a line or record that is too long, raise UserError. A record that is
    an array is the object with it as `list_field`, if that is given. `is_lines`: a line that begins with an
    array is a record, and not the array of all."""
    first, line = _first_character(stream)
    if first == b"[" and not is_lines:
        text = bytearray(first)
        while more := stream.read(_BUFFER_BYTES):
            text += more
            if len(text) > _ARRAY_BYTES:
                raise _too_long("array", _ARRAY_BYTES, where=f"{path}:{line}")
        yield from _array(text, path, line=line, list_field=list_field)
        return
    raw = first + stream.readline(_LINE_BYTES)
    while raw:
        if len(raw) >= _LINE_BYTES:
            raise _too_long("line", _LINE_BYTES, where=f"{path}:{line}")
        stripped = raw.strip()
        if stripped:
            try:
                record = decode_line(stripped, path=path, line=line, list_field=list_field)
            except UserError as error:
                record = error
            yield Located(line, record)
        line += 1 + _skip_spaces(stream)  # millions of empty lines cost nothing
        raw = stream.readline(_LINE_BYTES)


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turns what the file system and decompression raise inside into a UserError."""
    try:
        yield
    except FileNotFoundError:
        raise UserError(
            "there is no such file", where=str(path), remedy="check the path, or make one: mcpagent gen-data"
        ) from None
    except IsADirectoryError:
        raise UserError("is a folder", where=str(path), remedy="name a .jsonl or .json file in it") from None
    except _DAMAGE as error:
        raise UserError(
            f"the compressed file is damaged or cut off: {error}",
            where=str(path),
            remedy="copy or make it again",
        ) from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=str(path)) from None


def decode_json(raw: bytes, *, path: Path, line: int = 1, remedy: str = "fix or delete that line") -> Any:
    """Return the value of a JSON text that begins on `line` of a file. Raises UserError with the line of what
    is wrong with it."""
    where, problem = f"{path}:{line}", ""
    try:
        return JSON_DECODER.decode(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        problem, remedy = f"is not UTF-8 text (byte {error.start})", "save it as UTF-8"
    except RecursionError:
        problem = "the value is nested too deeply"
    except json.JSONDecodeError as error:
        where = f"{path}:{line + error.lineno - 1}"
        told = f"{error.msg.removesuffix(' at')} at column {error.colno}"
        problem = f"broken JSON, {told}: {short_repr(error.doc.strip())}"
    except ValueError as error:  # NaN and its like, and whole numbers past Python's limit of digits
        problem = f"broken JSON: {error}"
    raise UserError(problem, where=where, remedy=remedy)


def decode_line(raw: bytes, *, path: Path, line: int, list_field: str | None = None) -> JsonObject:
    """Return the object on one line of a JSONL file; `list_field` as in `locate_records`. Raises
    UserError."""
    return _object(decode_json(raw, path=path, line=line), f"{path}:{line}", list_field)


def _too_long(what: str, longest: int, *, where: str) -> UserError:
    return UserError(
        f"the {what} is longer than {longest >> 20} MiB",
        where=where,
        remedy="write the records as JSONL, each on a line of its own",
    )


def _skip_spaces(stream: io.BufferedReader) -> int:
    """Pass over white space, in pieces and not by the byte; how many lines it was."""
    lines = 0
    while ahead := stream.peek(1):
        spaces = len(ahead) - len(ahead.lstrip())
        lines += ahead.count(b"\n", 0, spaces)
        stream.read(spaces)
        if spaces < len(ahead):
            break
    return lines


def _first_character(stream: io.BufferedReader) -> tuple[bytes, int]:
    """The first byte that is neither byte order mark nor space, and its line. An array may stand on a single
    line of any length, so no line is read before this is known."""
    if stream.peek(1)[:1] == codecs.BOM_UTF8[:1]:
        mark = stream.read(len(codecs.BOM_UTF8))
        if mark != codecs.BOM_UTF8:
            return mark, 1
    line = 1 + _skip_spaces(stream)
    return stream.read(1), line


def _object(value: Any, where: str, list_field: str | None) -> JsonObject:
    if isinstance(value, list) and list_field is not None:
        return {list_field: value}
    if not isinstance(value, dict):
        raise UserError(
            f"a record is a JSON object, but this is {short_repr(value)}",
            where=where,
            remedy="fix or delete it",
        )
    return value


def _array(raw: bytearray, path: Path, *, line: int, list_field: str | None) -> Iterator[Located]:
    """Decode the objects of a JSON array one after another; its opening bracket is on `line`."""
    position = counted = 0
    text, problem = "", None
    try:
        text = raw.decode("utf-8")
        position = _next_place(text, 1)
        is_next = text[position] != "]"
        while is_next:
            line, counted = line + text.count("\n", counted, position), position
            record, end = JSON_DECODER.raw_decode(text, position)
            yield Located(line, _object(record, f"{path}:{line}", list_field))
            position = _next_place(text, end)
            if is_next := text[position] == ",":
                position = _next_place(text, position + 1)
        if text[position] != "]":
            problem = f"broken JSON, expected a comma or ] but found {short_repr(text[position:][:40])}"
        elif rest := text[position + 1 :].strip(" \t\r\n"):
            position = text.index(rest[0], position + 1)
            problem = f"there is more after the array: {short_repr(rest[:40])}"
    except IndexError:
        position, problem = len(text), "the array has no end"
    except UnicodeDecodeError as error:
        text, position = raw[: error.start].decode("utf-8"), error.start
        problem = "is not UTF-8 text"
    except json.JSONDecodeError as error:
        position = error.pos
        piece = text[position : position + 40]
        problem = f"broken JSON, {error.msg}: {short_repr(piece)}" if piece else "the array has no end"
    except ValueError as error:  # NaN and its like, and whole numbers past Python's limit of digits
        problem = f"broken JSON: {error}"
    except RecursionError:
        problem = "the value is nested too deeply"
    if problem is not None:
        line += text.count("\n", counted, position)
        raise UserError(problem, where=f"{path}:{line}", remedy="fix the file there")


def _next_place(text: str, position: int) -> int:
    """Return the place of the next character that is no space, or the length of the text."""
    match = _SPACES.match(text, position)
    assert match is not None  # it matches nothing too
    return match.end()
