"""One episode's calls through a cassette, right also where attempts part after a call that writes.

A replayed call that writes has never reached this session's instance of the server. Before the first call
that the tape cannot answer, those calls are made up for, in their order; each must answer as the tape did.
"""

from __future__ import annotations

import asyncio
import json
from collections import deque
from contextlib import nullcontext
from dataclasses import dataclass, field

from mcpagent.core.tools import FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.core.validation import shown
from mcpagent.tools.cassette_answer import Answer
from mcpagent.tools.cassette_counts import Miss
from mcpagent.tools.cassette_deck import Deck
from mcpagent.tools.cassette_key import CallKey, History
from mcpagent.tools.contract import Purpose, ToolSession
from mcpagent.tools.wire import wire_fault

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

    history: History = field(default_factory=History)
    missing: deque[tuple[_Made, Answer]] = field(default_factory=deque)
    lost: str = ""
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)


class CassetteSession:
    """A `ToolSession`. Without `live` (strict mode) no call can reach a server.

    Calls that write are made one after another, whoever makes them; a read that is made at the same time as a
    write may be answered from before or after it, as on a live server.
    """

    def __init__(self, deck: Deck, live: ToolSession | None) -> None:
        self._deck = deck
        self._live = live
        self._servers: dict[str, _Server] = {}

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Answer the call from the tape or from its server. A miss in strict mode, and one that no live call
        could make up for, are failures of kind `cassette`; `is_chosen_miss` where strict mode lacks what the
        model chose."""
        spec = self._deck.catalog.find(call.server, call.tool)
        fault = wire_fault(call.arguments)
        if spec is None or fault is not None:
            return await self._refuse_unsendable(call, fault, purpose)
        named = call.model_copy(update={"server": spec.server, "tool": spec.name})
        made = _Made(named, spec, purpose, self._deck.writes(spec))
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
        deck = self._deck
        key = deck.key(made.spec, made.call.arguments, server.history)
        if deck.mode == "record" or server.lost:
            return await self._ask(made, server, key, replace=True)
        found = await deck.look_up(key)
        if isinstance(found, Answer):
            return self._replay(made, server, key, found)
        deck.counts.misses[found] += 1
        if self._live is None:
            refused = self._refused(made.call, _strict_text(made, key, found, tape=str(deck.tape.folder)))
            return refused.model_copy(update={"is_chosen_miss": _is_chosen(found, made.purpose)})
        with deck.asking(key):
            return await self._ask(made, server, key, replace=found is Miss.CUT_SHORTER)

    def _replay(self, made: _Made, server: _Server, key: CallKey, answer: Answer) -> ToolResult:
        self._deck.counts.replayed += 1
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
        self._deck.counts.live += 1
        answer = self._deck.answer(result)
        failed = result.failure is not None and result.failure.is_infrastructure
        if failed and (made.writes or server.history.count):
            # The call may have had its effect, and a restarted server has forgotten the earlier ones.
            server.lost = before or f"{made.spec.dotted} ended with {result.failure}"
            return result
        if made.writes:
            server.lost = before
        if answer is None or server.lost:
            return result
        self._deck.record(key, answer, replace=replace)
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
                if past.purpose is not Purpose.SETUP and not self._deck.may_be_repeated(past.spec):
                    return _unsafe_text(past)
            while server.missing:
                past, expected = server.missing[0]
                server.lost = f"{past.spec.dotted}, made again on the live server, was cut off"
                result = await self._live.call(past.call, purpose=Purpose.RESTORE)
                self._deck.counts.restored += 1
                if self._deck.answer(result) != expected:
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
        if self._deck.catalog.denies(call.server, call.tool):
            return failed_result(call, FailureKind.DENIED, f"{call.tool} is not allowed here")
        return failed_result(call, FailureKind.UNKNOWN_TOOL, f"there is no tool {call.tool!r}")

    def _refused(self, call: ToolCall, text: str) -> ToolResult:
        self._deck.counts.refused += 1
        return failed_result(call, FailureKind.CASSETTE, text)


def _is_chosen(why: Miss, purpose: Purpose) -> bool:
    """Whether a strict cassette lacks the answer because of what the model did: it made another call than the
    recorded ones, or its writes led to a state that no recording has. What the environment asks for by
    itself, and what another version or limit made useless, is not the model's doing."""
    if purpose is Purpose.GRADE:
        return why is Miss.OTHER_STATE
    return purpose is Purpose.EPISODE and why in (Miss.NEVER_MADE, Miss.OTHER_STATE)


def _strict_text(made: _Made, key: CallKey, why: Miss, *, tape: str) -> str:
    arguments = shown(json.dumps(key.arguments, ensure_ascii=False), limit_chars=300)
    after = f" after {key.after.partition('-')[0]} calls that write" if key.after != History().after else ""
    return f"{tape} has no answer to {made.spec.dotted} {arguments}{after}: {_EXPLANATION[why]}"


def _unsafe_text(past: _Made) -> str:
    return (
        f"{past.spec.dotted} was replayed, so the live server {past.spec.server!r} has not seen it from this "
        "episode, and making it again could have its effect twice because all episodes share that server; "
        f"set tools.isolation.{past.spec.server}=episode, or record the whole episode again"
    )


def _stale_text(past: _Made, expected: Answer, result: ToolResult) -> str:
    return (
        f"the tape is stale: {past.spec.dotted}, made again on the live server, answered "
        f"{shown(result.content)} and not {shown(expected.content)} as recorded"
    )
