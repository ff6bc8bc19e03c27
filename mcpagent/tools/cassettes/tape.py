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

import hashlib
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import ValidationError

from mcpagent.core.records import JsonObject, Record, shown_value
from mcpagent.core.redact import SECRETS, redact
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file, remove_leftovers, write_text
from mcpagent.tools.questions import ASKED_META_KEY
from mcpagent.tools.wire import cut_middle


class Miss(StrEnum):
    """Why the tape had no answer."""

    NEVER_MADE = "never_made"  # no recorded call has these arguments
    OTHER_STATE = "other_state"  # the call was made, but after other calls that write
    SCHEMA_CHANGED = "schema_changed"  # it was recorded when the tool took or gave something else
    VERSION_CHANGED = "version_changed"  # it was recorded from another version of the server
    CUT_SHORTER = "cut_to_another_limit"  # what was recorded was cut to another limit of characters


@dataclass
class CassetteCounts:
    """Calls by what became of them. `restored` calls went to a server to make up for replayed ones; `refused`
    ones got no answer, from the tape or from a server; `volatile` answers differ from the one on the tape."""

    mode: str
    replayed: int = 0
    live: int = 0
    recorded: int = 0
    volatile: int = 0
    restored: int = 0
    refused: int = 0
    misses: Counter[Miss] = field(default_factory=Counter)

    def as_json(self) -> JsonObject:
        """`hit_rate` is None if nothing was looked up, as in record mode."""
        looked_up = self.replayed + self.misses.total()
        return {
            "mode": self.mode,
            "hit_rate": self.replayed / looked_up if looked_up else None,
            "calls_saved": self.replayed - self.restored,
            "replayed": self.replayed,
            "live": self.live,
            "recorded": self.recorded,
            "volatile": self.volatile,
            "restored": self.restored,
            "refused": self.refused,
            "misses": {reason.value: count for reason, count in sorted(self.misses.items())},
        }


UNCHANGED = "0"  # `CallKey.after` if no call of the session has changed the server


def canonical(value: Any) -> bytes:
    """One text for equal JSON values. Raises ValueError for a number that JSON does not have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def content_digest(data: bytes) -> str:
    """64 bits in hex."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def schema_hash(spec: ToolSpec) -> str:
    """Of what a tool takes and gives; another description does not change its answers."""
    return content_digest(canonical([spec.input_schema, spec.output_schema]))


@dataclass(frozen=True)
class CallKey:
    """The content address of an answer.

    `after` stands for the session's earlier calls on that server that may have changed it (`CallHistory`).
    `call_id` and `state_id` are hex digests: of the call, and of everything else that its answer depends on.
    """

    server: str
    version: str
    tool: str
    schema: str
    arguments: JsonObject
    after: str = UNCHANGED

    @cached_property
    def call_id(self) -> str:
        """A digest of the server, the tool and the arguments."""
        return content_digest(canonical([self.server, self.tool, self.arguments]))

    @cached_property
    def state_id(self) -> str:
        """A digest of what else decides the answer: version, schema, earlier writes."""
        return content_digest(canonical([self.version, self.schema, self.after]))

    @property
    def id(self) -> str:
        """The key as one text."""
        return f"{self.call_id}-{self.state_id}"


@dataclass
class CallHistory:
    """The calls of one session on one server that were not read-only, with what each of them answered.

    The answers are part of it: if a server makes up an id, the calls after it belong to that id and to no
    other, so that an attempt never gets answers from two different pasts.
    """

    count: int = 0
    chain: str = ""

    @property
    def after(self) -> str:
        """`COUNT-DIGEST`, or `UNCHANGED`."""
        return f"{self.count}-{self.chain}" if self.count else UNCHANGED

    def push(self, tool: str, arguments: JsonObject, answer: str) -> None:
        """`answer` is the digest of what the call answered."""
        self.chain = content_digest(canonical([self.chain, tool, arguments, answer]))
        self.count += 1


# A server answers a wrong call with one of these, and would again; every other failure says nothing about it.
_ANSWERS = frozenset({None, FailureKind.TOOL_ERROR, FailureKind.INVALID_ARGUMENTS})


class RecordedAnswer(Record):
    """The part of a `ToolResult` that is the same whenever the call is made in the same state.

    `limit_chars` is the limit that `content` was cut to; 0 if it is whole. Hidden `_meta` is left out: a
    nonce is evidence that a server was asked, which a replayed result must not show.
    """

    content: str
    structured: JsonObject | None = None
    is_error: bool = False
    failure: FailureKind | None = None
    truncated_chars: int = 0
    limit_chars: int = 0
    asked: list[JsonObject] = []  # what the server asked during the call, and how it was answered

    @classmethod
    def of(cls, result: ToolResult, *, limit_chars: int, secrets: Mapping[str, str]) -> RecordedAnswer | None:
        """Return None if the result is not an answer of the tool."""
        if result.failure not in _ANSWERS:
            return None
        return cls(
            content=redact(result.content, secrets),
            structured=redact(result.structured, secrets),
            is_error=result.is_error,
            failure=result.failure,
            truncated_chars=result.truncated_chars,
            limit_chars=limit_chars if result.truncated_chars else 0,
            asked=redact(result.meta.get(ASKED_META_KEY, []), secrets),
        )

    @property
    def digest(self) -> str:
        """A digest of the whole answer."""
        return content_digest(canonical(self.model_dump(mode="json", exclude={"asked"})))

    def within(self, limit_chars: int) -> RecordedAnswer | None:
        """As a server would have answered under another limit; None if what that needs was cut off."""
        if self.truncated_chars:
            return self if self.limit_chars == limit_chars else None
        content, cut = cut_middle(self.content, limit_chars)
        if not cut:
            return self
        return self.model_copy(
            update={"content": content, "truncated_chars": cut, "limit_chars": limit_chars}
        )

    def result(self, call: ToolCall) -> ToolResult:
        """Return the answer to `call`, whose server and tool are resolved."""
        return ToolResult(
            call_id=call.id,
            server=call.server,
            tool=call.tool,
            content=SECRETS.text(self.content),  # a tape may come from elsewhere
            structured=SECRETS.value(self.structured),
            is_error=self.is_error,
            failure=self.failure,
            truncated_chars=self.truncated_chars,
            from_cassette=True,
            meta={ASKED_META_KEY: SECRETS.value(self.asked)} if self.asked else {},
        )


HEAD_BYTES = len('{"call": "0123456789abcdef-0123456789abcdef", "sum": "0123456789abcdef", ')

_HEAD = re.compile(rb'\{"call": "([0-9a-f]{16})-([0-9a-f]{16})", "sum": "([0-9a-f]{16})", ')


@dataclass(frozen=True)
class Recorded:
    """An answer and what it is an answer to."""

    key: CallKey
    answer: RecordedAnswer


def encode(recorded: Recorded) -> bytes:
    """Return the line, with its newline. The same record gives the same bytes."""
    key = asdict(recorded.key)
    key["arguments"] = json.loads(json.dumps(key["arguments"], sort_keys=True))
    answer = recorded.answer.model_dump(mode="json", exclude_defaults=True)
    fields = {name: key[name] for name in ("server", "tool", "arguments", "after", "version", "schema")}
    # What `wire_fault` would refuse is never recorded: there is no lone surrogate and no NaN here.
    body = json.dumps({**fields, "answer": answer}, ensure_ascii=False, allow_nan=False)[1:].encode()
    ids = recorded.key.id
    return f'{{"call": "{ids}", "sum": "{_sum(ids.encode(), body)}", '.encode() + body + b"\n"


def ids_of(line: bytes, *, where: str) -> tuple[bytes, bytes]:
    """`call_id` and `state_id` of a whole line, as bytes. Raises UserError if it is not as it was written."""
    head = _HEAD.match(line)
    if head is None:
        raise _damaged(where, f"is not a recorded call: {shown_value(line[:60].decode('utf-8', 'replace'))}")
    if head[3].decode() != _sum(line[10:43], line[HEAD_BYTES:-1]):
        raise _damaged(where, "does not match its checksum: it was edited or damaged after its recording")
    return bytes.fromhex(head[1].decode()), bytes.fromhex(head[2].decode())


def decode(line: bytes, *, where: str) -> Recorded:
    """Return what `encode` was given. Raises UserError for a line that another version wrote."""
    try:
        fields = json.loads(line)
        del fields["call"], fields["sum"]
        answer = RecordedAnswer.model_validate(fields.pop("answer"))
        return Recorded(CallKey(**fields), answer)
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise _damaged(where, f"cannot be read: {reason}") from None


def _sum(ids: bytes, body: bytes) -> str:
    return content_digest(ids + body)


def _damaged(where: str, message: str) -> UserError:
    return UserError(
        f"the line {message}", where=where, remedy="delete the line, so that the call is recorded again"
    )


CALLS_NAME = "calls.jsonl"
CATALOG_NAME = "catalog.json"

_LOCK_NAME = ".lock"
_SORTED_BYTES = 240  # of a line, after its head: server, tool and the beginning of the arguments
_SPAN_BITS = 32  # an offset and a length share one integer


class TapeCatalog(Record):
    """The tools of a recording in the order of their offer, and the versions of their servers."""

    schema_version: int = 1
    versions: dict[str, str] = {}
    tools: tuple[ToolSpec, ...]


class StoredBy(StrEnum):
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
        self._lock = FileLock(folder / _LOCK_NAME, preserve_lock_file=True)
        self._fd: int | None = None
        self._end = 0  # bytes of the file that are indexed: whole lines
        self._lines = 0
        self._spans: dict[bytes, int] = {}
        self._latest: dict[bytes, int] = {}  # by `call_id` alone: the last line about the call in any state
        self._has_written = False
        if writable:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        elif not self._calls.is_file():
            raise UserError(
                f"there is no cassette at {folder}", remedy="record one: --set tools.cassette_mode=record"
            )
        self._refresh()

    def __len__(self) -> int:
        return len(self._spans)

    @property
    def catalog(self) -> TapeCatalog | None:
        """None if nothing was recorded yet."""
        path = self.folder / CATALOG_NAME
        try:
            return TapeCatalog.model_validate_json(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            return None
        except (ValidationError, UnicodeDecodeError) as error:
            first = str(error).partition("\n")[0]
            raise UserError(
                f"is not the catalog of a cassette: {first}", where=str(path), remedy="delete the file"
            ) from None

    def pin(self, catalog: TapeCatalog) -> None:
        """Make this the catalog of the tape."""
        with self._locked():
            if self.catalog != catalog:
                write_text(self.folder / CATALOG_NAME, catalog.model_dump_json(indent=1) + "\n")

    def find(self, key: CallKey) -> RecordedAnswer | None:
        """Return the recorded answer, if there is one."""
        span = self._spans.get(bytes.fromhex(key.call_id + key.state_id))
        return None if span is None else self._read(span).answer

    def nearest(self, key: CallKey) -> CallKey | None:
        """Return the last recorded key of the same call, in whatever state; None if the call was never
        made."""
        span = self._latest.get(bytes.fromhex(key.call_id))
        return None if span is None else self._read(span).key

    def catch_up(self) -> None:
        """Learn what other processes have recorded since."""
        with self._locked():
            self._refresh()

    def add(self, key: CallKey, answer: RecordedAnswer, *, replace: bool) -> StoredBy:
        """Record an answer. Where the tape has another one for this key, `replace` decides which stays."""
        with self._locked():
            self._refresh()
            recorded = self.find(key)
            if recorded == answer:
                return StoredBy.SAME
            if recorded is not None and not replace:
                return StoredBy.KEPT
            self._append(encode(Recorded(key, answer)))
        return StoredBy.NEW if recorded is None else StoredBy.REPLACED

    def close(self) -> None:
        """Sort the tape and drop replaced answers, if this process has written to it. Idempotent."""
        if self._has_written:
            with self._locked():
                self._refresh()
                self._tidy()
            self._has_written = False
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; the lock ends with the process that holds it."""
        with _writing(self.folder):
            self._lock.acquire(poll_interval=0.005)
        try:
            yield
        finally:
            self._lock.release()

    def _refresh(self) -> None:
        """Index the lines that are new; all of them if another process has put a sorted file in place."""
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
        """From where the index ends; an unfinished last line is not one."""
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
