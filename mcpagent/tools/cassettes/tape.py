"""The tape: a folder of recorded answers that several processes may write at once.

    catalog.json   the tools and server versions of the recording, so that a replay needs no server
    calls.jsonl    one line a call; of two lines for one key the later counts
    .lock          held while one process writes

Lines are only appended, whole and under the lock, so a killed writer leaves at most an unfinished last line,
which the next writer removes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, fields
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock
from pydantic import ValidationError

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.atomic import write_text
from mcpagent.tools.wire import cut_middle

CALLS_NAME = "calls.jsonl"
CATALOG_NAME = "catalog.json"
_LOCK_NAME = ".lock"
# A server answers a wrong call with one of these, and would again; every other failure says nothing about it.
_ANSWERS = frozenset({None, FailureKind.TOOL_ERROR, FailureKind.INVALID_ARGUMENTS})
_KEPT = {"content", "structured", "is_error", "failure", "truncated_chars"}  # of a result


def canonical(value: Any) -> bytes:
    """Return one text for equal JSON values. Raises ValueError for a number that JSON does not have."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()


def content_digest(data: bytes) -> str:
    """Return 64 bits in hex."""
    return hashlib.blake2b(data, digest_size=8).hexdigest()


def schema_hash(spec: ToolSpec) -> str:
    """Return a digest of what a tool takes and gives; another description does not change its answers."""
    return content_digest(canonical([spec.input_schema, spec.output_schema]))


@dataclass(frozen=True)
class CallKey:
    """The key that an answer is kept under. `after` stands for the session's earlier calls on that server
    that may have changed it (`CallHistory`)."""

    server: str
    version: str
    tool: str
    schema: str
    arguments: JsonObject
    after: str

    @cached_property
    def call(self) -> str:
        """A digest of the server, the tool and the arguments."""
        return content_digest(canonical([self.server, self.tool, self.arguments]))

    @property
    def state(self) -> tuple[str, str, str]:
        """Return the rest of what decides the answer: version, schema, earlier writes."""
        return self.version, self.schema, self.after


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
        """`COUNT-DIGEST`; `0` if no call has changed the server."""
        return f"{self.count}-{self.chain}" if self.count else "0"

    def push(self, tool: str, arguments: JsonObject, answer: RecordedAnswer) -> None:
        """Add a call and what it answered."""
        answered = content_digest(canonical(answer.model_dump(mode="json")))
        self.chain = content_digest(canonical([self.chain, tool, arguments, answered]))
        self.count += 1


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
        kept = result.model_dump(mode="json", include=_KEPT)
        return cls(**SECRETS.value(kept), limit_chars=limit_chars if result.truncated_chars else 0)

    def within(self, limit_chars: int) -> RecordedAnswer | None:
        """Return what a server answers under another limit; None if what that needs was cut off."""
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
        kept = SECRETS.value(self.model_dump(mode="json", include=_KEPT))  # a tape may come from elsewhere
        return ToolResult(call_id=call.id, server=call.server, tool=call.tool, from_cassette=True, **kept)


class TapeCatalog(Record):
    """The tools of a recording in the order of their offer, and the versions of their servers."""

    schema_version: int = 1
    versions: dict[str, str] = {}
    tools: tuple[ToolSpec, ...]


class Tape:
    """Recorded answers under a folder. Raises UserError for a file that is damaged.

    A tape that is not `writable` must exist; nothing is written then, not even the lock.
    """

    def __init__(self, folder: Path, *, writable: bool) -> None:
        self.folder = folder
        self._calls = folder / CALLS_NAME
        self._lock = FileLock(folder / _LOCK_NAME, preserve_lock_file=True)
        self._end = self._lines = 0  # bytes and lines of the file that were read, whole lines alone
        self._answers: dict[str, dict[tuple[str, str, str], RecordedAnswer]] = {}  # by call and state
        if writable:
            with _writing(folder):
                folder.mkdir(parents=True, exist_ok=True)
        elif not self._calls.is_file():
            raise UserError(
                f"there is no cassette at {folder}", remedy="record one: --set tools.cassette_mode=record"
            )
        self.catch_up()

    @property
    def catalog(self) -> TapeCatalog | None:
        """Return the tools of the recording; None if nothing was recorded yet."""
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
        return self._answers.get(key.call, {}).get(key.state)

    def states(self, key: CallKey) -> Collection[tuple[str, str, str]]:
        """Return the states (version, schema, earlier writes) in which the same call was recorded."""
        return self._answers.get(key.call, {}).keys()

    def add(self, key: CallKey, answer: RecordedAnswer) -> RecordedAnswer | None:
        """Record an answer, and return the one that the tape had for this key."""
        with self._locked():
            self.catch_up()
            recorded = self.find(key)
            if recorded != answer:
                of_answer = answer.model_dump(mode="json", exclude_defaults=True)
                # What `wire_fault` would refuse is never recorded: there is no lone surrogate and no NaN.
                line = json.dumps({**asdict(key), "answer": of_answer}, ensure_ascii=False, allow_nan=False)
                with _writing(self.folder), self._calls.open("ab") as file:
                    file.truncate(self._end)  # what a killed writer began; the lock is ours, so it is dead
                    file.write(line.encode() + b"\n")
                self.catch_up()
        return recorded

    def catch_up(self) -> None:
        """Read the lines that are new; an unfinished last line is not one."""
        if not self._calls.exists():
            return
        with self._calls.open("rb") as file:
            file.seek(self._end)
            for line in file:
                if not line.endswith(b"\n"):
                    break
                key, answer = self._decode(line)
                self._answers.setdefault(key.call, {})[key.state] = answer
                self._end += len(line)
                self._lines += 1

    def _decode(self, line: bytes) -> tuple[CallKey, RecordedAnswer]:
        try:
            document = json.loads(line)
            key = CallKey(**{part.name: document[part.name] for part in fields(CallKey)})
            return key, RecordedAnswer.model_validate(document["answer"])
        except (ValueError, KeyError, TypeError) as error:
            raise UserError(
                "the line is not a recorded call: " + str(error).partition("\n")[0],
                where=f"{self._calls}:{self._lines + 1}",
                remedy="delete the line, so that the call is recorded again",
            ) from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """One process at a time; the lock ends with the process that holds it."""
        with _writing(self.folder):
            self._lock.acquire(poll_interval=0.005)
        try:
            yield
        finally:
            self._lock.release()


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(
            f"the cassette cannot be written: {error.strerror or error}", where=str(folder)
        ) from error
