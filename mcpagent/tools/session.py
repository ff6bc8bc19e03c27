"""The tools of one episode: a call from the model's words to its server, and back as what the model sees."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from mcp.types import CallToolRequest, CallToolRequestParams, CallToolResult, RequestParamsMeta

from mcpagent.config.schema import ResetSection
from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import PURPOSE_META_KEY, FailureKind, ToolCall, ToolResult, failed_result
from mcpagent.errors import UserError
from mcpagent.tools.catalog import Catalog
from mcpagent.tools.contract import Purpose
from mcpagent.tools.faults import CallFailed, CallLost, CallThrottled, LoginNeeded, classify
from mcpagent.tools.limits import settled
from mcpagent.tools.questions import call_to_its_end
from mcpagent.tools.server import StartedServer
from mcpagent.tools.supervisor import Live, ServerSupervisor
from mcpagent.tools.wire import cut_meta, cut_middle, render, wire_fault

_RESERVED_META = "io.modelcontextprotocol/"  # stamps of the protocol itself, the same on every result
_SAID_CHARS = 200  # of why a reset failed
_THROTTLED_FIRST_S = 0.2


@dataclass(slots=True, kw_only=True)
class PendingCall:
    """One call: what to send and how often, and (from `waited_s` on) what it took.

    `repeats` counts the sendings that may follow a loss. `is_safe`: a second effect does no harm.
    `written_to` has by server the instance (`Live.number`) that the episode wrote to, and None stands for it
    if a restart of the server loses nothing.
    """

    tool: str
    arguments: JsonObject
    purpose: Purpose
    repeats: int = 0
    is_safe: bool = False
    is_write: bool = True
    written_to: dict[str, int] | None = None
    waited_s: float = 0.0  # for the server and for a slot
    latency_s: float = 0.0  # of the last sending
    sendings: int = 0
    throttled_s: float = 0.0  # that the server asked to wait, in all; part of `waited_s`


class PoolSession:
    """A `ToolSession`. Isolated servers are opened at the session's first call of them."""

    def __init__(
        self,
        servers: Mapping[str, StartedServer],
        *,
        catalog: Catalog,
        result_limit_chars: int,
        resetting: asyncio.Lock,
        on_close: Callable[[PoolSession], None],
    ) -> None:
        self._resetting = resetting
        self._restoring = asyncio.Lock()
        self._was_reset: set[str] = set()
        self._holds_state = False
        self._servers = servers
        self._catalog = catalog
        self._result_limit_chars = result_limit_chars
        self._on_close = on_close
        self._opened: dict[str, ServerSupervisor] = {}
        self._written_to: dict[str, int] = {}
        self._closed = False

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Make the call; every failure is a result. `call.server` may be empty: then `call.tool` is the name
        that the model sees. Raises UserError if the server takes no call before a person has logged in."""
        if self._closed:
            raise RuntimeError("the session is closed")
        try:
            spec = self._catalog.find(call)
        except CallFailed as failure:
            return failed_result(call, failure.kind, failure.text)
        named = call.model_copy(update={"server": spec.server, "tool": spec.name})
        server = self._servers[spec.server]
        pending = PendingCall(
            tool=spec.name,
            arguments=call.arguments,
            purpose=purpose,
            repeats=server.repeats,
            is_safe=server.is_safe(spec),
            is_write=not spec.annotations.read_only,
            written_to=None if server.limits.survives_restart else self._written_to,
        )
        supervisor = self._supervisor(server)
        workspace = supervisor.workspace
        try:
            if fault := wire_fault(call.arguments):
                raise CallFailed(FailureKind.INVALID_ARGUMENTS, f"the arguments hold {fault}")
            server.guard(named)  # whoever calls, and before anything is opened
            await self._reset_first(server, supervisor)
            if workspace is not None:
                pending.arguments = workspace.to_server(pending.arguments)
            raw = await _make_offered_call(server, supervisor, pending)
            if workspace is not None:
                raw = workspace.mapped(raw)
            result = self._result(server, named, raw, latency_s=pending.latency_s)
        except LoginNeeded as needed:
            # Every further call of the server would fail alike, and leave its episode unscored.
            raise UserError(needed.text, where=f"server {server.name!r}", remedy=needed.remedy) from needed
        except CallFailed as failure:
            if failure.kind is FailureKind.UPSTREAM and server.inputs[spec.name].fault(call.arguments):
                # Some servers break down over wrong arguments instead of refusing them.
                failure = CallFailed(FailureKind.INVALID_ARGUMENTS, failure.text)
            text = failure.text if workspace is None else workspace.to_model(failure.text)
            text = server.without_secrets(text, tool=spec.name)
            server.failed(spec.name, failure.kind, text)
            result = failed_result(named, failure.kind, text, latency_s=pending.latency_s)
        server.counts.note(result, waited_s=pending.waited_s, sendings=pending.sendings)
        return result

    async def close(self) -> None:
        """End the session's own instances. Idempotent."""
        self._closed = True
        self._on_close(self)
        opened, self._opened = self._opened, {}
        if opened:
            await asyncio.gather(*(supervisor.close() for supervisor in opened.values()))
        if self._holds_state:
            self._holds_state = False
            self._resetting.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def workspace(self, server: str) -> Path | None:
        """Return the folder that the session's instance of a server works on, as it is now; None if it has
        none of its own."""
        copy = self._supervisor(self._servers[server]).workspace
        return None if copy is None else await asyncio.to_thread(copy.make)

    async def _reset_first(self, server: StartedServer, supervisor: ServerSupervisor) -> None:
        """Bring a server with a reset, once, to the state in which episodes begin. Raises CallFailed."""
        if server.limits.reset is None:
            return
        async with self._restoring:
            if server.name in self._was_reset:
                return
            if not self._holds_state:
                # One lock for all such servers: two sessions that each hold one would wait for ever.
                await self._resetting.acquire()
                self._holds_state = True
            await _restore(server, server.limits.reset, supervisor)
            self._was_reset.add(server.name)

    def _supervisor(self, server: StartedServer) -> ServerSupervisor:
        if server.shared is not None:
            return server.shared
        if server.name not in self._opened:
            self._opened[server.name] = server.connect()
        return self._opened[server.name]

    def _result(
        self, server: StartedServer, call: ToolCall, raw: CallToolResult, *, latency_s: float
    ) -> ToolResult:
        structured = raw.structured_content if isinstance(raw.structured_content, dict) else None
        if not raw.is_error and (output := server.outputs.get(call.tool)) is not None:
            fault = output.fault(raw.structured_content)
            if fault is not None:
                said = f"the server broke its own output schema at {fault}"
                if raw.structured_content is None:
                    said = "the tool has an output schema, and the server answered without structured content"
                raise CallFailed(FailureKind.SCHEMA, said)
        if (fault := wire_fault(raw.structured_content)) is not None:
            raise CallFailed(FailureKind.SCHEMA, f"the structured result holds {fault}")
        # Here, before the model sees it: its tokens, the cassette and the report then say the same. And
        # before it is cut, which could leave half a secret.
        whole = server.without_secrets(render(raw.content, raw.structured_content), tool=call.tool)
        content, cut = cut_middle(whole, self._result_limit_chars)
        meta = cut_meta({k: v for k, v in (raw.meta or {}).items() if not k.startswith(_RESERVED_META)})
        failure = None
        if raw.is_error:
            # Servers say both in prose; the schema tells a wrong argument from one that found nothing.
            broken = server.inputs[call.tool].fault(call.arguments) is not None
            failure = FailureKind.INVALID_ARGUMENTS if broken else FailureKind.TOOL_ERROR
        return ToolResult(
            call_id=call.id,
            server=call.server,
            tool=call.tool,
            content=content,
            structured=server.without_secrets(structured, tool=call.tool),
            is_error=raw.is_error,
            failure=failure,
            latency_s=latency_s,
            truncated_chars=cut,
            meta=server.without_secrets(meta, tool=call.tool) if meta else {},
        )


async def _make_offered_call(
    server: StartedServer, supervisor: ServerSupervisor, pending: PendingCall
) -> CallToolResult:
    """Make one call, and tell an error that comes of a changed tool list from one of the model's. Raises
    CallFailed.

    Not by what the server says: some answer with an error, some with a text, and a notification may come late
    or never. So after an error its tools are listed again; not while it is explored, which tries what may
    fail."""
    failure: CallFailed | None = None
    raw: CallToolResult | None = None
    try:
        raw = await make_call(server, supervisor, pending)
    except CallFailed as failed:
        if failed.kind.is_infrastructure:
            raise
        failure = failed
    may_change = server.may_change and pending.purpose is not Purpose.SYNTH
    if may_change and (raw is None or raw.is_error):
        change = await supervisor.change_now()
        if pending.tool in change.gone | change.altered:
            raise _changed(pending.tool, is_gone=pending.tool in change.gone) from failure
    if failure is not None:
        raise failure
    assert raw is not None
    return raw


def _changed(tool: str, *, is_gone: bool) -> CallFailed:
    how = "the server no longer has it" if is_gone else "the server takes other arguments for it now"
    return CallFailed(FailureKind.CHANGED, f"{tool} was offered, but {how}")


async def make_call(
    server: StartedServer, supervisor: ServerSupervisor, pending: PendingCall
) -> CallToolResult:
    """Make one call. Its deadline starts when the server is up and a slot is free; it waits for the server at
    most `start_timeout_s` in all.

    A lost call is sent again, at most `pending.repeats` times, if the server never got it or if the call is
    safe to repeat. Raises CallFailed.
    """
    meta = RequestParamsMeta(**{PURPOSE_META_KEY: pending.purpose.value})
    params = CallToolRequestParams(name=pending.tool, arguments=pending.arguments, _meta=meta)
    request = CallToolRequest(params=params)
    wrote_to = None if pending.written_to is None else pending.written_to.get(server.name)
    patience_s = supervisor.start_timeout_s
    while True:
        begun_s = time.perf_counter()
        live = await supervisor.up(patience_s)
        patience_s -= time.perf_counter() - begun_s
        async with server.gate:
            pending.waited_s += time.perf_counter() - begun_s
            if not supervisor.is_fit(live):
                continue  # it was lost, or went quiet, while this call waited for its slot
            if pending.tool in live.change.gone:
                raise _changed(pending.tool, is_gone=True)
            if wrote_to not in (None, live.number):
                text = "the server was restarted since this episode wrote to it: what it held may be lost"
                raise CallFailed(FailureKind.CRASHED, text)
            if pending.is_write and pending.written_to is not None:
                pending.written_to[server.name] = live.number
            try:
                return await _send(server, supervisor, live, request, pending)
            except CallThrottled as throttled:
                await _sit_out(throttled, pending, timeout_s=server.timeout_s)
            except CallLost as lost:
                _repeat_or_give_up(lost, pending)


async def _send(
    server: StartedServer,
    supervisor: ServerSupervisor,
    live: Live,
    request: CallToolRequest,
    pending: PendingCall,
) -> CallToolResult:
    """One sending under a hard deadline. Raises CallFailed, CallLost or CallThrottled.

    Not the SDK's own timeout: that one starts only after the request was written, and a cancelled request
    waits up to 5 s more. Nor `Client.call_tool`, which refuses a result for one odd block, and compiles the
    tool's output schema again for every client; the pool validates with one compiled validator per tool.
    """
    server.breaker.begin()
    pending.sendings += 1
    begun_s = time.perf_counter()
    answer = call_to_its_end(live.client.session, request, forms=server.forms)
    task = asyncio.create_task(answer)
    live.calls.add(task)
    task.add_done_callback(live.calls.discard)
    try:
        in_time = await settled(task, server.timeout_s)
    finally:
        pending.latency_s = time.perf_counter() - begun_s
        if not task.done():
            supervisor.keep(task).cancel()  # not awaited: the SDK tells the server, which may take 5 s
            supervisor.doubt(live, server.timeout_s)
    if not in_time:
        server.timed_out()
        raise CallFailed(FailureKind.TIMEOUT, f"no answer within {server.timeout_s:g} s")
    if task.cancelled():
        live.leave.set()
        raise CallLost("the connection was torn down during the call")
    error = task.exception()
    fault = None if error is None else classify(error)
    if isinstance(fault, CallLost):
        if fault.is_doubtful:
            supervisor.doubt(live, server.timeout_s)
        else:
            supervisor.lost(live, fault.text)
    else:
        live.is_shaky = False
        server.breaker.answered()
    if fault is not None:
        raise fault from error
    return task.result()


async def _restore(server: StartedServer, reset: ResetSection, supervisor: ServerSupervisor) -> None:
    """Bring the state back in which episodes begin. Raises CallFailed."""
    begun_s = time.perf_counter()
    if reset.command:
        await _run(reset)
    for call in reset.calls:
        pending = PendingCall(tool=call.tool, arguments=call.arguments, purpose=Purpose.SETUP)
        answer = await make_call(server, supervisor, pending)
        if answer.is_error:
            said, _ = cut_middle(render(answer.content, None), _SAID_CHARS)
            raise CallFailed(FailureKind.UPSTREAM, f"its reset failed: {call.tool} says {said}")
    server.reset_s = max(server.reset_s, time.perf_counter() - begun_s)


async def _run(reset: ResetSection) -> None:
    try:
        process = await asyncio.create_subprocess_exec(
            *reset.command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            start_new_session=True,
        )
    except OSError as error:
        raise CallFailed(FailureKind.UPSTREAM, f"its reset failed: {error}") from error
    try:
        async with asyncio.timeout(reset.timeout_s):
            _, said = await process.communicate()
    except TimeoutError:
        raise CallFailed(FailureKind.UPSTREAM, f"its reset took longer than {reset.timeout_s:g} s") from None
    finally:
        if process.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    if process.returncode:
        words, _ = cut_middle(SECRETS.text(said.decode("utf-8", "replace").strip()), _SAID_CHARS)
        raise CallFailed(FailureKind.UPSTREAM, f"its reset failed with {process.returncode}: {words}")


async def _sit_out(throttled: CallThrottled, pending: PendingCall, *, timeout_s: float) -> None:
    """Wait as long as the server asks, or longer each time if it does not say. Raises CallFailed if
    that would pass the call's deadline. The slot is kept: another call would fare no better.

    Not `core.values.backoff_s`: what the server asks is a floor here, and the sum of all waits doubles:
    it counts against the deadline of this one call."""
    least_s = _THROTTLED_FIRST_S + pending.throttled_s  # so it at least doubles, whatever the server says
    wait_s = max(throttled.retry_after_s or 0.0, least_s) * random.uniform(1.0, 1.25)
    if pending.throttled_s + wait_s > timeout_s:
        asked = throttled.retry_after_s
        text = f"{throttled.text}; it asks to wait {asked:g} s" if asked is not None else throttled.text
        raise CallFailed(FailureKind.UPSTREAM, f"{text}; the deadline is {timeout_s:g} s")
    pending.throttled_s += wait_s
    pending.waited_s += wait_s
    await asyncio.sleep(wait_s)


def _repeat_or_give_up(lost: CallLost, pending: PendingCall) -> None:
    """Return if the lost call is to be sent again; else raise CallFailed."""
    if lost.was_sent and not pending.is_safe:
        text = f"{lost.text}; it may have had its effect, and is not safe to repeat"
        raise CallFailed(FailureKind.UNKNOWN_OUTCOME, text) from lost
    if pending.sendings > pending.repeats:
        tries = f" (sent {pending.sendings} times)" if pending.sendings > 1 else ""
        raise CallFailed(FailureKind.CRASHED, lost.text + tries) from lost
