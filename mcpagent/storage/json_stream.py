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
from typing import Any, BinaryIO, NamedTuple, NoReturn

import zstandard

from mcpagent.core.records import JsonObject, shown_value
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
    """Whether the name says that the file is compressed with gzip or Zstandard."""
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


Peekable = io.BufferedReader | io.BufferedRandom
_CHUNK_BYTES = 1 << 16
_SPACES = re.compile(r"[ \t\r\n]*+")
# A syntax error this near to the end of what was read may only be a value that is not whole yet
# ("tru", "\u00"); further inside it is real, and the rest of the file need not be read to say so.
_UNFINISHED_CHARS = 16


class Located(NamedTuple):
    """What bytes `start` to `end` of a decompressed file hold: an object, or what is wrong with a line."""

    line: int
    start: int
    end: int
    record: JsonObject | UserError


def read_records(path: Path) -> Iterator[tuple[int, JsonObject]]:
    """(line, object) for each object of a JSONL file or of a JSON array, in bounded memory.

    The first character decides which of the two it is, not the name; `.gz` and `.zst` are decompressed.
    Raises UserError for a missing, damaged or malformed file, and for anything in it that is not an object.
    """
    with reading(path), open_bytes(path) as stream:
        for located in locate_records(stream, path):
            if isinstance(located.record, UserError):
                raise located.record
            yield located.line, located.record


def locate_records(stream: Peekable, path: Path) -> Iterator[Located]:
    """Every record of the decompressed `stream`, which errors call `path`. A broken line of JSONL is an item
    and not the end; a broken array, and a line or record that is too long, raise UserError."""
    first, line, start = _first_character(stream)
    if first == b"[":
        yield from _ArrayReader(stream, path, line=line, offset=start + 1).items()
        return
    longest = max_line_bytes()
    raw = first + stream.readline(longest)
    while raw:
        if len(raw) >= longest:
            raise _too_long("line", longest, where=f"{path}:{line}")
        end = start + len(raw)
        stripped = raw.strip()
        if stripped:
            try:
                record = decode_line(stripped, path=path, line=line)
            except UserError as error:
                record = error
            yield Located(line, start, end, record)
        lines, spaces = _skip_spaces(stream)  # millions of empty lines cost nothing
        raw = stream.readline(longest)
        line, start = line + 1 + lines, end + spaces


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
    except DAMAGE as error:
        raise UserError(
            f"the compressed file is damaged or cut off: {error}",
            where=str(path),
            remedy="copy or make it again",
        ) from None
    except OSError as error:
        raise UserError(f"cannot be read: {error.strerror or error}", where=str(path)) from None


def decode_line(raw: bytes, *, path: Path, line: int) -> JsonObject:
    """The object on one line of a JSONL file. Raises UserError."""
    where = f"{path}:{line}"
    try:
        value = _DECODER.decode(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"is not UTF-8 text (byte {error.start} of the line)", where=where, remedy="save it as UTF-8"
        ) from None
    except RecursionError:
        raise UserError(
            "the value is nested too deeply", where=where, remedy="fix or delete that line"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"broken JSON, {error.msg.removesuffix(' at')} at column {error.colno}: "
            f"{shown_value(error.doc.strip())}",
            where=where,
            remedy="fix or delete that line",
        ) from None
    except ValueError as error:  # NaN and its like, and whole numbers past Python's limit of digits
        raise UserError(f"broken JSON: {error}", where=where, remedy="fix or delete that line") from None
    return _object(value, where)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _too_long(what: str, longest: int, *, where: str) -> UserError:
    return UserError(
        f"the {what} is longer than {longest >> 20} MiB",
        where=where,
        remedy=f"if that is meant, set {LINE_ENV} to a larger number of MiB",
    )


def _skip_spaces(stream: Peekable) -> tuple[int, int]:
    """Pass over white space, in pieces and not by the byte; how many lines and bytes it was."""
    lines = passed = 0
    while ahead := stream.peek(1):
        spaces = len(ahead) - len(ahead.lstrip())
        lines += ahead.count(b"\n", 0, spaces)
        passed += len(stream.read(spaces))
        if spaces < len(ahead):
            break
    return lines, passed


def _first_character(stream: Peekable) -> tuple[bytes, int, int]:
    """The first byte that is neither byte order mark nor space, its line and its offset. An array may stand
    on a single line of any length, so no line is read before this is known."""
    line = offset = 0
    if stream.peek(1)[:1] == codecs.BOM_UTF8[:1]:
        mark = stream.read(len(codecs.BOM_UTF8))
        if mark != codecs.BOM_UTF8:
            return mark, 1, 0
        offset = len(mark)
    lines, spaces = _skip_spaces(stream)
    line, offset = line + lines, offset + spaces
    return stream.read(1), line + 1, offset


def _object(value: Any, where: str) -> JsonObject:
    if not isinstance(value, dict):
        raise UserError(
            f"a record is a JSON object, but this is {shown_value(value)}",
            where=where,
            remedy="fix or delete it",
        )
    return value


class _ArrayReader:
    """Objects of one JSON array, decoded from a window that moves over the file."""

    def __init__(self, stream: Peekable, path: Path, *, line: int, offset: int) -> None:
        """The opening bracket, at `line`, is already read; the stream stands at byte `offset`."""
        self._stream = stream
        self._path = path
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._window = ""
        self._position = 0
        self._line, self._offset = line, offset  # of the character at _counted
        self._counted = 0
        self._is_ended = False
        self._longest = max_line_bytes()

    def items(self) -> Iterator[Located]:
        mark = "," if self._peek() != "]" else "]"
        while mark == ",":
            if self._peek() != "{":
                self._fail(f"a record is a JSON object, but here stands {shown_value(self._excerpt())}")
            line, start = self._place()
            record = self._decode()
            yield Located(line, start, self._place()[1], record)
            mark = self._peek()
            if mark == ",":
                self._position += 1
        if mark != "]":
            self._fail(f"broken JSON, expected a comma or ] but found {shown_value(self._excerpt())}")
        self._position += 1
        if self._peek(required=False):
            self._fail(f"after the array stands {shown_value(self._excerpt())}")

    def _decode(self) -> JsonObject:
        chunk_bytes = _CHUNK_BYTES
        while True:
            try:
                value, end = _DECODER.raw_decode(self._window, self._position)
            except json.JSONDecodeError as error:
                is_open = (
                    error.msg.startswith("Unterminated string")
                    or error.pos >= len(self._window) - _UNFINISHED_CHARS
                )
                if self._is_ended or not is_open:
                    self._position = min(error.pos, len(self._window))
                    self._fail(f"broken JSON, {error.msg}: {shown_value(self._excerpt())}")
                if len(self._window) - self._position > self._longest:
                    where = f"{self._path}:{self._place()[0]}"
                    raise _too_long("record", self._longest, where=where) from None
                self._read(chunk_bytes)
                chunk_bytes *= 2  # a huge record is tried a few times only
            except ValueError as error:
                self._fail(f"broken JSON: {error}")
            except RecursionError:
                self._fail("the value is nested too deeply")
            else:
                self._position = end
                return value

    def _peek(self, *, required: bool = True) -> str:
        """The next character that is not a space; "" at the end of the file where that is allowed."""
        self._skip_space()
        if self._position < len(self._window):
            return self._window[self._position]
        if required:
            self._fail("the array has no end")
        return ""

    def _skip_space(self) -> None:
        while True:
            self._position = _SPACES.match(self._window, self._position).end()  # pyright: ignore
            if self._position < len(self._window) or self._is_ended:
                return
            self._read(_CHUNK_BYTES)

    def _place(self) -> tuple[int, int]:
        """Line and byte offset of the current character."""
        passed = self._window[self._counted : self._position]
        self._line += passed.count("\n")
        self._offset += len(passed.encode())
        self._counted = self._position
        return self._line, self._offset

    def _read(self, count: int) -> None:
        """Drop what lies behind and append `count` bytes."""
        self._place()
        self._window = self._window[self._position :]
        self._position = self._counted = 0
        raw = self._stream.read(count)
        self._is_ended = not raw
        try:
            self._window += self._decoder.decode(raw, final=self._is_ended)
        except UnicodeDecodeError:
            self._position = len(self._window)
            self._fail("is not UTF-8 text")

    def _excerpt(self) -> str:
        return self._window[self._position : self._position + 40]

    def _fail(self, message: str) -> NoReturn:
        where = f"{self._path}:{self._place()[0]}"
        raise UserError(message, where=where, remedy="fix the file there")
