"""Measure what a hung, a flooding and a dying server cost five others.

Each episode makes two calls of the five good servers; with the three others there, one episode in 50 also
calls each of those. Latencies are those of the good servers' calls, memory that of this process.
"""

from __future__ import annotations

import asyncio
import os
import time
from dataclasses import dataclass, replace

import psutil

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import ToolCall
from mcpagent.tools.pool import ToolPool
from tests.tools.wild import stdio_poison

_GOOD = tuple(f"good{number}" for number in range(5))
_BAD = {"hung": "hang", "flooding": "notify", "dying": "exit"}
_ONE_IN = 50
_HUNG_TIMEOUT_S = 1.0


@dataclass(frozen=True, kw_only=True)
class Run:
    """MiB of resident memory; `left` are processes that are still there after the pool."""

    p99_s: float
    failed: int
    memory_early_mib: float
    memory_late_mib: float
    left: int


def measure(episodes: int, with_bad: bool, *, at_once: int) -> Run:
    """One run. The first `at_once` episodes warm up and are not counted."""
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    latencies, memory, failed = asyncio.run(_run(episodes, with_bad, at_once=at_once))
    left = {process.pid for process in psutil.Process().children(recursive=True)} - before
    latencies.sort()
    return Run(
        p99_s=latencies[len(latencies) * 99 // 100],
        failed=failed,
        memory_early_mib=memory[0],
        memory_late_mib=memory[-1],
        left=len(left),
    )


async def _run(episodes: int, with_bad: bool, *, at_once: int) -> tuple[list[float], list[float], int]:
    names = (*_GOOD, *(_BAD if with_bad else ()))
    servers = [replace(stdio_poison(), name=name) for name in names]
    limits = {"hung": ServerSection(timeout_s=_HUNG_TIMEOUT_S)} if with_bad else {}
    latencies: list[float] = []
    memory: list[float] = []
    failed = 0
    numbers = iter(range(episodes))

    async with ToolPool(servers, ToolsConfig(per_server=limits), on_note=lambda _: None) as pool:

        async def episode(number: int) -> None:
            nonlocal failed
            async with pool.session() as session:
                for step in range(2):
                    begun_s = time.perf_counter()
                    server = _GOOD[(number + step) % len(_GOOD)]
                    arguments = {"text": f"{number}"}
                    answer = await session.call(
                        ToolCall(id="1", server=server, tool="echo", arguments=arguments)
                    )
                    if number >= at_once:
                        latencies.append(time.perf_counter() - begun_s)
                    failed += answer.content != f"{number}"
                for place, (server, kind) in enumerate(_BAD.items() if with_bad else ()):
                    if number % _ONE_IN == place:
                        bad = ToolCall(id="2", server=server, tool="misbehave", arguments={"kind": kind})
                        await session.call(bad)

        async def worker() -> None:
            for number in numbers:
                await episode(number)
                if number and number % (episodes // 5) == 0:
                    memory.append(psutil.Process(os.getpid()).memory_info().rss / 2**20)

        await asyncio.gather(*(worker() for _ in range(at_once)))
    return latencies, memory, failed
