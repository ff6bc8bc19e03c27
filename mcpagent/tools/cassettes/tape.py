"""The tape: a folder of recorded answers that several processes may write at once.

    catalog.json   the tools and server versions of the recording, so that a replay needs no server
    calls.jsonl    one line a call; of two lines for one key the later counts
    .lock          held while one process writes

Why one file under a lock, and not a file a call: a hundred thousand small files are slow to copy and to list
on the file systems of clusters, and hard to read. Lines are only appended, whole and under the lock,
so a killed writer leaves at most an unfinished last line, which the next writer removes. In memory a line is
its key and its offset.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import ValidationError

from mcpagent.core.records import JsonObject, Record, shown_value
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.atomic import write_text
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
            **vars(self),
            "hit_rate": self.replayed / looked_up if looked_up else None,
            "calls_saved": self.replayed - self.restored,
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
        """Return the key as one text."""
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

    @classmethod
    def of(cls, result: ToolResult, *, limit_chars: int) -> RecordedAnswer | None:
        """Return None if the result is not an answer of the tool."""
        if result.failure not in _ANSWERS:
            return None
        return cls(
            content=SECRETS.text(result.content),
            structured=SECRETS.value(result.structured),
            is_error=result.is_error,
            failure=result.failure,
            truncated_chars=result.truncated_chars,
            limit_chars=limit_chars if result.truncated_chars else 0,
        )

    @property
    def digest(self) -> str:
        """A digest of the whole answer."""
        return content_digest(canonical(self.model_dump(mode="json")))

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
        )


_HEAD = re.compile(rb'\{"call": "([0-9a-f]{16})-([0-9a-f]{16})", "sum": "([0-9a-f]{16})", ')


def encode(key: CallKey, answer: RecordedAnswer) -> bytes:
    """Return the line, with its newline. The same record gives the same bytes."""
    of_key = asdict(key)
    of_key["arguments"] = json.loads(json.dumps(key.arguments, sort_keys=True))
    of_answer = answer.model_dump(mode="json", exclude_defaults=True)
    fields = {name: of_key[name] for name in ("server", "tool", "arguments", "after", "version", "schema")}
    # What `wire_fault` would refuse is never recorded: there is no lone surrogate and no NaN here.
    body = json.dumps({**fields, "answer": of_answer}, ensure_ascii=False, allow_nan=False)[1:].encode()
    checksum = content_digest(key.id.encode() + body)
    return f'{{"call": "{key.id}", "sum": "{checksum}", '.encode() + body + b"\n"


def ids_of(line: bytes, *, where: str) -> tuple[bytes, bytes]:
    """`call_id` and `state_id` of a whole line, as bytes. Raises UserError if it is not as it was written."""
    head = _HEAD.match(line)
    if head is None:
        raise _damaged(where, f"is not a recorded call: {shown_value(line[:60].decode('utf-8', 'replace'))}")
    if head[3].decode() != content_digest(head[1] + b"-" + head[2] + line[head.end() : -1]):
        raise _damaged(where, "does not match its checksum: it was edited or damaged after its recording")
    return bytes.fromhex(head[1].decode()), bytes.fromhex(head[2].decode())


def decode(line: bytes, *, where: str) -> tuple[CallKey, RecordedAnswer]:
    """Return what `encode` was given. Raises UserError for a line that another version wrote."""
    try:
        fields = json.loads(line)
        del fields["call"], fields["sum"]
        answer = RecordedAnswer.model_validate(fields.pop("answer"))
        return CallKey(**fields), answer
    except (ValueError, KeyError, TypeError, ValidationError) as error:
        reason = str(error).partition("\n")[0]
        raise _damaged(where, f"cannot be read: {reason}") from None


def _damaged(where: str, message: str) -> UserError:
    return UserError(
        f"the line {message}", where=where, remedy="delete the line, so that the call is recorded again"
    )


CALLS_NAME = "calls.jsonl"
CATALOG_NAME = "catalog.json"

_LOCK_NAME = ".lock"


class TapeCatalog(Record):
    """The tools of a recording in the order of their offer, and the versions of their servers."""

    schema_version: int = 1
    versions: dict[str, str] = {}
    tools: tuple[ToolSpec, ...]


class StoredBy(StrEnum):
    """What `Tape.add` did."""

    NEW = "new"
    SAME = "same"  # the tape had this answer already
    REPLACED = "replaced"  # it had another one, which counts no longer
    KEPT = "kept"  # it has another one, which stays


class Tape:
    """Recorded answers under a folder. Raises UserError for a file that is damaged or was edited.

    A tape that is not `writable` must exist; nothing is written then, not even the lock.
    """

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.folder = folder
        self._calls = folder / CALLS_NAME
        self._lock = FileLock(folder / _LOCK_NAME, preserve_lock_file=True)
        self._end = 0  # bytes of the file that are indexed: whole lines
        self._lines = 0
        self._places: dict[bytes, int] = {}  # the offset of the line
        self._latest: dict[bytes, int] = {}  # by `call_id` alone: the last line about the call in any state
        if writable:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        elif not self._calls.is_file():
            raise UserError(
                f"there is no cassette at {folder}", remedy="record one: --set tools.cassette_mode=record"
            )
        self._refresh()

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
        place = self._places.get(bytes.fromhex(key.call_id + key.state_id))
        return None if place is None else self._read(place)[1]

    def nearest(self, key: CallKey) -> CallKey | None:
        """Return the last recorded key of the same call, in whatever state; None if the call was never
        made."""
        place = self._latest.get(bytes.fromhex(key.call_id))
        return None if place is None else self._read(place)[0]

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
            self._append(encode(key, answer))
        return StoredBy.NEW if recorded is None else StoredBy.REPLACED

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
        """Index the lines that are new; an unfinished last line is not one."""
        if not self._calls.exists():
            return
        with self._calls.open("rb") as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                self._note(line)

    def _note(self, line: bytes) -> None:
        self._lines += 1
        call, state = ids_of(line, where=f"{self._calls}:{self._lines}")
        self._places[call + state] = self._latest[call] = self._end
        self._end += len(line)

    def _read(self, place: int) -> tuple[CallKey, RecordedAnswer]:
        with self._calls.open("rb") as file:
            file.seek(place)
            return decode(file.readline(), where=str(self._calls))

    def _append(self, line: bytes) -> None:
        """Needs the lock, and an index that is up to date."""
        with _writing(self.folder), self._calls.open("ab") as file:
            file.truncate(self._end)  # what a killed writer began; the lock is ours, so it is dead
            file.write(line)
        self._note(line)


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the cassette cannot be written: {error.strerror or error}", where=str(folder)
        ) from error
