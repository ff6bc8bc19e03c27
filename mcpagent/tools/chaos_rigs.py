"""A server behind a proxy of ours, over either transport, and how it is struck there."""

from __future__ import annotations

import asyncio
import sys
import tempfile
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from mcpagent.tools import chaos_proxy
from mcpagent.tools.chaos_http_proxy import AnswerFault, HttpProxy
from mcpagent.tools.chaos_proxy import CallFault
from mcpagent.tools.processes import MARK_ENV, Process, kill, marked, readers_of, stop
from mcpagent.tools.servers_config import HttpServer, StdioServer
from mcpagent.tools.wire import MAX_MESSAGE_BYTES

_CALLS = 2  # in flight when a fault strikes: one that reads, one that writes
_AWAY_S = 3.0
_OVERSIZE_BYTES = MAX_MESSAGE_BYTES + 2**20


class ChaosFault(StrEnum):
    """What is done to a server."""

    NONE = "none"  # the control: it is started, called and stopped
    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, and never SIGCONT
    CUT = "cut"  # the connection ends in the middle of an answer
    HANG = "hang"  # a call is never answered
    SLOW = "slow"  # an answer comes in pieces, over half its deadline
    OVERSIZE = "oversize"  # an answer is larger than is taken
    GARBAGE = "garbage"  # over stdio noise, then an answer that is no JSON
    ERRORS = "errors"  # HTTP 500 for a call, and HTTP 503 for everything during a second
    SESSION = "session"  # HTTP 404: the session is not known any more
    SLOW_START = "slow_start"  # killed, and its next start takes 3 s longer; over HTTP: nobody there for 3 s
    DRIFT = "drift"  # killed (over HTTP: as above), and back with other descriptions and arguments


_ON_PROCESSES = (ChaosFault.KILL, ChaosFault.STOP)
_ON_HTTP = (ChaosFault.CUT, ChaosFault.SLOW, ChaosFault.ERRORS, ChaosFault.SESSION)


def faults_of(server: StdioServer | HttpServer) -> tuple[ChaosFault, ...]:
    """Those that there are for the transport of a server, NONE first."""
    others = _ON_HTTP if isinstance(server, StdioServer) else _ON_PROCESSES
    return tuple(fault for fault in ChaosFault if fault not in others)


class Rig(Protocol):
    """A server that can be struck."""

    @property
    def server(self) -> StdioServer | HttpServer:
        """The server as it is reached through its proxy."""
        ...

    def why_not(self, fault: ChaosFault) -> str:
        """Why this server cannot have the fault; empty if it can. Known once it has answered."""
        ...

    def before_calls(self, fault: ChaosFault) -> None:
        """What must be there before the calls that it befalls."""
        ...

    def have_calls_arrived(self) -> bool:
        """Whether the calls that it befalls are in flight."""
        ...

    async def with_calls(self, fault: ChaosFault) -> None:
        """What strikes the calls that are in flight."""
        ...


@asynccontextmanager
async def rig(server: StdioServer | HttpServer, *, mark: str, slow_s: float) -> AsyncGenerator[Rig]:
    """Put a proxy before a server. Its processes carry `mark`; SLOW answers take `slow_s`."""
    if isinstance(server, StdioServer):
        with tempfile.TemporaryDirectory(prefix="mcpagent-chaos-") as folder:
            yield _StdioRig(server, control=Path(folder), mark=mark)
    else:
        async with HttpProxy(server, slow_s=slow_s) as proxy:
            rigged = _HttpRig(replace(server, url=proxy.url, isolation="shared", timeout_s=None), proxy)
            try:
                yield rigged
            finally:
                await rigged.end()


class _StdioRig:
    def __init__(self, server: StdioServer, *, control: Path, mark: str) -> None:
        self.server = replace(
            server,
            command=sys.executable,
            args=("-I", chaos_proxy.__file__, str(control), server.command, *server.args),
            env={**server.env, MARK_ENV: mark},
            isolation="shared",
            timeout_s=None,
        )
        self._control = control
        self._mark = mark

    def why_not(self, fault: ChaosFault) -> str:
        return ""

    def before_calls(self, fault: ChaosFault) -> None:
        match fault:
            case ChaosFault.STOP:
                stop(self._processes())
            case ChaosFault.HANG | ChaosFault.KILL:
                self._befall(CallFault.HANG)  # where it is killed: so that the calls are in flight
            case ChaosFault.OVERSIZE:
                self._befall(f"{CallFault.OVERSIZE}:{_OVERSIZE_BYTES}")
            case ChaosFault.GARBAGE:
                self._befall(CallFault.GARBAGE)
            case ChaosFault.SLOW_START:
                self._befall(CallFault.HANG)
                self._tell("start", str(_AWAY_S))
            case ChaosFault.DRIFT:
                self._befall(CallFault.HANG)
                self._tell("drift", "")
            case _:
                pass

    def have_calls_arrived(self) -> bool:
        return not list(self._control.glob("call-*"))

    async def with_calls(self, fault: ChaosFault) -> None:
        if fault in (ChaosFault.KILL, ChaosFault.SLOW_START, ChaosFault.DRIFT):
            kill(self._processes())

    def _befall(self, fault: str) -> None:
        for number in range(_CALLS):
            self._tell(f"call-{number}", fault)

    def _tell(self, name: str, text: str) -> None:
        """Whole or not at all: the proxy may look at any moment."""
        draft = self._control / f"draft-{name}"
        draft.write_text(text)
        draft.rename(self._control / name)

    def _processes(self) -> list[Process]:
        everything = marked(self._mark)
        proxy = next(process for process in everything if chaos_proxy.__file__ in process.command)
        below = [process for process in everything if process.pid != proxy.pid]
        return readers_of(next(process for process in below if process.parent == proxy.pid), below)


_ANSWER_FAULTS = {
    ChaosFault.CUT: AnswerFault.CUT,
    ChaosFault.HANG: AnswerFault.HANG,
    ChaosFault.SLOW: AnswerFault.SLOW,
    ChaosFault.OVERSIZE: AnswerFault.OVERSIZE,
    ChaosFault.GARBAGE: AnswerFault.GARBAGE,
    ChaosFault.ERRORS: AnswerFault.ERROR,
    ChaosFault.SLOW_START: AnswerFault.HANG,  # so that the calls are in flight when it goes away
    ChaosFault.DRIFT: AnswerFault.HANG,
}


@dataclass
class _HttpRig:
    server: HttpServer
    proxy: HttpProxy
    _returning: asyncio.Task[None] | None = None

    def why_not(self, fault: ChaosFault) -> str:
        is_lost = fault is ChaosFault.SESSION and not self.proxy.has_sessions
        return "it opens no sessions, so none can be lost" if is_lost else ""

    def before_calls(self, fault: ChaosFault) -> None:
        if fault is ChaosFault.SESSION:
            self.proxy.forget_sessions()
        elif fault in _ANSWER_FAULTS:
            self.proxy.faults += [_ANSWER_FAULTS[fault]] * _CALLS

    def have_calls_arrived(self) -> bool:
        return not self.proxy.faults

    async def with_calls(self, fault: ChaosFault) -> None:
        if fault in (ChaosFault.SLOW_START, ChaosFault.DRIFT):
            self.proxy.has_drifted = fault is ChaosFault.DRIFT
            self.proxy.forget_sessions()
            await self.proxy.leave()
            self._returning = asyncio.create_task(self._return())

    async def end(self) -> None:
        if self._returning is not None:
            self._returning.cancel()
            await asyncio.wait({self._returning})

    async def _return(self) -> None:
        await asyncio.sleep(_AWAY_S)
        await self.proxy.listen()
