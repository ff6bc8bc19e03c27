"""The tape: a folder of recorded answers that several processes may write at once.

    catalog.json   the tools and server versions of the recording, so that a replay needs no server
    calls.jsonl    one line a call, sorted when its writer closes it, so that two recordings can be compared
    .lock          held while one process writes

Why one file under a lock, and not a file a call: a hundred thousand small files are slow to copy and to list
on the file systems of clusters, and nobody can read them. Lines are only appended, whole and under the lock,
so a killed writer leaves at most an unfinished last line, which the next writer removes. In memory a line is
its key, its offset and its length.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path

from pydantic import ValidationError

from mcpagent.core.records import Record
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file, remove_leftovers, write_text
from mcpagent.tools.cassette_answer import Answer
from mcpagent.tools.cassette_key import CallKey
from mcpagent.tools.cassette_line import HEAD_BYTES, Recorded, decode, encode, ids_of

CALLS_NAME = "calls.jsonl"
CATALOG_NAME = "catalog.json"

_LOCK_NAME = ".lock"
_SORTED_BYTES = 240  # of a line, after its head: server, tool and the beginning of the arguments
_SPAN_BITS = 32  # an offset and a length share one integer


class TapeCatalog(Record):
    """The tools of a recording in the order of their offer, and the versions of their servers."""

    schema_version: int = 1
    versions: dict[str, str] = {}
    harmless: tuple[str, ...] = ()  # of earlier tapes: tools that were taken to change nothing
    tools: tuple[ToolSpec, ...]


class Stored(StrEnum):
    """What `Tape.add` did."""

    NEW = "new"
    SAME = "same"  # the tape had this answer already
    REPLACED = "replaced"  # it had another one, which is gone
    KEPT = "kept"  # it has another one, which stays


class Tape:
    """Recorded answers under a folder. Raises UserError for a file that is damaged or was edited.

    A tape that is not `writable` must exist; nothing is written then, not even the lock.
    """

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.folder = folder
        self._calls = folder / CALLS_NAME
        self._writable = writable
        self._fd: int | None = None
        self._end = 0  # bytes of the file that are indexed: whole lines
        self._lines = 0
        self._spans: dict[bytes, int] = {}
        self._latest: dict[bytes, int] = {}  # by `call_id` alone: the last line about the call in any state
        self._has_written = False
        if writable:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
                self._lock_fd = os.open(folder / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o644)
        elif not self._calls.is_file():
            raise UserError(f"there is no cassette at {folder}", remedy="record one: --cassette-mode record")
        self._refresh()

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def catalog(self) -> TapeCatalog | None:
        """None where nothing was recorded yet."""
        path = self.folder / CATALOG_NAME
        try:
            return TapeCatalog.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValidationError, UnicodeDecodeError) as error:
            first = str(error).partition("\n")[0]
            raise UserError(
                f"is no catalog of a cassette: {first}", where=str(path), remedy="delete the file"
            ) from None

    def pin(self, catalog: TapeCatalog) -> None:
        """Make this the catalog of the tape."""
        with self._locked():
            if self.catalog != catalog:
                write_text(self.folder / CATALOG_NAME, catalog.model_dump_json(indent=1) + "\n")

    def find(self, key: CallKey) -> Answer | None:
        """The recorded answer, if there is one."""
        span = self._spans.get(bytes.fromhex(key.call_id + key.state_id))
        return None if span is None else self._read(span).answer

    def nearest(self, key: CallKey) -> CallKey | None:
        """The last recorded key of the same call, in whatever state; None where the call was never made."""
        span = self._latest.get(bytes.fromhex(key.call_id))
        return None if span is None else self._read(span).key

    def catch_up(self) -> None:
        """Learn what other processes have recorded since."""
        with self._locked():
            self._refresh()

    def add(self, key: CallKey, answer: Answer, *, replace: bool) -> Stored:
        """Record an answer. Where the tape has another one for this key, `replace` decides which stays."""
        with self._locked():
            self._refresh()
            known = self.find(key)
            if known == answer:
                return Stored.SAME
            if known is not None and not replace:
                return Stored.KEPT
            self._append(encode(Recorded(key, answer)))
        return Stored.NEW if known is None else Stored.REPLACED

    def close(self) -> None:
        """Sort the tape and drop replaced answers, where this process has written to it. Idempotent."""
        if self._has_written:
            with self._locked():
                self._refresh()
                self._tidy()
            self._has_written = False
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
        if self._writable:
            self._writable = False
            os.close(self._lock_fd)

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; the lock ends with the process that holds it."""
        with _writing(self.folder):
            fcntl.flock(self._lock_fd, fcntl.LOCK_EX)
        try:
            yield
        finally:
            fcntl.flock(self._lock_fd, fcntl.LOCK_UN)

    def _refresh(self) -> None:
        """Index the lines that are new; all of them where another process has put a sorted file in place."""
        try:
            now = self._calls.stat()
        except FileNotFoundError:
            return
        if self._fd is None or now.st_size < self._end or not os.path.samestat(os.fstat(self._fd), now):
            self._reopen()
        if now.st_size > self._end:
            self._index()

    def _reopen(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
        flags = os.O_RDWR | os.O_APPEND if self._writable else os.O_RDONLY
        self._fd = os.open(self._calls, flags)
        self._end = self._lines = 0
        self._spans.clear()
        self._latest.clear()

    def _index(self) -> None:
        """From where the index ends; an unfinished last line is none."""
        with self._calls.open("rb") as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._lines += 1
                self._note(ids_of(line, where=f"{self._calls}:{self._lines}"), len(line))

    def _note(self, ids: tuple[bytes, bytes], length: int) -> None:
        call, state = ids
        span = self._end << _SPAN_BITS | length
        self._spans[call + state] = self._latest[call] = span
        self._end += length

    def _read(self, span: int) -> Recorded:
        return decode(self._bytes(span), where=str(self._calls))

    def _append(self, line: bytes) -> None:
        with _writing(self.folder):
            if self._fd is None:
                self._calls.touch()
                self._reopen()
            assert self._fd is not None
            if os.fstat(self._fd).st_size > self._end:
                os.ftruncate(
                    self._fd, self._end
                )  # what a killed writer began; the lock is ours, so it is dead
            left = memoryview(line)
            while left:
                left = left[os.write(self._fd, left) :]
        self._has_written = True
        self._lines += 1
        self._note(ids_of(line, where=str(self._calls)), len(line))

    def _tidy(self) -> None:
        """Needs the lock."""
        remove_leftovers(self.folder)
        spans = sorted(self._spans.values(), key=self._order)
        with _writing(self.folder), atomic_file(self._calls) as path, path.open("wb") as file:
            for span in spans:
                file.write(self._bytes(span))

    def _order(self, span: int) -> bytes:
        """By server, tool and arguments, as far as they fit; equal ones by key."""
        line = self._bytes(span, at_most=HEAD_BYTES + _SORTED_BYTES)
        return line[HEAD_BYTES:] + line[:HEAD_BYTES]

    def _bytes(self, span: int, *, at_most: int = 1 << _SPAN_BITS) -> bytes:
        assert self._fd is not None
        offset, length = span >> _SPAN_BITS, span & (1 << _SPAN_BITS) - 1
        return os.pread(self._fd, min(length, at_most), offset)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the cassette cannot be written: {error.strerror or error}", where=str(folder)
        ) from error
