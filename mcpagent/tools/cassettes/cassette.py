"""Record and replay of tool calls: a `ToolProvider` around another one, or in strict mode around none.

record   every call goes to its server, and its answer is recorded
replay   the tape answers calls that only read; what it lacks and what may write goes to the server
strict   the tape answers, or the call fails; no server is started

An answer is kept under (server and version, tool, schemas, arguments) and, because an answer of a server with
state depends on what the session did to it before, under the session's earlier calls on that server that were
not read-only. Since those always reach a live server, it is in the state that the answers on the tape are of.
Failures of the infrastructure are never recorded.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Literal, Self
from weakref import WeakValueDictionary

from mcpagent.config.source import set_option
from mcpagent.core.records import JsonObject, short_repr
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.errors import UserError
from mcpagent.tools.cassettes.tape import (
    CallHistory,
    CallKey,
    RecordedAnswer,
    Tape,
    TapeCatalog,
    schema_hash,
)
from mcpagent.tools.catalog import Catalog
from mcpagent.tools.contract import PinnedTools, Purpose, ToolSession
from mcpagent.tools.faults import CallFailed
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.wire import wire_fault

_NAMED = 8  # tools named in one note


class Miss(StrEnum):
    """The reason why the tape had no answer."""

    NEVER_MADE = "never_made"
    OTHER_STATE = "other_state"
    CHANGED = "changed"


_EXPLANATIONS = {
    Miss.NEVER_MADE: "it was never recorded",
    Miss.OTHER_STATE: "it was recorded only after other calls that write",
    Miss.CHANGED: "it was recorded from another version of the server, when the tool had another "
    "schema, or cut to another tools.result_limit_chars",
}


@dataclass
class CassetteCounts:
    """Calls by what became of them. `volatile` answers differ from the one on the tape, and `misses` are not
    on it."""

    mode: str
    replayed: int = 0
    live: int = 0
    recorded: int = 0
    volatile: int = 0
    misses: Counter[Miss] = field(default_factory=Counter)

    def as_json(self) -> JsonObject:
        """`hit_rate` is None if nothing was looked up, as in record mode."""
        looked_up = self.replayed + self.misses.total()
        return {
            **vars(self),
            "hit_rate": self.replayed / looked_up if looked_up else None,
            "misses": {reason.value: count for reason, count in sorted(self.misses.items())},
        }


@dataclass(kw_only=True)
class Cassette:
    """A `PinnedTools` with its answers on a tape. `server_versions` are those that answers are kept under;
    `live` is None in strict mode."""

    tape: Tape
    mode: Literal["record", "replay", "strict"]
    catalog: Catalog
    server_versions: Mapping[str, str]
    limit_chars: int
    live: PinnedTools | None = None
    _asking: WeakValueDictionary[tuple[str, ...], asyncio.Lock] = field(default_factory=WeakValueDictionary)

    def __post_init__(self) -> None:
        self.counts = CassetteCounts(self.mode)
        self.tools, self.catalog_hash = self.catalog.tools, self.catalog.hash

    @classmethod
    def around(
        cls,
        live: PinnedTools,
        folder: Path,
        *,
        mode: Literal["record", "replay"],
        result_limit_chars: int,
        shared: Collection[str] = (),
        versions: Mapping[str, str] = {},
        on_note: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Record from `live`, replay what the tape has. `result_limit_chars` is the limit that `live` cuts
        results to, `shared` names the servers of which all episodes share one instance. `on_note` is told of
        those whose recorded answers may depend on other episodes.

        Raises UserError for a tape that cannot be read or written, and for a name that no tool has.
        """
        tools = list(live.tools.values())
        cassette = cls(
            tape=Tape(folder, writable=True),
            mode=mode,
            catalog=Catalog(tools),
            server_versions=versions,
            limit_chars=result_limit_chars,
            live=live,
        )
        for note in _contaminations([spec for spec in tools if spec.server in shared]):
            on_note(note)
        cassette.tape.pin(TapeCatalog(tools=tuple(tools), versions=dict(versions)))
        return cassette

    @classmethod
    def alone(
        cls,
        folder: Path,
        *,
        result_limit_chars: int,
        allow: Sequence[str] | None = None,
    ) -> Self:
        """Strict: the tape is all there is, its tools included. Raises UserError if there is no tape."""
        tape = Tape(folder, writable=False)
        pinned = tape.catalog
        if pinned is None:
            raise UserError(
                "the cassette has no catalog of its tools",
                where=str(folder),
                remedy="record it again: --set tools.cassette_mode=record",
            )
        return cls(
            tape=tape,
            mode="strict",
            catalog=Catalog.of(pinned.tools, allow=allow),
            server_versions=pinned.versions,
            limit_chars=result_limit_chars,
        )

    @property
    def versions(self) -> Mapping[str, str]:
        """Return the versions of the servers, as a `ToolPool` does; none if no server runs."""
        return {} if self.live is None else self.live.versions

    def metrics(self) -> PoolMetrics:
        """Return the metrics of the calls that went to servers; what the tape answered is in the counts."""
        return PoolMetrics(servers=()) if self.live is None else self.live.metrics()

    def session(self) -> CassetteSession:
        """Return a new, single-use session."""
        return CassetteSession(self, None if self.live is None else self.live.session())

    def take_counts(self) -> JsonObject:
        """Return what happened since this was last asked."""
        counts, self.counts = self.counts, CassetteCounts(self.mode)
        return counts.as_json()

    def key(self, spec: ToolSpec, arguments: JsonObject, history: CallHistory) -> CallKey:
        """Arguments without secrets: a key is stored with its answer."""
        return CallKey(
            server=spec.server,
            version=self.server_versions.get(spec.server, ""),
            tool=spec.name,
            schema=schema_hash(spec),
            arguments=SECRETS.value(arguments),
            after=history.after,
        )

    def look_up(self, key: CallKey) -> RecordedAnswer | Miss:
        """Return the answer on the tape, or why there is none."""
        answer = self.tape.find(key)
        if answer is None and self.mode != "strict":
            self.tape.catch_up()
            answer = self.tape.find(key)
        within = None if answer is None else answer.within(self.limit_chars)
        if within is not None:
            self.counts.replayed += 1
            return within
        states = self.tape.states(key)
        is_same = answer is None and (key.version, key.schema) in {state[:2] for state in states}
        miss = Miss.NEVER_MADE if not states else Miss.OTHER_STATE if is_same else Miss.CHANGED
        self.counts.misses[miss] += 1
        return miss

    def asking(self, key: CallKey) -> asyncio.Lock:
        """Return the lock of a question: who asks it while another session does waits for that answer."""
        return self._asking.setdefault((key.call, *key.state), asyncio.Lock())

    def record(self, key: CallKey, answer: RecordedAnswer) -> None:
        """Put an answer on the tape, where it replaces the one of the same key."""
        before = self.tape.add(key, answer)
        self.counts.recorded += before != answer
        self.counts.volatile += before not in (None, answer)


def _contaminations(shared: Sequence[ToolSpec]) -> list[str]:
    """Servers that all episodes share and that may be changed: an answer on the tape may have been caused by
    another episode than the one that recorded it."""
    writing: dict[str, list[str]] = {}
    for spec in shared:
        if not spec.annotations.read_only:
            writing.setdefault(spec.server, []).append(spec.name)
    return [
        f"server {server!r} is shared by all episodes, and {', '.join(names[:_NAMED])} may change it, so a "
        f"recorded answer can depend on other episodes: "
        f"{set_option('tools', 'isolation', server, value='episode')}, or name it in tools.read_only if it "
        "keeps no state"
        for server, names in writing.items()
    ]


@dataclass
class _Server:
    """The effects of this session on one server. `is_lost` if a call that writes did not come back, so that
    nobody knows what the answers to further ones depend on."""

    history: CallHistory = field(default_factory=CallHistory)
    is_lost: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class CassetteSession:
    """A `ToolSession`. Without `live` (strict mode) no call can reach a server.

    Calls that write are made one after another, whoever makes them; a read that is made at the same time as a
    write may be answered from before or after it, as on a live server.
    """

    def __init__(self, cassette: Cassette, live: ToolSession | None) -> None:
        self._cassette = cassette
        self._live = live
        self._servers: dict[str, _Server] = {}

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Answer the call from the tape or from its server. What a strict cassette lacks is a failure of kind
        `cassette`; `is_chosen_miss` if that is what the model chose."""
        try:
            spec = self._cassette.catalog.find(call)
            if fault := wire_fault(call.arguments):
                raise CallFailed(FailureKind.INVALID_ARGUMENTS, f"the arguments hold {fault}")
        except CallFailed as failure:
            # No server is reached by it; the live session says so itself, and counts it.
            if self._live is not None:
                return await self._live.call(call, purpose=purpose)
            return failed_result(call, failure.kind, failure.text)
        named = call.model_copy(update={"server": spec.server, "tool": spec.name})
        server = self._servers.setdefault(spec.server, _Server())
        if self._live is None:
            return self._from_tape(named, spec, server, purpose)
        async with server.writing:
            if not spec.annotations.read_only:
                return await self._write(self._live, named, spec, server, purpose)
        return await self._read(self._live, named, spec, server, purpose)

    async def close(self) -> None:
        """End the session's own instances. Idempotent."""
        if self._live is not None:
            await self._live.close()

    def _from_tape(self, call: ToolCall, spec: ToolSpec, server: _Server, purpose: Purpose) -> ToolResult:
        key = self._cassette.key(spec, call.arguments, server.history)
        answer = self._cassette.look_up(key)
        if isinstance(answer, Miss):
            arguments = short_repr(json.dumps(key.arguments, ensure_ascii=False), limit_chars=300)
            text = f"{self._cassette.tape.folder} has no answer to {spec.dotted} {arguments}: "
            missing = failed_result(call, FailureKind.CASSETTE, text + _EXPLANATIONS[answer])
            return missing.model_copy(update={"is_chosen_miss": _is_chosen(answer, purpose)})
        if not spec.annotations.read_only:
            server.history.push(key.tool, key.arguments, answer)
        return answer.result(call)

    async def _write(
        self, live: ToolSession, call: ToolCall, spec: ToolSpec, server: _Server, purpose: Purpose
    ) -> ToolResult:
        key = self._cassette.key(spec, call.arguments, server.history)
        before, server.is_lost = server.is_lost, True  # unless it comes back
        result, answer = await self._ask(live, call, purpose)
        failed = result.failure is not None and result.failure.is_infrastructure
        server.is_lost = before or failed  # if it failed, it may have had its effect all the same
        if answer is not None and not server.is_lost:
            self._cassette.record(key, answer)
            server.history.push(key.tool, key.arguments, answer)
        return result

    async def _read(
        self, live: ToolSession, call: ToolCall, spec: ToolSpec, server: _Server, purpose: Purpose
    ) -> ToolResult:
        key = self._cassette.key(spec, call.arguments, server.history)
        if server.is_lost or self._cassette.mode == "record":
            return await self._read_live(live, call, server, key, purpose)
        async with self._cassette.asking(key):
            recorded = self._cassette.look_up(key)
            if isinstance(recorded, RecordedAnswer):
                return recorded.result(call)
            return await self._read_live(live, call, server, key, purpose)

    async def _read_live(
        self, live: ToolSession, call: ToolCall, server: _Server, key: CallKey, purpose: Purpose
    ) -> ToolResult:
        result, answer = await self._ask(live, call, purpose)
        if result.failure is not None and result.failure.is_infrastructure and server.history.count:
            server.is_lost = True  # a restarted server has forgotten the writes
        elif answer is not None and not server.is_lost:
            self._cassette.record(key, answer)
        return result

    async def _ask(
        self, live: ToolSession, call: ToolCall, purpose: Purpose
    ) -> tuple[ToolResult, RecordedAnswer | None]:
        """Make the call live; its answer is None if it is not one of the tool."""
        result = await live.call(call, purpose=purpose)
        self._cassette.counts.live += 1
        return result, RecordedAnswer.of(result, limit_chars=self._cassette.limit_chars)


def _is_chosen(why: Miss, purpose: Purpose) -> bool:
    """Return True if a strict cassette lacks the answer because of what the model did: it made another call
    than the recorded ones, or its writes led to a state that no recording has. What the environment asks for
    by itself, and what another version or limit made useless, is not the model's doing."""
    if purpose is Purpose.GRADE:
        return why is Miss.OTHER_STATE
    return purpose is Purpose.EPISODE and why in (Miss.NEVER_MADE, Miss.OTHER_STATE)
