"""One connection to one server: opened by an owner task, called from any task, replaced when dead.

anyio ties cancel scopes to the task that entered them, and a transport failure cancels that task. So the
owner task enters and leaves the client and does nothing else; calls are made in the callers' own tasks.
This is the one place where exceptions of the SDK become a `FailureKind`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass

import anyio
from mcp import Client, MCPError
from mcp.types import (
    CONNECTION_CLOSED,
    INVALID_PARAMS,
    REQUEST_TIMEOUT,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    RequestParamsMeta,
    Tool,
)
from pydantic import ValidationError
from tenacity import AsyncRetrying, retry_if_exception, stop_after_attempt, wait_random_exponential

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind
from mcpagent.tools.transports import Launcher

log = logging.getLogger(__name__)

START_TIMEOUT_S = 60.0  # a cold `npx -y` or `uvx` takes up to 13 s on an idle machine

_REOPEN_ATTEMPTS = 4
_CANCEL_GRACE_S = 1.0
_CLOSE_TIMEOUT_S = 10.0  # the SDK's own escalation (EOF, SIGTERM, SIGKILL) takes up to 6.5 s
_LIST_PAGES_MAX = 1000


class CallFailed(Exception):
    """A call without a result."""

    def __init__(self, kind: FailureKind, text: str) -> None:
        super().__init__(text)
        self.kind = kind
        self.text = text


class OpenFailed(Exception):
    """A server did not start. `permanent` where another attempt cannot help (no such command)."""

    def __init__(self, text: str, *, permanent: bool = False) -> None:
        super().__init__(text)
        self.text = text
        self.permanent = permanent


@dataclass(frozen=True)
class _Live:
    """One generation of a connection; `leave` is set when its owner must leave or the peer is gone."""

    client: Client
    leave: asyncio.Event
    tools: tuple[Tool, ...]


class Connection:
    """A server as a place to send calls to. Bound to the running loop; the first call opens it."""

    def __init__(
        self,
        name: str,
        launcher: Launcher,
        *,
        lists_tools: bool = True,
        start_timeout_s: float = START_TIMEOUT_S,
    ) -> None:
        self.name = name
        self._launcher = launcher
        self._lists_tools = lists_tools
        self._start_timeout_s = start_timeout_s
        self._live: _Live | None = None
        self._opening: asyncio.Task[_Live] | None = None
        self._owners: set[asyncio.Task[None]] = set()
        self._closed = False

    async def open(self) -> tuple[Tool, ...]:
        """Start the server once, without a second attempt, and list its tools.

        Raises OpenFailed with the reason and the last lines of the server's stderr.
        """
        return (await self._ensure_live(attempts=1)).tools

    async def call(
        self,
        tool: str,
        arguments: JsonObject,
        *,
        meta: Mapping[str, str],
        timeout_s: float,
        repeats: int = 0,
    ) -> CallToolResult:
        """Make one call; its deadline starts when the server is up.

        A call that was lost with its server is sent again at most `repeats` times. Raises CallFailed.
        """
        request = CallToolRequest(
            params=CallToolRequestParams(name=tool, arguments=arguments, _meta=RequestParamsMeta(**meta))
        )
        for repeats_left in range(repeats, -1, -1):
            try:
                live = await self._ensure_live(attempts=_REOPEN_ATTEMPTS)
            except OpenFailed as error:
                raise CallFailed(FailureKind.CRASHED, error.text) from error
            try:
                return await self._send(live, request, timeout_s=timeout_s)
            except CallFailed as failure:
                if failure.kind is not FailureKind.CRASHED or not repeats_left:
                    raise
        raise AssertionError("unreachable: the last send returns or raises")

    async def close(self) -> None:
        """End the server. Never raises; waits at most 10 s."""
        self._closed = True
        if self._opening is not None:
            self._opening.cancel()
        if self._live is not None:
            self._live.leave.set()
        if self._owners:
            _, late = await asyncio.wait(self._owners, timeout=_CLOSE_TIMEOUT_S)
            for owner in late:
                owner.cancel()

    async def _ensure_live(self, *, attempts: int) -> _Live:
        if self._live is not None and not self._live.leave.is_set():
            return self._live
        if self._closed:
            raise OpenFailed(f"the connection to {self.name!r} is closed", permanent=True)
        if self._opening is None:
            self._opening = asyncio.create_task(self._open(attempts), name=f"open {self.name}")
            self._opening.add_done_callback(self._opened)
        opening = self._opening
        await asyncio.wait({opening})  # a caller that is cancelled must not end the start for its neighbours
        if opening.cancelled():
            raise OpenFailed(f"the connection to {self.name!r} was closed", permanent=True)
        return opening.result()

    def _opened(self, opening: asyncio.Task[_Live]) -> None:
        self._opening = None
        if not opening.cancelled() and opening.exception() is None:
            self._live = opening.result()
            if self._closed:
                self._live.leave.set()

    async def _open(self, attempts: int) -> _Live:
        retrying = AsyncRetrying(
            stop=stop_after_attempt(attempts),
            wait=wait_random_exponential(multiplier=0.2, max=5),
            retry=retry_if_exception(lambda e: isinstance(e, OpenFailed) and not e.permanent),
            reraise=True,
        )
        return await retrying(self._open_once)

    async def _open_once(self) -> _Live:
        ready: asyncio.Future[_Live] = asyncio.get_running_loop().create_future()
        owner = asyncio.create_task(self._own(ready), name=f"own {self.name}")
        self._owners.add(owner)
        owner.add_done_callback(self._owners.discard)
        try:
            await asyncio.wait({ready}, timeout=self._start_timeout_s)
        except asyncio.CancelledError:
            owner.cancel()  # also where it is just ready: nobody will learn of it
            raise
        if not ready.done():
            owner.cancel()
            ready.cancel()
            raise OpenFailed(self._with_log(f"no answer within {self._start_timeout_s:g} s of its start"))
        return ready.result()

    async def _own(self, ready: asyncio.Future[_Live]) -> None:
        """Enter the client, publish it, leave it when told to or when the server is gone."""
        leave = asyncio.Event()
        try:
            async with self._launcher.client(on_eof=leave.set) as client:
                tools = await _list_tools(client) if self._lists_tools else ()
                if not ready.done():
                    ready.set_result(_Live(client=client, leave=leave, tools=tools))
                    await leave.wait()
        except Exception as error:  # noqa: BLE001 - boundary: anything that a transport raises at start or end
            if not ready.done():
                ready.set_exception(self._open_error(error))
            else:
                log.debug("connection to %s ended: %s", self.name, _flat(error))
        finally:
            leave.set()
            if not ready.done() and not self._closed:
                ready.set_exception(OpenFailed(self._with_log("its start was cancelled by the transport")))

    async def _send(self, live: _Live, request: CallToolRequest, *, timeout_s: float) -> CallToolResult:
        """One attempt under a hard deadline.

        Not the SDK's own timeout: that one starts only after the request was written, and a cancelled
        request waits up to 5 s more. The session's `send_request`, not `Client.call_tool`: the latter
        compiles the tool's output schema again for every client, which costs an episode's own instance
        more than its calls; the pool validates with one compiled validator per tool.
        """
        task = asyncio.create_task(live.client.session.send_request(request, CallToolResult))
        try:
            await asyncio.wait({task}, timeout=timeout_s)
        finally:
            if not task.done():
                self._abandon(live, task)
        if not task.done():
            raise CallFailed(FailureKind.TIMEOUT, f"no answer within {timeout_s:g} s")
        if task.cancelled():
            live.leave.set()
            raise CallFailed(FailureKind.CRASHED, "the connection was torn down during the call")
        error = task.exception()
        if error is None:
            return task.result()
        failure = _classify(error)
        if failure.kind is FailureKind.CRASHED:
            live.leave.set()
        raise failure from error

    def _abandon(self, live: _Live, task: asyncio.Task[CallToolResult]) -> None:
        """Cancel without awaiting: the SDK tells the server, which takes up to 5 s where the pipe is full.

        A pipe that stays full never recovers by itself: the connection is replaced.
        """
        task.cancel()
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        if self._launcher.has_pipe:
            asyncio.get_running_loop().call_later(_CANCEL_GRACE_S, lambda: task.done() or live.leave.set())

    def _open_error(self, error: Exception) -> OpenFailed:
        if isinstance(error, FileNotFoundError):
            return OpenFailed(f"no such command or folder: {error.filename}", permanent=True)
        if isinstance(error, PermissionError):
            return OpenFailed(f"not allowed to run: {error.filename}", permanent=True)
        return OpenFailed(self._with_log(_flat(error)))

    def _with_log(self, text: str) -> str:
        tail = self._launcher.log_tail()
        return f"{text}; its last words:\n{tail}" if tail else text


async def _list_tools(client: Client) -> tuple[Tool, ...]:
    tools: list[Tool] = []
    cursor: str | None = None
    for _ in range(_LIST_PAGES_MAX):
        page = await client.list_tools(cursor=cursor)
        tools += page.tools
        cursor = page.next_cursor
        if cursor is None:
            return tuple(tools)
    raise RuntimeError(f"its tool list has more than {_LIST_PAGES_MAX} pages")


def _classify(error: BaseException) -> CallFailed:
    """The failure behind an exception of the SDK. The order matters: a ValidationError is a ValueError."""
    match error:
        case MCPError(code=code, message=message) if code == CONNECTION_CLOSED:
            return CallFailed(FailureKind.CRASHED, f"the server died during the call ({message})")
        case MCPError(code=code, message=message) if code == REQUEST_TIMEOUT:
            return CallFailed(FailureKind.TIMEOUT, message)
        case MCPError(code=code, message=message) if code == INVALID_PARAMS:
            unknown = "unknown tool" in message.lower()
            return CallFailed(FailureKind.UNKNOWN_TOOL if unknown else FailureKind.INVALID_ARGUMENTS, message)
        case MCPError(code=code, message=message):
            return CallFailed(FailureKind.SCHEMA, f"the server answered with error {code}: {message}")
        case ValidationError():
            return CallFailed(FailureKind.SCHEMA, f"the server sent a malformed result: {_flat(error)}")
        case RecursionError() | ValueError() | TypeError():
            return CallFailed(FailureKind.INVALID_ARGUMENTS, f"the arguments cannot be sent: {_flat(error)}")
        case OSError() | anyio.ClosedResourceError() | anyio.BrokenResourceError():
            return CallFailed(FailureKind.CRASHED, f"the transport failed: {_flat(error)}")
        case _:
            return CallFailed(FailureKind.SCHEMA, f"the call broke down: {_flat(error)}")


def _flat(error: BaseException) -> str:
    """One line for an error, also for the nested groups in which anyio wraps one."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    first_line = str(error).strip().partition("\n")[0]
    return f"{type(error).__name__}: {first_line}" if first_line else type(error).__name__
