"""One episode's calls through a cassette, right also where attempts part after a call that writes.

A replayed call that writes has never reached this session's instance of the server. Before the first call
that the tape cannot answer, those calls are made up for, in their order; each must answer as the tape did.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Literal

from mcpagent.core.records import JsonObject, shown_value
from mcpagent.core.redact import redact
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.tools.cassettes.tape import (
    CallHistory,
    CallKey,
    CassetteCounts,
    Miss,
    RecordedAnswer,
    StoredBy,
    Tape,
    schema_hash,
)
from mcpagent.tools.catalog import Catalog
from mcpagent.tools.contract import Purpose, ToolSession
from mcpagent.tools.servers_config import Isolation
from mcpagent.tools.wire import wire_fault

CassetteMode = Literal["record", "replay", "strict"]


@dataclass(kw_only=True)
class RecordingPolicy:
    """What all sessions of a run share. A server that `isolation` does not name is shared; one that
    `versions` does not name has the version "". `repeatable` are dotted names of tools whose second effect
    does no harm, though their server does not say so. `secrets` (value -> name) never reach the tape."""

    tape: Tape
    mode: CassetteMode
    catalog: Catalog
    isolation: Mapping[str, Isolation]
    versions: Mapping[str, str]
    limit_chars: int
    counts: CassetteCounts
    repeatable: Collection[str] = ()
    secrets: Mapping[str, str] = field(default_factory=dict)
    _under_way: dict[str, asyncio.Event] = field(default_factory=dict)
    _schemas: dict[str, str] = field(default_factory=dict)

    def key(self, spec: ToolSpec, arguments: JsonObject, history: CallHistory) -> CallKey:
        """Arguments without secrets: a key is stored with its answer."""
        if spec.dotted not in self._schemas:
            self._schemas[spec.dotted] = schema_hash(spec)
        return CallKey(
            server=spec.server,
            version=self.versions.get(spec.server, ""),
            tool=spec.name,
            schema=self._schemas[spec.dotted],
            arguments=redact(arguments, self.secrets),
            after=history.after,
        )

    def writes(self, spec: ToolSpec) -> bool:
        """True where a call may change what later calls answer."""
        return not spec.annotations.read_only

    def may_be_repeated(self, spec: ToolSpec) -> bool:
        """True where making a replayed call on the live server can do no harm. An own instance has not seen
        it; a shared one may have, from the session that recorded it."""
        if self.isolation.get(spec.server, "shared") == "episode" or spec.dotted in self.repeatable:
            return True
        return spec.annotations.idempotent and not spec.annotations.destructive

    async def look_up(self, key: CallKey) -> RecordedAnswer | Miss:
        """The answer on the tape, or why there is none. Waits while another session asks the same live."""
        while (answered := self._under_way.get(key.id)) is not None:
            await answered.wait()
        answer = self.tape.find(key)
        if answer is None and self.mode != "strict":
            self.tape.catch_up()
            answer = self.tape.find(key)
        if answer is None:
            return self._reason(key)
        return answer.within(self.limit_chars) or Miss.CUT_SHORTER

    @contextmanager
    def asking(self, key: CallKey) -> Iterator[None]:
        """While inside, other sessions with the same question wait for the answer instead of asking too."""
        self._under_way[key.id] = asyncio.Event()
        try:
            yield
        finally:
            self._under_way.pop(key.id).set()

    def answer(self, result: ToolResult) -> RecordedAnswer | None:
        """What of a live result is recorded; None where it says nothing about the tool."""
        return RecordedAnswer.of(result, limit_chars=self.limit_chars, secrets=self.secrets)

    def record(self, key: CallKey, answer: RecordedAnswer, *, replace: bool) -> None:
        """Put an answer on the tape."""
        stored = self.tape.add(key, answer, replace=replace)
        self.counts.recorded += stored in (StoredBy.NEW, StoredBy.REPLACED)
        self.counts.volatile += stored in (StoredBy.REPLACED, StoredBy.KEPT)

    def _reason(self, key: CallKey) -> Miss:
        near = self.tape.nearest(key)
        if near is None:
            return Miss.NEVER_MADE
        if near.version != key.version:
            return Miss.VERSION_CHANGED
        return Miss.SCHEMA_CHANGED if near.schema != key.schema else Miss.OTHER_STATE


_EXPLANATION = {
    Miss.NEVER_MADE: "it was never recorded",
    Miss.OTHER_STATE: "it was recorded only after other calls that write",
    Miss.SCHEMA_CHANGED: "it was recorded when the tool had another schema",
    Miss.VERSION_CHANGED: "it was recorded from another version of the server",
    Miss.CUT_SHORTER: "its recorded answer was cut to another tools.result_limit_chars",
}


@dataclass(frozen=True)
class _Made:
    """A call whose server and tool are resolved."""

    call: ToolCall
    spec: ToolSpec
    purpose: Purpose
    writes: bool


@dataclass
class _Server:
    """What this session did to one server. `missing` are its replayed calls that write, which the live
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

    def __init__(self, policy: RecordingPolicy, live: ToolSession | None) -> None:
        self._policy = policy
        self._live = live
        self._servers: dict[str, _Server] = {}

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Answer the call from the tape or from its server. A miss in strict mode, and one that no live call
        could make up for, are failures of kind `cassette`; `is_chosen_miss` where strict mode lacks what the
        model chose."""
        spec = self._policy.catalog.find(call.server, call.tool)
        fault = wire_fault(call.arguments)
        if spec is None or fault is not None:
            return await self._refuse_unsendable(call, fault, purpose)
        named = call.model_copy(update={"server": spec.server, "tool": spec.name})
        made = _Made(named, spec, purpose, self._policy.writes(spec))
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
        policy = self._policy
        key = policy.key(made.spec, made.call.arguments, server.history)
        if policy.mode == "record" or server.lost:
            return await self._ask(made, server, key, replace=True)
        answer = await policy.look_up(key)
        if isinstance(answer, RecordedAnswer):
            return self._replay(made, server, key, answer)
        policy.counts.misses[answer] += 1
        if self._live is None:
            refused = self._refused(made.call, _strict_text(made, key, answer, tape=str(policy.tape.folder)))
            return refused.model_copy(update={"is_chosen_miss": _is_chosen(answer, made.purpose)})
        with policy.asking(key):
            return await self._ask(made, server, key, replace=answer is Miss.CUT_SHORTER)

    def _replay(self, made: _Made, server: _Server, key: CallKey, answer: RecordedAnswer) -> ToolResult:
        self._policy.counts.replayed += 1
        if made.writes:
            server.history.push(key.tool, key.arguments, answer.digest)
            if self._live is not None:
                server.missing.append((made, answer))
        return answer.result(made.call)

    async def _ask(self, made: _Made, server: _Server, key: CallKey, *, replace: bool) -> ToolResult:
        """Make the call live and record what it answers, where the state that it met is known."""
        assert self._live is not None
        if server.missing and (refusal := await self._restore(made, server)):
            return self._refused(made.call, refusal)
        before = server.lost
        if made.writes:
            server.lost = before or f"{made.spec.dotted} was cut off"  # unless it comes back
        result = await self._live.call(made.call, purpose=made.purpose)
        self._policy.counts.live += 1
        answer = self._policy.answer(result)
        failed = result.failure is not None and result.failure.is_infrastructure
        if failed and (made.writes or server.history.count):
            # The call may have had its effect, and a restarted server has forgotten the earlier ones.
            server.lost = before or f"{made.spec.dotted} ended with {result.failure}"
            return result
        if made.writes:
            server.lost = before
        if answer is None or server.lost:
            return result
        self._policy.record(key, answer, replace=replace)
        if made.writes:
            server.history.push(key.tool, key.arguments, answer.digest)
        return result

    async def _restore(self, made: _Made, server: _Server) -> str:
        """Make the missing calls on the live instance. Why that cannot be right; empty where it is done."""
        assert self._live is not None
        async with nullcontext() if made.writes else server.writing:
            if server.lost:
                return server.lost
            for past, _ in server.missing:
                if past.purpose is not Purpose.SETUP and not self._policy.may_be_repeated(past.spec):
                    return _unsafe_text(past)
            while server.missing:
                past, expected = server.missing[0]
                server.lost = f"{past.spec.dotted}, made again on the live server, was cut off"
                result = await self._live.call(past.call, purpose=Purpose.RESTORE)
                self._policy.counts.restored += 1
                if self._policy.answer(result) != expected:
                    server.lost = _stale_text(past, expected, result)
                    return server.lost
                server.lost = ""
                server.missing.popleft()
        return ""

    async def _refuse_unsendable(self, call: ToolCall, fault: str | None, purpose: Purpose) -> ToolResult:
        """No server is reached by it; the live session says so in its own words."""
        if self._live is not None:
            return await self._live.call(call, purpose=purpose)
        if fault is not None:
            return failed_result(call, FailureKind.INVALID_ARGUMENTS, f"the arguments hold {fault}")
        if self._policy.catalog.denies(call.server, call.tool):
            return failed_result(call, FailureKind.DENIED, f"{call.tool} is not allowed here")
        return failed_result(call, FailureKind.UNKNOWN_TOOL, f"there is no tool {call.tool!r}")

    def _refused(self, call: ToolCall, text: str) -> ToolResult:
        self._policy.counts.refused += 1
        return failed_result(call, FailureKind.CASSETTE, text)


def _is_chosen(why: Miss, purpose: Purpose) -> bool:
    """Whether a strict cassette lacks the answer because of what the model did: it made another call than the
    recorded ones, or its writes led to a state that no recording has. What the environment asks for by
    itself, and what another version or limit made useless, is not the model's doing."""
    if purpose is Purpose.GRADE:
        return why is Miss.OTHER_STATE
    return purpose is Purpose.EPISODE and why in (Miss.NEVER_MADE, Miss.OTHER_STATE)


def _strict_text(made: _Made, key: CallKey, why: Miss, *, tape: str) -> str:
    arguments = shown_value(json.dumps(key.arguments, ensure_ascii=False), limit_chars=300)
    after = (
        f" after {key.after.partition('-')[0]} calls that write" if key.after != CallHistory().after else ""
    )
    return f"{tape} has no answer to {made.spec.dotted} {arguments}{after}: {_EXPLANATION[why]}"


def _unsafe_text(past: _Made) -> str:
    return (
        f"{past.spec.dotted} was replayed, so the live server {past.spec.server!r} has not seen it from this "
        "episode, and making it again could have its effect twice because all episodes share that server; "
        f"set tools.isolation.{past.spec.server}=episode, or record the whole episode again"
    )


def _stale_text(past: _Made, expected: RecordedAnswer, result: ToolResult) -> str:
    return (
        f"the tape is stale: {past.spec.dotted}, made again on the live server, answered "
        f"{shown_value(result.content)} and not {shown_value(expected.content)} as recorded"
    )
