"""Faults injected into a user's own stdio server, and what an episode would have seen of them.

Every trial starts the server behind `chaos_proxy`, strikes it once while a reading and a writing episode wait
for a call, and watches how new episodes fare until one gets an answer. No tool of the server is called: the
proxy answers for it (see there), so nothing of the user's is written or deleted.
"""

from __future__ import annotations

import asyncio
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from mcpagent.core.metrics import CheckStatus
from mcpagent.core.records import Record
from mcpagent.core.tools import FailureKind, ToolCall
from mcpagent.errors import UserError
from mcpagent.tools import chaos_proxy
from mcpagent.tools.chaos_leaks import Leaks, LeakWatch
from mcpagent.tools.chaos_proxy import READ_TOOL, WRITE_TOOL, CallFault
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.processes import MARK_ENV, Process, kill, marked, readers_of, stop
from mcpagent.tools.servers_config import StdioServer
from mcpagent.tools.wire import MAX_MESSAGE_BYTES

_POLL_S = 0.05
_CALLS = 2  # in flight when a fault strikes: one that reads, one that writes
_SHOWN_CHARS = 500
_SLOW_START_S = 3.0
_OVERSIZE_BYTES = MAX_MESSAGE_BYTES + 2**20


class ChaosFault(StrEnum):
    """What is done to a server."""

    NONE = "none"  # the control: it is started, called and stopped
    KILL = "kill"  # SIGKILL
    STOP = "stop"  # SIGSTOP, and never SIGCONT
    HANG = "hang"  # a call is never answered
    OVERSIZE = "oversize"  # an answer is larger than is taken
    GARBAGE = "garbage"  # noise on stdout, then an answer that is no JSON
    SLOW_START = "slow_start"  # killed, and its next start takes 3 s longer
    DRIFT = "drift"  # killed, and back with other descriptions and arguments


class Seen(Record):
    """What one call of an episode came to. `failure` None: an answer. An infrastructure failure leaves the
    episode unscored; it never becomes reward."""

    failure: FailureKind | None
    text: str
    took_s: float

    @property
    def is_scored(self) -> bool:
        return self.failure is None or not self.failure.is_infrastructure


class ChaosResult(Record):
    """One fault on one server. `read` and `write` are what the calls in flight came to, None where a call
    never ended; `recovery_s` is the time from the fault to the first answer to a new episode, None where none
    came. `notes` are what the pool told a person meanwhile."""

    server: str
    fault: ChaosFault
    status: CheckStatus
    detail: str
    read: Seen | None = None
    write: Seen | None = None
    recovery_s: float | None = None
    restarts: int = 0
    leaks: Leaks | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class ChaosLimits:
    """`call_s` is the deadline of a call, `recovery_s` how long a server may take to answer again."""

    call_s: float = 3.0
    recovery_s: float = 30.0


async def chaos(
    config: StdioServer,
    *,
    faults: Sequence[ChaosFault] = tuple(ChaosFault),
    limits: ChaosLimits = ChaosLimits(),
    on_result: Callable[[ChaosResult], None] = lambda _: None,
) -> list[ChaosResult]:
    """One result for each fault. Where the server does not even run without one, only that is reported."""
    results: list[ChaosResult] = []
    for fault in faults:
        results.append(await _trial(config, fault, limits))
        on_result(results[-1])
        if fault is ChaosFault.NONE and results[-1].status is CheckStatus.FAIL:
            break
    return results


async def _trial(config: StdioServer, fault: ChaosFault, limits: ChaosLimits) -> ChaosResult:
    mark = secrets.token_hex(8)
    notes: list[str] = []
    with tempfile.TemporaryDirectory(prefix="mcpagent-chaos-") as folder:
        watch = LeakWatch(mark)
        proxied = _behind_proxy(config, control=Path(folder), mark=mark)
        pool = ToolPool([proxied], timeout_s=limits.call_s, on_note=notes.append)
        trial = _Trial(config.name, fault, pool, _Striker(Path(folder), mark), limits)
        problems: list[str] = []
        try:
            async with pool:
                await trial.run()
                problems += trial.problems()
            if fault is ChaosFault.DRIFT and not notes:
                problems.append("nobody was told that the tools had changed")
        except UserError as error:
            problems.append(error.message)
        finally:
            leaks = await watch.leaks()
            kill(marked(mark))
    problems += leaks.problems()
    return ChaosResult(
        server=config.name,
        fault=fault,
        status=CheckStatus.FAIL if problems else CheckStatus.PASS,
        detail="; ".join(problems),
        read=trial.read,
        write=trial.write,
        recovery_s=trial.recovery_s,
        restarts=trial.restarts,
        leaks=leaks,
        notes=tuple(notes),
    )


def _behind_proxy(config: StdioServer, *, control: Path, mark: str) -> StdioServer:
    return replace(
        config,
        command=sys.executable,
        args=("-I", chaos_proxy.__file__, str(control), config.command, *config.args),
        env={**config.env, MARK_ENV: mark},
        isolation="shared",
        timeout_s=None,
    )


@dataclass(frozen=True)
class _Striker:
    """Does to the server behind a proxy what a fault says."""

    control: Path
    mark: str

    def before_calls(self, fault: ChaosFault) -> None:
        """What must be there before the calls that it befalls."""
        match fault:
            case ChaosFault.STOP:
                stop(self._server())
            case ChaosFault.HANG | ChaosFault.KILL:
                self._befall(CallFault.HANG)  # where it is killed: so that the calls are in flight
            case ChaosFault.OVERSIZE:
                self._befall(f"{CallFault.OVERSIZE}:{_OVERSIZE_BYTES}")
            case ChaosFault.GARBAGE:
                self._befall(CallFault.GARBAGE)
            case ChaosFault.SLOW_START:
                self._befall(CallFault.HANG)
                self._tell("start", str(_SLOW_START_S))
            case ChaosFault.DRIFT:
                self._befall(CallFault.HANG)
                self._tell("drift", "")

    def with_calls(self, fault: ChaosFault) -> None:
        """What strikes the calls that are in flight."""
        if fault in (ChaosFault.KILL, ChaosFault.SLOW_START, ChaosFault.DRIFT):
            kill(self._server())

    def have_calls_arrived(self) -> bool:
        return not list(self.control.glob("call-*"))

    def _befall(self, fault: str) -> None:
        for number in range(_CALLS):
            self._tell(f"call-{number}", fault)

    def _tell(self, name: str, text: str) -> None:
        """Whole or not at all: the proxy may look at any moment."""
        draft = self.control / f"draft-{name}"
        draft.write_text(text)
        draft.rename(self.control / name)

    def _server(self) -> list[Process]:
        everything = marked(self.mark)
        proxy = next(process for process in everything if chaos_proxy.__file__ in process.command)
        below = [process for process in everything if process.pid != proxy.pid]
        return readers_of(next(process for process in below if process.parent == proxy.pid), below)


@dataclass
class _Trial:
    """One fault on a started pool; single use. Afterwards the fields below `limits` hold what was seen."""

    server: str
    fault: ChaosFault
    pool: ToolPool
    striker: _Striker
    limits: ChaosLimits
    read: Seen | None = None
    write: Seen | None = None
    recovery_s: float | None = None
    restarts: int = 0
    is_sound: bool = False  # it answered before the fault

    async def run(self) -> None:
        """Strike while two episodes wait for a call, and try new episodes until one gets an answer."""
        self.is_sound = (await self._new_episode()).failure is None
        if not self.is_sound:
            return
        async with self.pool.session() as reader, self.pool.session() as writer:
            self.striker.before_calls(self.fault)
            read = asyncio.create_task(self._call(reader, READ_TOOL))
            write = asyncio.create_task(self._call(writer, WRITE_TOOL))
            # Longer than a call may take with all its repeats and restarts.
            end_s = asyncio.get_running_loop().time() + 10 * self.limits.call_s + self.limits.recovery_s
            await self._until(self.striker.have_calls_arrived, end_s)
            struck_s = time.perf_counter()
            self.striker.with_calls(self.fault)
            await self._recover(struck_s)
            await self._until(lambda: read.done() and write.done(), end_s)
            self.read, self.write = (task.result() if task.done() else None for task in (read, write))
            read.cancel()
            write.cancel()
        self.restarts = self.pool.metrics().restarts

    def problems(self) -> list[str]:
        if not self.is_sound:
            return ["it did not answer before any fault"]
        found = [
            f"a call that {does} never ended"
            for does, seen in (("reads", self.read), ("writes", self.write))
            if seen is None
        ]
        if self.recovery_s is None:
            found.append(f"no answer to a new episode within {self.limits.recovery_s:g} s")
        return found

    async def _recover(self, struck_s: float) -> None:
        while time.perf_counter() - struck_s < self.limits.recovery_s:
            if (await self._new_episode()).failure is None:
                self.recovery_s = time.perf_counter() - struck_s
                return
            await asyncio.sleep(_POLL_S)

    async def _new_episode(self) -> Seen:
        async with self.pool.session() as session:
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
