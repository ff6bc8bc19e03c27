"""Supervises one server: starts it, checks its health, restarts it with a backoff when it is dead or hangs.

anyio ties cancel scopes to the task that entered them, and a transport failure cancels that task. So the
owner task enters and leaves the client and does nothing else; calls are made in the callers' own tasks.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from mcp import Client, MCPError
from mcp.types import EmptyResult, PingRequest
from pydantic import ValidationError

from mcpagent.core.hidden_text import printable
from mcpagent.core.tools import FailureKind
from mcpagent.tools.catalog import CatalogChange, ToolList, read_tool_list
from mcpagent.tools.faults import (
    CallFailed,
    CallLost,
    LoginNeeded,
    OpenFailed,
    ServerEnded,
    classify,
    flat,
    innermost,
)
from mcpagent.tools.limits import CircuitBreaker, settled
from mcpagent.tools.transports.open import Launcher
from mcpagent.tools.wire import FORBIDDEN, LOGIN_NEEDED, NOT_SENT, RESPONSE_LOST
from mcpagent.tools.workspace import WorkspaceCopy

PING_TIMEOUT_S = 10.0  # less if the deadline of the call that made us doubt was shorter


@dataclass(eq=False)
class Live:
    """One running instance of a server; `leave` is set when its owner must leave or the server is gone."""

    client: Client
    leave: asyncio.Event
    tool_list: ToolList
    number: int  # 1 for the first
    change: CatalogChange  # of its tools since the run began, by its latest list
    listing: asyncio.Lock = field(default_factory=asyncio.Lock)  # held while its tools are listed again
    lists_asked: int = 0
    last_list: int = 0  # whose end was waited for
    health_check: asyncio.Task[None] | None = None  # while it runs, calls wait for it
    is_shaky: bool = False  # its last call was lost, though not the connection: calls wait out the backoff
    fault: str = ""  # why it has to end; empty if it ends by itself
    is_counted: bool = False  # the breaker knows its end already
    calls: set[asyncio.Task[Any]] = field(default_factory=set)  # sent, and not yet answered


def _lost(asked: asyncio.Task[Any]) -> CallLost | None:
    """Return how the exchange of a ping was lost; None if it was answered, if only by a refusal: revision
    2026-07-28 has dropped ping."""
    if asked.cancelled():
        return CallLost("the connection has ended", is_doubtful=True)
    error = asked.exception()
    fault = None if error is None else classify(error)
    return fault if isinstance(fault, CallLost) else None


async def _ping(client: Client) -> EmptyResult:
    return await client.session.send_request(PingRequest(), EmptyResult)


log = logging.getLogger(__name__)

_LAST_ANSWERS_S = 5.0  # for what was sent before the session was lost; new calls do not wait for it
_CLOSE_TIMEOUT_S = 10.0  # the SDK's own escalation (EOF, SIGTERM, SIGKILL) takes up to 6.5 s


class ServerSupervisor:
    """Keeps one server running. Bound to the running loop; the first `up` starts it.

    `breaker` belongs to the server, so several supervisors may share it. `on_tool_list` sees every tool list,
    says what of it has changed, and may raise OpenFailed; that of a new generation is read if `lists_tools`.
    `on_death` is told why an instance ended that was not to end. `workspace` is the copy that it works on.
    """

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        *,
        breaker: CircuitBreaker,
        start_timeout_s: float,
        on_tool_list: Callable[[ToolList], CatalogChange],
        lists_tools: bool,
        on_restart: Callable[[], None],
        on_death: Callable[[str], None],
        workspace: WorkspaceCopy | None,
    ) -> None:
        self.workspace = workspace
        self.name = name
        self.start_timeout_s = start_timeout_s
        self._launcher = launcher
        self._breaker = breaker
        self._on_tool_list = on_tool_list
        self._lists_tools = lists_tools
        self._on_restart = on_restart
        self._on_death = on_death
        self._generations = 0
        self._live: Live | None = None
        self._opening: asyncio.Task[Live] | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._unawaited: set[asyncio.Task[Any]] = set()
        self._closed = False

    async def open(self) -> ToolList:
        """Start the server once, without a second attempt.

        Raises OpenFailed with the reason and the last lines of the server's stderr.
        """
        opening = self._begin(self._open_once())
        await asyncio.wait({opening})
        if opening.cancelled():
            raise OpenFailed("it was closed while it started", permanent=True)
        return opening.result().tool_list

    async def up(self, patience_s: float) -> Live:
        """Return the running instance; started or waited for, at most `patience_s`.

        Raises CallFailed; at once if the breaker is open.
        """
        live = self._live
        if live is not None and self.is_fit(live):
            return live
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + patience_s
        while True:
            awaited = self._what_to_wait_for()
            if isinstance(awaited, Live):
                return awaited
            if not await settled(awaited, max(0.0, give_up_s - loop.time())):
                text = f"the server was not up within {self.start_timeout_s:g} s"
                last = f" (last: {self._breaker.reason})" if self._breaker.reason else ""
                raise CallFailed(FailureKind.CRASHED, text + last)
            if not awaited.cancelled() and (error := awaited.exception()) is not None:
                if isinstance(error, OpenFailed) and error.login is not None:
                    raise LoginNeeded(error.text, error.login) from error
                raise CallFailed(FailureKind.CRASHED, str(error)) from error

    def is_fit(self, live: Live) -> bool:
        """Return whether a call may be sent now."""
        if live.leave.is_set() or live.health_check is not None:
            return False
        return not (live.is_shaky and self._breaker.delay_s)

    def doubt(self, live: Live, patience_s: float) -> None:
        """Check the health of the server, and restart it if it does not answer within `patience_s`
        (at most 10 s).

        New calls wait for the verdict instead of being sent to a server that may be stopped."""
        self._check_health(live, min(patience_s, PING_TIMEOUT_S), is_doubted=True)

    def lost(self, live: Live, reason: str) -> None:
        """Note that a call or its answer was lost on the way, though not the connection.

        It may be a service that is being restarted. While it does not answer, new calls wait as they do
        for a server that starts: at most `start_timeout_s`."""
        live.is_shaky = True
        self._breaker.failed(reason)
        if self._breaker.refusal is None:
            self._check_health(live, PING_TIMEOUT_S, is_doubted=False)

    async def change_now(self) -> CatalogChange:
        """List the tools again and return what has changed since the run began, as far as that can be read.
        Calls that fail at the same time share a list: it only has to be asked for after their failure. Raises
        CallFailed if the change is refused."""
        live = self._live
        if live is None:
            return CatalogChange()
        before = live.lists_asked
        async with live.listing:
            if live.last_list <= before and not live.leave.is_set():
                live.lists_asked = number = live.lists_asked + 1
                asked = self.keep(asyncio.create_task(read_tool_list(live.client)))
                try:
                    in_time = await settled(asked, PING_TIMEOUT_S)
                finally:
                    asked.cancel()
                live.last_list = number
                if in_time and not asked.cancelled() and asked.exception() is None:
                    self._take(live, asked.result())
        if live.fault:
            raise CallFailed(FailureKind.CHANGED, live.fault)
        return live.change

    def _take(self, live: Live, tool_list: ToolList) -> None:
        """Note the tools that an instance has now; end it if they are refused."""
        try:
            live.change = self._on_tool_list(tool_list)
        except OpenFailed as refused:  # the next start says so again, to the calls that wait for it
            live.fault = refused.text
            live.leave.set()

    def keep(self, task: asyncio.Task[Any]) -> asyncio.Task[Any]:
        """Hold a task that may be waited for by no caller until it is done, and take its exception."""
        self._unawaited.add(task)
        task.add_done_callback(self._unawaited.discard)
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def close(self) -> None:
        """End the server, and remove its workspace. Waits at most 10 s."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._live is not None:
            self._live.leave.set()
        for task in self._unawaited:
            task.cancel()
        if unfinished := self._owners | self._unawaited:
            _, late = await asyncio.wait(unfinished, timeout=_CLOSE_TIMEOUT_S)
            for task in late:
                task.cancel()
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.remove)

    def _check_health(self, live: Live, timeout_s: float, *, is_doubted: bool) -> None:
        """Start `live.health_check`, unless one runs: it pings the server until it answers, is known to be
        gone or, after `start_timeout_s`, the breaker opens. One that does not answer a ping within
        `timeout_s` is restarted if it `is_doubted` already.

        Over HTTP the service may be away for a while, because another program restarts it. It may come back
        as another version, so its tools are listed anew and shown to `on_tool_list`."""
        if live.health_check is None and not live.leave.is_set() and not self._closed:
            watching = self._watch(live, timeout_s, is_doubted=is_doubted)
            live.health_check = self.keep(asyncio.create_task(watching, name=f"health check of {self.name}"))

    async def _watch(self, live: Live, timeout_s: float, *, is_doubted: bool) -> None:
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self.start_timeout_s
        ask: Callable[[Client], Any] = _ping
        try:
            while not live.leave.is_set():
                asked = self.keep(asyncio.create_task(ask(live.client)))
                try:
                    in_time = await settled(asked, timeout_s)
                finally:
                    asked.cancel()  # not awaited: the SDK tells the server, which may take 5 s
                if not in_time:
                    if is_doubted:
                        live.fault = (
                            f"a call timed out, and then it did not answer a ping within {timeout_s:g} s; "
                            "if it takes one call at a time, lower "
                            f"tools.per_server.{self.name}.max_in_flight"
                        )
                        live.leave.set()
                    return
                lost = _lost(asked)
                if lost is None or lost.is_doubtful or live.leave.is_set():  # it forgot our session
                    if ask is read_tool_list:
                        self._breaker.answered()
                    self._conclude(live, lost, asked)
                    return
                live.is_shaky = True
                self._breaker.failed(lost.text, may_return=loop.time() < give_up_s)
                if self._breaker.refusal is not None:
                    return
                ask = read_tool_list
                await asyncio.sleep(self._breaker.delay_s)
        finally:
            live.health_check = None

    def _conclude(self, live: Live, lost: CallLost | None, asked: asyncio.Task[Any]) -> None:
        """End an instance whose connection is gone, or that came back with tools that are refused."""
        if lost is not None:
            live.leave.set()
        elif asked.exception() is None and isinstance(asked.result(), ToolList):
            self._take(live, asked.result())

    def _what_to_wait_for(self) -> Live | asyncio.Task[Any]:
        live = self._live
        if live is not None and live.leave.is_set():
            self._note_end(live)
            live = None
        if live is not None and live.health_check is not None:
            return live.health_check
        if self._opening is not None:
            return self._opening
        if self._closed:
            raise CallFailed(FailureKind.CRASHED, f"the connection to {self.name!r} is closed")
        if live is not None and self.is_fit(live):
            return live
        if (refusal := self._breaker.refusal) is not None:
            raise CallFailed(FailureKind.CRASHED, refusal)
        if live is not None:
            return self.keep(asyncio.create_task(asyncio.sleep(self._breaker.delay_s)))
        return self._begin(self._open())

    def _begin(self, opening: Coroutine[Any, Any, Live]) -> asyncio.Task[Live]:
        """Start in a task of its own: a caller that is cancelled must not end it for its neighbours."""
        self._opening = asyncio.create_task(opening, name=f"open {self.name}")
        self._opening.add_done_callback(self._opened)
        return self._opening

    def _opened(self, opening: asyncio.Task[Live]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._live = opening.result()
            if self._closed:
                self._live.leave.set()

    async def _open(self) -> Live:
        """Start attempts, each after the breaker's backoff, until one succeeds or the breaker opens. One that
        is away is tried for as long as it may take to start; by the one try of a half-open breaker, once."""
        await asyncio.sleep(self._breaker.delay_s)
        if (refusal := self._breaker.refusal) is not None:  # another connection of the server is the one try
            raise OpenFailed(refusal)
        loop = asyncio.get_running_loop()
        give_up_s = loop.time() + self.start_timeout_s
        while True:
            try:
                return await self._open_once()
            except OpenFailed as error:
                may_return = error.is_away and loop.time() < give_up_s
                self._breaker.failed(error.text, is_lasting=error.permanent, may_return=may_return)
                if self._breaker.refusal is not None:
                    raise
            await asyncio.sleep(self._breaker.delay_s)

    async def _open_once(self) -> Live:
        ready: asyncio.Future[Live] = asyncio.get_running_loop().create_future()
        self._breaker.begin()
        owner = asyncio.create_task(self._run(ready), name=f"run {self.name}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        try:
            if not await settled(ready, self.start_timeout_s):
                owner.cancel()
                ready.cancel()
                # Lasting: with another attempt every waiting call would hang as long again.
                text = f"no answer within {self.start_timeout_s:g} s of its start"
                raise OpenFailed(self._with_log(text), permanent=True)
            live = ready.result()
        except asyncio.CancelledError:
            owner.cancel()  # also if it is just ready: no caller will learn of it
            raise
        if live.number > 1:
            self._on_restart()
        return live

    async def _run(self, ready: asyncio.Future[Live]) -> None:
        """Enter the client, publish it, leave it when told to or when the server is gone."""
        leave = asyncio.Event()
        live: Live | None = None

        def on_end(ended: ServerEnded) -> None:
            if ended.is_lasting:  # another process of the server would do so again, between two answers
                self._breaker.failed(str(ended), is_lasting=True)
            if live is not None:
                live.fault, live.is_counted = str(ended), ended.is_lasting

        def on_tools_changed() -> None:
            if live is not None:
                self.keep(asyncio.create_task(self.change_now(), name=f"tools of {self.name}"))

        opened = self._launcher.client(on_eof=leave.set, on_end=on_end, on_tools_changed=on_tools_changed)
        try:
            async with opened as client:
                tool_list, change = ToolList(), CatalogChange()
                if self._lists_tools:
                    tool_list = await read_tool_list(client)
                    change = self._on_tool_list(tool_list)
                if not ready.done():
                    self._generations += 1
                    live = Live(
                        client=client,
                        leave=leave,
                        tool_list=tool_list,
                        number=self._generations,
                        change=change,
                    )
                    ready.set_result(live)
                    await leave.wait()
                    may_answer = not live.fault and not self._closed  # as a session that HTTP has forgotten
                    self._note_end(live)
                    if live.calls and may_answer:
                        await asyncio.wait(live.calls, timeout=_LAST_ANSWERS_S)
        except Exception as error:  # noqa: BLE001 - boundary: anything that a transport raises at start or end
            if not ready.done():
                ready.set_exception(self._open_error(error))
            else:
                log.debug("connection to %s ended: %s", self.name, flat(error))
        finally:
            leave.set()
            if not ready.done() and not self._closed:
                ready.set_exception(OpenFailed(self._with_log("its start was cancelled by the transport")))

    def _note_end(self, live: Live) -> None:
        """Count the end of an instance, once, unless we ended it ourselves."""
        if self._live is live:
            self._live = None
            if self._closed:
                return
            reason = live.fault or "it ended by itself"
            self._on_death(reason)
            if not live.is_counted:
                self._breaker.failed(reason)

    def _open_error(self, error: Exception) -> OpenFailed:
        match innermost(error):
            case OpenFailed() as failed:
                return failed
            case ServerEnded(is_lasting=is_lasting) as ended:
                return OpenFailed(self._with_log(str(ended)), permanent=is_lasting)
            case FileNotFoundError(filename=missing):
                return OpenFailed(f"no such command or folder: {missing}", permanent=True)
            case PermissionError(filename=forbidden):
                return OpenFailed(f"not allowed to run: {forbidden}", permanent=True)
            case MCPError(code=code, message=refused, data={"remedy": remedy}) if code == LOGIN_NEEDED:
                return OpenFailed(refused, permanent=True, login=remedy)
            case MCPError(code=code, message=refused) if code == FORBIDDEN:
                return OpenFailed(refused, permanent=True)
            case MCPError(code=code, message=lost) if code in (NOT_SENT, RESPONSE_LOST):
                return OpenFailed(self._with_log(lost), is_away=True)
            case ValidationError() as malformed:
                return OpenFailed(self._with_log(f"its answer is malformed: {flat(malformed)}"))
            case inner:
                return OpenFailed(self._with_log(flat(inner)))

    def _with_log(self, text: str) -> str:
        tail = self._launcher.log_tail()
        return f"{text}; its last words:\n{printable(tail)}" if tail else text
