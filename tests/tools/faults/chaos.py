"""Inject faults into a server, and record what an episode sees of them.

Every trial reaches the server through a proxy, injects one fault while a reading and a writing episode wait
for a call, and starts new episodes until one gets an answer. No tool of the server is
called: the proxy answers for it, so nothing of the user's is written or deleted.
"""

from __future__ import annotations

import asyncio
import secrets
import signal
import sys
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Iterable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Protocol

import psutil

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.records import CheckStatus, Record
from mcpagent.core.tools import FailureKind, ToolCall
from mcpagent.errors import UserError
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, StdioServer
from mcpagent.tools.wire import MAX_MESSAGE_BYTES
from tests.tools.faults import stdio_proxy
from tests.tools.faults.http_proxy import AnswerFault, HttpProxy
from tests.tools.faults.stdio_proxy import READ_TOOL, WRITE_TOOL, CallFault

_CALLS = 2  # in flight when a fault is injected: one that reads, one that writes
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
    GARBAGE = "garbage"  # over stdio noise, then an answer that is not JSON
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


class FaultInjector(Protocol):
    """A server behind a proxy that can inject faults."""

    @property
    def server(self) -> StdioServer | HttpServer:
        """The server as it is reached through its proxy."""
        ...

    def why_not(self, fault: ChaosFault) -> str:
        """Why this server cannot have the fault; empty if it can. Known once it has answered."""
        ...

    def before_calls(self, fault: ChaosFault) -> None:
        """Prepare the fault, before the calls that it happens to are sent."""
        ...

    def have_calls_arrived(self) -> bool:
        """Whether the calls that the fault happens to are in flight."""
        ...

    async def with_calls(self, fault: ChaosFault) -> None:
        """Inject the fault while the calls are in flight."""
        ...


STARTED_BY_ENV = "MCPAGENT_STARTED_BY"  # inherited by all processes of a server


@asynccontextmanager
async def fault_injector(
    server: StdioServer | HttpServer, *, mark: str, slow_s: float
) -> AsyncGenerator[FaultInjector]:
    """A proxy before a server. Its processes carry `mark`; SLOW answers take `slow_s`."""
    if isinstance(server, StdioServer):
        with tempfile.TemporaryDirectory(prefix="mcpagent-chaos-") as folder:
            yield _StdioInjector(server, control=Path(folder), mark=mark)
    else:
        async with HttpProxy(server, slow_s=slow_s) as proxy:
            injector = _HttpInjector(
                replace(
                    server,
                    url=proxy.url,
                    isolation="shared",
                    timeout_s=None,
                ),
                proxy,
            )
            try:
                yield injector
            finally:
                await injector.end()


class _StdioInjector:
    def __init__(self, server: StdioServer, *, control: Path, mark: str) -> None:
        self.server = replace(
            server,
            command=sys.executable,
            args=("-I", stdio_proxy.__file__, str(control), server.command, *server.args),
            env={**server.env, STARTED_BY_ENV: mark},
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
                send(signal.SIGSTOP, self._processes())
            case ChaosFault.HANG | ChaosFault.KILL:
                self._inject(CallFault.HANG)  # where it is killed: so that the calls are in flight
            case ChaosFault.OVERSIZE:
                self._inject(f"{CallFault.OVERSIZE}:{_OVERSIZE_BYTES}")
            case ChaosFault.GARBAGE:
                self._inject(CallFault.GARBAGE)
            case ChaosFault.SLOW_START:
                self._inject(CallFault.HANG)
                self._tell("start", str(_AWAY_S))
            case ChaosFault.DRIFT:
                self._inject(CallFault.HANG)
                self._tell("drift", "")
            case _:
                pass

    def have_calls_arrived(self) -> bool:
        return not list(self._control.glob("call-*"))

    async def with_calls(self, fault: ChaosFault) -> None:
        if fault in (ChaosFault.KILL, ChaosFault.SLOW_START, ChaosFault.DRIFT):
            send(signal.SIGKILL, self._processes())

    def _inject(self, fault: str) -> None:
        for number in range(_CALLS):
            self._tell(f"call-{number}", fault)

    def _tell(self, name: str, text: str) -> None:
        """Whole or not at all: the proxy may look at any moment."""
        draft = self._control / f"draft-{name}"
        draft.write_text(text)
        draft.rename(self._control / name)

    def _processes(self) -> list[psutil.Process]:
        everything = marked(self._mark)
        proxy = next(process for process in everything if stdio_proxy.__file__ in command(process))
        below = [process for process in everything if process.pid != proxy.pid]
        return readers_of(next(process for process in below if process.ppid() == proxy.pid), below)


def readers_of(process: psutil.Process, among: Iterable[psutil.Process]) -> list[psutil.Process]:
    """Those that have the same stdin as a process, itself included: below a wrapper such as `npx` or `uvx`,
    the server. Without /proc, where psutil cannot tell either: every one of them."""
    try:
        pipe = _stdin(process)
        return [other for other in among if _stdin(other) == pipe]
    except OSError:
        return list(among)


def _stdin(process: psutil.Process) -> Path:
    return Path(f"/proc/{process.pid}/fd/0").readlink()


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
class _HttpInjector:
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


_GRACE_S = 3.0  # a process that was just killed, or a transport that was just closed, takes a moment
_POLL_S = 0.05


class Leaks(Record):
    """`processes` are command lines of what still runs, `tasks` names of unfinished asyncio tasks, `files`
    the number of descriptors more than before."""

    processes: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    files: int = 0

    def problems(self) -> list[str]:
        """A sentence for each kind; empty where nothing leaked."""
        return [
            *(f"leaked the process {command!r}" for command in self.processes),
            *(f"leaked the task {name!r}" for name in self.tasks),
            *([f"leaked {self.files} open files"] if self.files else []),
        ]


def command(process: psutil.Process) -> str:
    """The command line; empty for a process that is gone."""
    with suppress(psutil.Error):
        return " ".join(process.cmdline())
    return ""


def send(number: signal.Signals, processes: Iterable[psutil.Process]) -> None:
    """Send a signal to each; one that is gone already is not an error."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)


def marked(mark: str) -> list[psutil.Process]:
    """Every running process of ours that was started with `STARTED_BY_ENV=mark`."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or gone by now
            if process.environ().get(STARTED_BY_ENV) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


class LeakWatch:
    """Compares what there is with what there was when it was made. `mark` is that of the server's processes
    (`STARTED_BY_ENV`). Nothing else may start in this process meanwhile."""

    def __init__(self, mark: str) -> None:
        self._mark = mark
        self._tasks = asyncio.all_tasks()
        self._files = psutil.Process().num_fds()

    async def leaks(self) -> Leaks:
        """What is still there 3 s after the end; at once where nothing is."""
        end_s = asyncio.get_running_loop().time() + _GRACE_S
        while (leaks := self._now()).problems() and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_POLL_S)
        return leaks

    def _now(self) -> Leaks:
        return Leaks(
            processes=tuple(command(process) for process in marked(self._mark)),
            tasks=tuple(task.get_name() for task in asyncio.all_tasks() - self._tasks if not task.done()),
            files=max(0, psutil.Process().num_fds() - self._files),
        )


_SHOWN_CHARS = 500


class Seen(Record):
    """What one call of an episode came to. `failure` None: an answer. An infrastructure failure leaves the
    episode unscored; it never becomes reward."""

    failure: FailureKind | None
    text: str
    took_s: float

    @property
    def is_scored(self) -> bool:
        """Whether an episode with this call gets a reward."""
        return self.failure is None or not self.failure.is_infrastructure


class ChaosResult(Record):
    """One fault on one server. `read` and `write` are what the calls in flight came to, None where a call
    never ended; `recovery_s` is the time from the fault to the first answer to a new episode, None where none
    came. `ended` are the commands of processes that outlived the server, and were ended; `notes` are what the
    pool told a person meanwhile."""

    server: str
    fault: ChaosFault
    status: CheckStatus
    detail: str
    read: Seen | None = None
    write: Seen | None = None
    recovery_s: float | None = None
    restarts: int = 0
    leaks: Leaks | None = None
    ended: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChaosLimits:
    """`call_s` is the deadline of a call, `recovery_s` how long a server may take to answer again."""

    call_s: float = 3.0
    recovery_s: float = 30.0


async def chaos(
    config: StdioServer | HttpServer,
    *,
    faults: Sequence[ChaosFault] | None = None,
    limits: ChaosLimits = ChaosLimits(),
    on_result: Callable[[ChaosResult], None] = lambda _: None,
) -> list[ChaosResult]:
    """One result for each fault; None is every one that there is for its transport. Where the server does not
    even answer without one, only that is reported."""
    results: list[ChaosResult] = []
    for fault in faults_of(config) if faults is None else faults:
        results.append(await _trial(config, fault, limits))
        on_result(results[-1])
        if fault is ChaosFault.NONE and results[-1].status is CheckStatus.FAIL:
            break
    return results


async def _trial(config: StdioServer | HttpServer, fault: ChaosFault, limits: ChaosLimits) -> ChaosResult:
    mark = secrets.token_hex(8)
    notes: list[str] = []
    problems: list[str] = []
    watch = LeakWatch(mark)
    trial = _Trial(config.name, fault, limits)
    ended: list[str] = []
    try:
        async with fault_injector(config, mark=mark, slow_s=limits.call_s / 2) as injector:
            pool = ToolPool([injector.server], ToolsConfig(timeout_s=limits.call_s), on_note=notes.append)
            async with pool:
                await trial.run(pool, injector)
                problems += trial.problems()
            ended += pool.left_behind.get(config.name, [])
        if fault is ChaosFault.DRIFT and not any("other tools" in note for note in notes):
            problems.append("nobody was told that the tools had changed")
    except UserError as error:
        problems.append(error.message)
    finally:
        leaks = await watch.leaks()
        send(signal.SIGKILL, marked(mark))
    problems += leaks.problems()
    status = CheckStatus.WARN if ended else CheckStatus.PASS
    status = CheckStatus.SKIP if trial.not_possible else status
    return ChaosResult(
        server=config.name,
        fault=fault,
        status=CheckStatus.FAIL if problems else status,
        detail="; ".join(problems) or trial.not_possible,
        read=trial.read,
        write=trial.write,
        recovery_s=trial.recovery_s,
        restarts=trial.restarts,
        leaks=leaks,
        ended=tuple(ended),
        notes=tuple(notes),
    )


@dataclass
class _Trial:
    """One fault; single use. Afterwards the fields below `limits` hold what was seen."""

    server: str
    fault: ChaosFault
    limits: ChaosLimits
    read: Seen | None = None
    write: Seen | None = None
    recovery_s: float | None = None
    restarts: int = 0
    is_sound: bool = False  # it answered before the fault
    not_possible: str = ""  # why the fault does not exist for this server

    async def run(self, pool: ToolPool, injector: FaultInjector) -> None:
        """Inject the fault while two episodes wait for a call; start new ones until one gets an answer."""
        self.is_sound = (await self._new_episode(pool)).failure is None
        if not self.is_sound:
            return
        self.not_possible = injector.why_not(self.fault)
        if self.not_possible:
            return
        async with pool.session() as reader, pool.session() as writer:
            injector.before_calls(self.fault)
            read = asyncio.create_task(self._call(reader, READ_TOOL))
            write = asyncio.create_task(self._call(writer, WRITE_TOOL))
            # Longer than a call may take with all its repeats and restarts.
            end_s = asyncio.get_running_loop().time() + 10 * self.limits.call_s + self.limits.recovery_s
            await self._until(injector.have_calls_arrived, end_s)
            injected_s = time.perf_counter()
            await injector.with_calls(self.fault)
            await self._recover(pool, injected_s)
            await self._until(lambda: read.done() and write.done(), end_s)
            self.read, self.write = (task.result() if task.done() else None for task in (read, write))
            read.cancel()
            write.cancel()
        self.restarts = pool.metrics().restarts

    def problems(self) -> list[str]:
        """What was wrong, a sentence each."""
        if not self.is_sound:
            return ["it did not answer before any fault"]
        if self.not_possible:
            return []
        problems = [
            f"a call that {does} never ended"
            for does, seen in (("reads", self.read), ("writes", self.write))
            if seen is None
        ]
        if self.recovery_s is None:
            problems.append(f"no answer to a new episode within {self.limits.recovery_s:g} s")
        return problems

    async def _recover(self, pool: ToolPool, injected_s: float) -> None:
        while time.perf_counter() - injected_s < self.limits.recovery_s:
            if (await self._new_episode(pool)).failure is None:
                self.recovery_s = time.perf_counter() - injected_s
                return
            await asyncio.sleep(_POLL_S)

    async def _new_episode(self, pool: ToolPool) -> Seen:
        async with pool.session() as session:
            return await self._call(session, READ_TOOL)

    async def _call(self, session: ToolSession, tool: str) -> Seen:
        started_s = time.perf_counter()
        result = await session.call(ToolCall(id=tool, server=self.server, tool=tool, arguments={}))
        return Seen(
            failure=result.failure, text=result.content[:_SHOWN_CHARS], took_s=time.perf_counter() - started_s
        )

    async def _until(self, condition: Callable[[], bool], end_s: float) -> None:
        while not condition() and asyncio.get_running_loop().time() < end_s:
            await asyncio.sleep(_POLL_S)
