"""Calls of one server: sent under a deadline, and again only if that is safe."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass

from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, RequestParamsMeta

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind
from mcpagent.tools.catalog import read_as_tool
from mcpagent.tools.faults import CallFailed, CallLost, CallThrottled, classify
from mcpagent.tools.limits import CircuitBreaker, Gate, settled
from mcpagent.tools.questions import ASKED_META_KEY, Questions, call_to_its_end
from mcpagent.tools.supervisor import Live, ServerSupervisor
from mcpagent.tools.workspace import WorkspaceCopy

_THROTTLED_FIRST_S = 0.2


@dataclass
class WriteGeneration:
    """Which instance of a server an episode wrote to (`Live.number`); None while it has only read."""

    generation: int | None = None


@dataclass(slots=True, kw_only=True)
class PendingCall:
    """One call: what to send and how often, and (from `waited_s` on) what it took.

    `repeats` counts the sendings that may follow a loss. `is_safe`: a second effect does no harm.
    `write_generation` is None if a restart of the server loses nothing.
    """

    tool: str
    arguments: JsonObject
    meta: Mapping[str, str]
    timeout_s: float
    repeats: int = 0
    is_safe: bool = False
    is_write: bool = True
    is_reader: bool = False  # of what the server offers other than tools
    write_generation: WriteGeneration | None = None
    waited_s: float = 0.0  # for the server and for a slot
    latency_s: float = 0.0  # of the last sending
    sendings: int = 0
    throttled_s: float = 0.0  # that the server asked to wait, in all; part of `waited_s`


class Connection:
    """A server as a place to send calls to. `gate` and `breaker` belong to the server, so several
    connections may share them."""

    def __init__(
        self,
        supervisor: ServerSupervisor,
        *,
        gate: Gate,
        breaker: CircuitBreaker,
        workspace: WorkspaceCopy | None = None,
        questions: Questions | None = None,
    ) -> None:
        self._questions = questions
        self._asking = asyncio.Lock()
        self.supervisor = supervisor
        self.workspace = workspace
        self._gate = gate
        self._breaker = breaker

    async def close(self) -> None:
        """End the server, and remove its workspace."""
        await self.supervisor.close()
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.remove)

    async def call(self, pending: PendingCall) -> CallToolResult:
        """Make one call. Its deadline starts when the server is up and a slot is free; it waits for the
        server at most the supervisor's `start_timeout_s` in all.

        A lost call is sent again, at most `pending.repeats` times, if the server never got it or if the call
        is safe to repeat. Raises CallFailed.
        """
        meta = RequestParamsMeta(**pending.meta)
        params = CallToolRequestParams(name=pending.tool, arguments=pending.arguments, _meta=meta)
        request = CallToolRequest(params=params)
        wrote_to = pending.write_generation.generation if pending.write_generation is not None else None
        patience_s = self.supervisor.start_timeout_s
        while True:
            begun_s = time.perf_counter()
            live = await self.supervisor.up(patience_s)
            patience_s -= time.perf_counter() - begun_s
            async with self._gate:
                pending.waited_s += time.perf_counter() - begun_s
                if not self.supervisor.is_fit(live):
                    continue  # it was lost, or went quiet, while this call waited for its slot
                if wrote_to not in (None, live.number):
                    text = "the server was restarted since this episode wrote to it: what it held may be lost"
                    raise CallFailed(FailureKind.CRASHED, text)
                if pending.is_write and pending.write_generation is not None:
                    pending.write_generation.generation = live.number
                try:
                    if self._questions is None:
                        return await self._send(live, request, pending)
                    async with self._asking:  # one at a time: a question does not say which call it is about
                        self._questions.take()
                        answer = await self._send(live, request, pending)
                        if asked := self._questions.take():
                            answer.meta = {**(answer.meta or {}), ASKED_META_KEY: asked}
                        return answer
                except CallThrottled as throttled:
                    await _sit_out(throttled, pending)
                except CallLost as lost:
                    _repeat_or_give_up(lost, pending)

    async def _send(self, live: Live, request: CallToolRequest, pending: PendingCall) -> CallToolResult:
        """One sending under a hard deadline. Raises CallFailed or CallLost.

        Not the SDK's own timeout: that one starts only after the request was written, and a cancelled
        request waits up to 5 s more. The session's `send_request`, not `Client.call_tool`: the latter
        compiles the tool's output schema again for every client, which costs an episode's own instance
        more than its calls; the pool validates with one compiled validator per tool.
        """
        self._breaker.begin()
        pending.sendings += 1
        begun_s = time.perf_counter()
        answer = (
            read_as_tool(live.client, pending.tool, pending.arguments)
            if pending.is_reader
            else call_to_its_end(live.client.session, request, self._questions, keep=self.supervisor.keep)
        )
        task = asyncio.create_task(answer)
        live.calls.add(task)
        task.add_done_callback(live.calls.discard)
        try:
            in_time = await settled(task, pending.timeout_s)
        finally:
            pending.latency_s = time.perf_counter() - begun_s
            if not task.done():
                self.supervisor.keep(
                    task
                ).cancel()  # not awaited: the SDK tells the server, which may take 5 s
                self.supervisor.doubt(live, pending.timeout_s)
        if not in_time:
            raise CallFailed(FailureKind.TIMEOUT, f"no answer within {pending.timeout_s:g} s")
        if task.cancelled():
            live.leave.set()
            raise CallLost("the connection was torn down during the call")
        error = task.exception()
        fault = None if error is None else classify(error)
        if isinstance(fault, CallLost) and not isinstance(fault, CallThrottled):
            if fault.is_doubtful:
                self.supervisor.doubt(live, pending.timeout_s)
            else:
                self.supervisor.lost(live, fault.text)
        else:
            live.is_shaky = False
            self._breaker.answered()
        if fault is not None:
            raise fault from error
        return task.result()


async def _sit_out(throttled: CallThrottled, pending: PendingCall) -> None:
    """Wait as long as the server asks, or longer each time if it does not say. Raises CallFailed if
    that would pass the call's deadline. The slot is kept: another call would fare no better.

    Not `core.values.backoff_s`: what the server asks is a floor here, and the sum of all waits doubles:
    it counts against the deadline of this one call."""
    least_s = _THROTTLED_FIRST_S + pending.throttled_s  # so it at least doubles, whatever the server says
    wait_s = max(throttled.retry_after_s or 0.0, least_s) * random.uniform(1.0, 1.25)
    if pending.throttled_s + wait_s > pending.timeout_s:
        asked = throttled.retry_after_s
        text = f"{throttled.text}; it asks to wait {asked:g} s" if asked is not None else throttled.text
        raise CallFailed(FailureKind.UPSTREAM, f"{text}; the deadline is {pending.timeout_s:g} s")
    pending.throttled_s += wait_s
    pending.waited_s += wait_s
    await asyncio.sleep(wait_s)


def _repeat_or_give_up(lost: CallLost, pending: PendingCall) -> None:
    """Return where the lost call is to be sent again; else raise CallFailed."""
    if lost.was_sent and not pending.is_safe:
        text = f"{lost.text}; it may have had its effect, and is not safe to repeat"
        raise CallFailed(FailureKind.UNKNOWN_OUTCOME, text) from lost
    if pending.sendings > pending.repeats:
        tries = f" (sent {pending.sendings} times)" if pending.sendings > 1 else ""
        raise CallFailed(FailureKind.CRASHED, lost.text + tries) from lost
