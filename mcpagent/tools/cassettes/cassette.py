"""Record and replay of tool calls: a `ToolProvider` around another one, or in strict mode around none.

record   every call goes to its server, and its answer is recorded
replay   the tape answers what it can; anything else goes to the server and is recorded
strict   the tape answers, or the call fails; no server is started

An answer is kept under (server and version, tool, schemas, arguments) and, because an answer of a server with
state depends on what the session did to it before, under the session's earlier calls on that server that were
not read-only. Failures of the infrastructure are never recorded.

It is right also if attempts part after a call that writes: a replayed call that writes has never reached this
session's instance of the server. Before the first call that the tape cannot answer, those calls are made up
for, in their order; each must answer as the tape did.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
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
from mcpagent.tools.servers_config import Isolation
from mcpagent.tools.wire import wire_fault

_NAMED = 8  # tools named in one note


class Miss(StrEnum):
    """The reason why the tape had no answer."""

    NEVER_MADE = "never_made"
    OTHER_STATE = "other_state"
    CHANGED = "changed"

    @property
    def explanation(self) -> str:
        """Return the words of a strict refusal."""
        return {
            Miss.NEVER_MADE: "it was never recorded",
            Miss.OTHER_STATE: "it was recorded only after other calls that write",
            Miss.CHANGED: "it was recorded from another version of the server, when the tool had another "
            "schema, or cut to another tools.result_limit_chars",
        }[self]


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


@dataclass(frozen=True, kw_only=True)
class ServerFacts:
    """The facts about the live servers that a cassette must know, by name: `isolation` (else shared) and
    `versions`. `repeatable` are dotted names of tools whose second effect does no harm, though their server
    does not say so."""

    isolation: Mapping[str, Isolation] = field(default_factory=dict)
    versions: Mapping[str, str] = field(default_factory=dict)
    repeatable: Sequence[str] = ()


@dataclass(kw_only=True)
class Cassette:
    """A `PinnedTools` with its answers on a tape. `live` is None in strict mode."""

    tape: Tape
    mode: Literal["record", "replay", "strict"]
    catalog: Catalog
    servers: ServerFacts
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
        servers: ServerFacts,
        result_limit_chars: int,
        on_note: Callable[[str], None] = lambda _: None,
    ) -> Self:
        """Record from `live`, replay what the tape has. `result_limit_chars` is the limit that `live` cuts
        results to. `on_note` is told of servers whose recorded answers may depend on other episodes.

        Raises UserError for a tape that cannot be read or written, and for a name that no tool has.
        """
        tools = list(live.tools.values())
        cassette = cls(
            tape=Tape(folder, writable=True),
            mode=mode,
            catalog=Catalog(tools),
            servers=servers,
            limit_chars=result_limit_chars,
            live=live,
        )
        for note in _contaminations(servers, tools):
            on_note(note)
        cassette.tape.pin(TapeCatalog(tools=tuple(tools), versions=dict(servers.versions)))
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
            servers=ServerFacts(versions=pinned.versions),
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
            version=self.servers.versions.get(spec.server, ""),
            tool=spec.name,
            schema=schema_hash(spec),
            arguments=SECRETS.value(arguments),
            after=history.after,
        )

    def may_be_repeated(self, spec: ToolSpec) -> bool:
        """Return True if making a replayed call on the live server can do no harm. An own instance has not
        seen it; a shared one may have, from the session that recorded it."""
        has_own = self.servers.isolation.get(spec.server, "shared") == "episode"
        is_harmless = spec.annotations.idempotent and not spec.annotations.destructive
        return has_own or is_harmless or spec.dotted in self.servers.repeatable

    def look_up(self, key: CallKey) -> RecordedAnswer | Miss:
        """Return the answer on the tape, or why there is none."""
        answer = self.tape.find(key)
        if answer is None and self.mode != "strict":
            self.tape.catch_up()
            answer = self.tape.find(key)
        within = None if answer is None else answer.within(self.limit_chars)
        if within is not None:
            return within
        states = self.tape.states(key)
        if not states:
            return Miss.NEVER_MADE
        is_same = answer is None and (key.version, key.schema) in {state[:2] for state in states}
        return Miss.OTHER_STATE if is_same else Miss.CHANGED

    def asking(self, key: CallKey) -> asyncio.Lock:
        """Return the lock of a question: who asks it while another session does waits for that answer."""
        return self._asking.setdefault((key.call, *key.state), asyncio.Lock())

    def record(self, key: CallKey, answer: RecordedAnswer) -> None:
        """Put an answer on the tape, where it replaces the one of the same key."""
        before = self.tape.add(key, answer)
        self.counts.recorded += before != answer
        self.counts.volatile += before not in (None, answer)


def _contaminations(servers: ServerFacts, tools: Sequence[ToolSpec]) -> list[str]:
    """Servers that all episodes share and that may be changed: an answer on the tape may have been caused by
    another episode than the one that recorded it."""
    writing: dict[str, list[str]] = {}
    for spec in tools:
        if not spec.annotations.read_only and servers.isolation.get(spec.server, "shared") == "shared":
            writing.setdefault(spec.server, []).append(spec.name)
    return [
        f"server {server!r} is shared by all episodes, and {', '.join(names[:_NAMED])} may change it, so a "
        f"recorded answer can depend on other episodes: {_own_instances(server)}, or name it in "
        "tools.read_only if it keeps no state"
        for server, names in writing.items()
    ]


@dataclass(frozen=True)
class _Made:
    """A call whose server and tool are resolved."""

    call: ToolCall
    spec: ToolSpec
    purpose: Purpose
    writes: bool


@dataclass
class _Server:
    """The effects of this session on one server. `missing` are its replayed calls that write, which the live
    instance has not seen; `lost` says why the state of that instance is unknown, if it is."""

    history: CallHistory = field(default_factory=CallHistory)
    missing: deque[tuple[_Made, RecordedAnswer]] = field(default_factory=deque)
    lost: str = ""
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
        """Answer the call from the tape or from its server. A miss in strict mode, and one that no live call
        could make up for, are failures of kind `cassette`; `is_chosen_miss` if strict mode lacks what the
        model chose."""
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
        made = _Made(named, spec, purpose, not spec.annotations.read_only)
        server = self._servers.setdefault(spec.server, _Server())
        async with server.writing:
            if made.writes:
                return await self._answer(made, server)
        return await self._answer(made, server)

    async def close(self) -> None:
        """End the session's own instances. Idempotent."""
        if self._live is not None:
            await self._live.close()

    async def _answer(self, made: _Made, server: _Server) -> ToolResult:
        cassette = self._cassette
        key = cassette.key(made.spec, made.call.arguments, server.history)
        if cassette.mode == "record" or server.lost:
            return await self._ask(made, server, key)
        async with cassette.asking(key):
            answer = cassette.look_up(key)
            if isinstance(answer, RecordedAnswer):
                return self._replay(made, server, key, answer)
            cassette.counts.misses[answer] += 1
            if self._live is not None:
                return await self._ask(made, server, key)
        refused = self._refused(made.call, _strict_text(made, key, answer, tape=str(cassette.tape.folder)))
        return refused.model_copy(update={"is_chosen_miss": _is_chosen(answer, made.purpose)})

    def _replay(self, made: _Made, server: _Server, key: CallKey, answer: RecordedAnswer) -> ToolResult:
        self._cassette.counts.replayed += 1
        if made.writes:
            server.history.push(key.tool, key.arguments, answer)
            if self._live is not None:
                server.missing.append((made, answer))
        return answer.result(made.call)

    async def _ask(self, made: _Made, server: _Server, key: CallKey) -> ToolResult:
        """Make the call live and record what it answers, if the state that it met is known."""
        assert self._live is not None
        if server.missing and (refusal := await self._restore(made, server)):
            return self._refused(made.call, refusal)
        before = server.lost
        if made.writes:
            server.lost = before or f"{made.spec.dotted} was cut off"  # unless it comes back
        result = await self._live.call(made.call, purpose=made.purpose)
        self._cassette.counts.live += 1
        answer = RecordedAnswer.of(result, limit_chars=self._cassette.limit_chars)
        failed = result.failure is not None and result.failure.is_infrastructure
        if failed and (made.writes or server.history.count):
            # The call may have had its effect, and a restarted server has forgotten the earlier ones.
            server.lost = before or f"{made.spec.dotted} ended with {result.failure}"
            return result
        if made.writes:
            server.lost = before
        if answer is None or server.lost:
            return result
        self._cassette.record(key, answer)
        if made.writes:
            server.history.push(key.tool, key.arguments, answer)
        return result

    async def _restore(self, made: _Made, server: _Server) -> str:
        """Make the missing calls on the live instance. Why that cannot be right; empty if it is done."""
        assert self._live is not None
        async with nullcontext() if made.writes else server.writing:
            if server.lost:
                return server.lost
            for past, _ in server.missing:
                if past.purpose is not Purpose.SETUP and not self._cassette.may_be_repeated(past.spec):
                    return _unsafe_text(past)
            while server.missing:
                past, expected = server.missing[0]
                server.lost = f"{past.spec.dotted}, made again on the live server, was cut off"
                result = await self._live.call(past.call, purpose=Purpose.RESTORE)
                self._cassette.counts.restored += 1
                if RecordedAnswer.of(result, limit_chars=self._cassette.limit_chars) != expected:
                    server.lost = _stale_text(past, expected, result)
                    return server.lost
                server.lost = ""
                server.missing.popleft()
        return ""

    def _refused(self, call: ToolCall, text: str) -> ToolResult:
        self._cassette.counts.refused += 1
        return failed_result(call, FailureKind.CASSETTE, text)


def _is_chosen(why: Miss, purpose: Purpose) -> bool:
    """Return True if a strict cassette lacks the answer because of what the model did: it made another call
    than the recorded ones, or its writes led to a state that no recording has. What the environment asks for
    by itself, and what another version or limit made useless, is not the model's doing."""
    if purpose is Purpose.GRADE:
        return why is Miss.OTHER_STATE
    return purpose is Purpose.EPISODE and why in (Miss.NEVER_MADE, Miss.OTHER_STATE)


def _strict_text(made: _Made, key: CallKey, why: Miss, *, tape: str) -> str:
    arguments = short_repr(json.dumps(key.arguments, ensure_ascii=False), limit_chars=300)
    return f"{tape} has no answer to {made.spec.dotted} {arguments}: {why.explanation}"


def _own_instances(server: str) -> str:
    return set_option("tools", "isolation", server, value="episode")


def _unsafe_text(past: _Made) -> str:
    return (
        f"{past.spec.dotted} was replayed, so the live server {past.spec.server!r} has not seen it from this "
        "episode, and making it again could have its effect twice because all episodes share that server; "
        f"{_own_instances(past.spec.server)}, or record the whole episode again"
    )


def _stale_text(past: _Made, expected: RecordedAnswer, result: ToolResult) -> str:
    return (
        f"the tape is stale: {past.spec.dotted}, made again on the live server, answered "
        f"{short_repr(result.content)} and not {short_repr(expected.content)} as recorded"
    )
