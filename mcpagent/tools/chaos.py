"""Faults injected into a user's own server, and what an episode would have seen of them.

Every trial reaches the server through a proxy (`chaos_rigs`), strikes once while a reading and a writing
episode wait for a call, and watches how new episodes fare until one gets an answer. No tool of the server is
called: the proxy answers for it, so nothing of the user's is written or deleted.
"""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from mcpagent.core.metrics import CheckStatus
from mcpagent.core.records import Record
from mcpagent.core.tools import FailureKind, ToolCall
from mcpagent.errors import UserError
from mcpagent.tools.chaos_leaks import Leaks, LeakWatch
from mcpagent.tools.chaos_proxy import READ_TOOL, WRITE_TOOL
from mcpagent.tools.chaos_rigs import ChaosFault, Rig, faults_of, rig
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.processes import kill, marked
from mcpagent.tools.servers_config import HttpServer, StdioServer

_POLL_S = 0.05
_SHOWN_CHARS = 500


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
        async with rig(config, mark=mark, slow_s=limits.call_s / 2) as rigged:
            pool = ToolPool([rigged.server], timeout_s=limits.call_s, on_note=notes.append)
            async with pool:
                await trial.run(pool, rigged)
                problems += trial.problems()
            ended += pool.left_behind.get(config.name, [])
        if fault is ChaosFault.DRIFT and not any("other tools" in note for note in notes):
            problems.append("nobody was told that the tools had changed")
    except UserError as error:
        problems.append(error.message)
    finally:
        leaks = await watch.leaks()
        kill(marked(mark))
    problems += leaks.problems()
    status = CheckStatus.WARN if ended else CheckStatus.PASS
    status = CheckStatus.SKIP if trial.not_struck else status
    return ChaosResult(
        server=config.name,
        fault=fault,
        status=CheckStatus.FAIL if problems else status,
        detail="; ".join(problems) or trial.not_struck,
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
    not_struck: str = ""  # why the fault does not exist for this server

    async def run(self, pool: ToolPool, rigged: Rig) -> None:
        """Strike while two episodes wait for a call, and try new episodes until one gets an answer."""
        self.is_sound = (await self._new_episode(pool)).failure is None
        if not self.is_sound:
            return
        self.not_struck = rigged.why_not(self.fault)
        if self.not_struck:
            return
        async with pool.session() as reader, pool.session() as writer:
            rigged.before_calls(self.fault)
            read = asyncio.create_task(self._call(reader, READ_TOOL))
            write = asyncio.create_task(self._call(writer, WRITE_TOOL))
            # Longer than a call may take with all its repeats and restarts.
            end_s = asyncio.get_running_loop().time() + 10 * self.limits.call_s + self.limits.recovery_s
            await self._until(rigged.have_calls_arrived, end_s)
            struck_s = time.perf_counter()
            await rigged.with_calls(self.fault)
            await self._recover(pool, struck_s)
            await self._until(lambda: read.done() and write.done(), end_s)
            self.read, self.write = (task.result() if task.done() else None for task in (read, write))
            read.cancel()
            write.cancel()
        self.restarts = pool.metrics().restarts

    def problems(self) -> list[str]:
        if not self.is_sound:
            return ["it did not answer before any fault"]
        if self.not_struck:
            return []
        found = [
            f"a call that {does} never ended"
            for does, seen in (("reads", self.read), ("writes", self.write))
            if seen is None
        ]
        if self.recovery_s is None:
            found.append(f"no answer to a new episode within {self.limits.recovery_s:g} s")
        return found

    async def _recover(self, pool: ToolPool, struck_s: float) -> None:
        while time.perf_counter() - struck_s < self.limits.recovery_s:
            if (await self._new_episode(pool)).failure is None:
                self.recovery_s = time.perf_counter() - struck_s
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
