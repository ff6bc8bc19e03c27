"""Thousands of calls through kills, hangs and a blocked interpreter: none is lost, none has two effects."""

from __future__ import annotations

import asyncio
import ctypes
import os
import resource
import signal
import sys
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind, ToolCall, ToolResult
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, StdioServer
from tests.tools.servers import ledgered
from tests.tools.wild import living, served

pytestmark = pytest.mark.system

SCRIPT = Path(ledgered.__file__)


@dataclass(frozen=True)
class _Place:
    """Where a ledgered server leaves its traces."""

    folder: Path

    @property
    def server(self) -> StdioServer:
        env = {"LEDGER": str(self.folder / "ledger"), "PIDS": str(self.folder / "pids")}
        return StdioServer(name="store", command=sys.executable, args=(str(SCRIPT),), env=env)

    @property
    def pids(self) -> list[int]:
        return [int(line) for line in (self.folder / "pids").read_text().split()]

    @property
    def effects(self) -> Counter[str]:
        ledger = self.folder / "ledger"
        return Counter(ledger.read_text().splitlines() if ledger.exists() else ())


async def _one(pool: ToolPool, tool: str, **arguments: object) -> ToolResult:
    """A call in a session of its own, as an episode would make it."""
    async with pool.session() as session:
        return await session.call(ToolCall(id="1", server="store", tool=tool, arguments=arguments))


def _assert_nothing_is_left(place: _Place) -> None:
    assert asyncio.all_tasks() == {asyncio.current_task()}
    assert living(place.pids) == set()


async def _storm(
    pool: ToolPool, place: _Place, count: int, *, kill: Callable[[], Awaitable[None]], at: tuple[int, ...]
) -> set[FailureKind | None]:
    """Make so many calls at once, with a kill each time that so many have come back. Returns what became of
    those that must not be repeated; every other one is answered, and none has two effects."""
    calls = [(("look", "put", "add")[i % 3], f"k{i}") for i in range(count)]
    results: dict[str, ToolResult] = {}
    moved = asyncio.Event()

    async def make(tool: str, key: str) -> None:
        results[key] = await _one(pool, tool, key=key)
        moved.set()

    async def kill_when_due() -> None:
        for due in at:
            while len(results) < due:
                moved.clear()
                await moved.wait()
            await kill()

    async with asyncio.TaskGroup() as group:
        group.create_task(kill_when_due())
        for tool, key in calls:
            group.create_task(make(tool, key))
    outcomes = {tool: Counter(results[key].failure for t, key in calls if t == tool) for tool, _ in calls}
    assert outcomes["look"] == outcomes["put"] == {None: count // 3}
    assert outcomes["add"].total() == count // 3
    effects = place.effects
    for tool, key in calls:
        made, failure = effects[f"{tool} {key}"], results[key].failure
        assert failure is not None or results[key].content == key
        if tool == "add":
            assert made <= 1, (key, failure)
        if tool != "look" and failure is None:
            assert made >= 1, key
    assert len(place.pids) == len(at) + 1
    return set(outcomes["add"])


async def test_1500_calls_through_3_kills_lose_nothing_and_repeat_no_effect(tmp_path: Path) -> None:
    place = _Place(tmp_path)

    async def kill() -> None:
        os.kill(place.pids[-1], signal.SIGKILL)  # progress past the last kill: this process is alive

    async with ToolPool([place.server]) as pool:
        unsafe = await _storm(pool, place, 1500, kill=kill, at=(200, 600, 1000))
        (metrics,) = pool.metrics().servers
    assert unsafe == {None, FailureKind.UNKNOWN_OUTCOME}
    calls = sum(tool.calls for tool in metrics.tools)
    assert (metrics.restarts, calls, metrics.in_flight) == (3, 1500, 0)
    _assert_nothing_is_left(place)


async def test_300_calls_over_http_through_2_kills_all_have_an_outcome_and_repeat_no_effect(
    tmp_path: Path,
) -> None:
    place = _Place(tmp_path)
    with ExitStack() as stack:

        def start(port: int = 0) -> int:
            return stack.enter_context(served("ledgered.py", **place.server.env, PORT=str(port)))

        port = start()

        async def restart() -> None:
            """Without a goodbye; returns when it listens again."""
            stack.close()
            await asyncio.to_thread(start, port)

        async with ToolPool([HttpServer(name="store", url=f"http://127.0.0.1:{port}/mcp")]) as pool:
            unsafe = await _storm(pool, place, 300, kill=restart, at=(50, 150))
            assert unsafe <= {None, FailureKind.UNKNOWN_OUTCOME}
            assert (await _one(pool, "look", key="after")).content == "after"
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_a_trainer_that_keeps_the_interpreter_to_itself_for_3_seconds_loses_no_call(tmp_path: Path) -> None:
    place = _Place(tmp_path)
    pool = ToolPool([place.server], ToolsConfig(timeout_s=1.0))
    with IOThread() as io:
        io.run(pool.__aenter__())
        try:
            pending: list[asyncio.Task[ToolResult]] = []

            async def begin() -> None:
                pending.extend(asyncio.create_task(_one(pool, "work", seconds=0.3)) for _ in range(40))
                while pool.metrics().servers[0].in_flight < 40:
                    await asyncio.sleep(0)

            async def finish() -> list[ToolResult]:
                return await asyncio.gather(*pending)

            io.run(begin())
            _hold_the_interpreter(3)  # three times the deadline
            results = io.run(finish())
        finally:
            io.run(pool.close())
    assert [result.failure for result in results] == [None] * 40


def _hold_the_interpreter(seconds: int) -> None:
    """As a computation in C does: the library is called without giving up the interpreter's lock, so that no
    other thread gets a turn."""
    ctypes.PyDLL(None).sleep(seconds)


async def test_64_episodes_of_4_half_second_calls_run_all_at_once(tmp_path: Path) -> None:
    place = _Place(tmp_path)

    async def episode(pool: ToolPool) -> list[FailureKind | None]:
        async with pool.session() as session:
            call = ToolCall(id="1", server="store", tool="work", arguments={"seconds": 0.5})
            return [(await session.call(call)).failure for _ in range(4)]

    async with ToolPool([place.server]) as pool:
        assert await asyncio.gather(*(episode(pool) for _ in range(64))) == [[None] * 4] * 64
        assert pool.metrics().servers[0].most_in_flight == 64


@pytest.mark.slow
async def test_20000_calls_grow_memory_by_less_than_5_mb(tmp_path: Path) -> None:
    place = _Place(tmp_path)

    async def calls(pool: ToolPool, count: int) -> None:
        async def worker(share: range) -> None:
            for i in share:
                assert (await _one(pool, "look", key=str(i))).failure is None

        await asyncio.gather(*(worker(range(i, count, 32)) for i in range(32)))

    async with ToolPool([place.server]) as pool:
        await calls(pool, 2000)  # what is made once: caches, buffers, the histogram
        before = _resident_bytes()
        await calls(pool, 20_000)
        grown = _resident_bytes() - before
    print(f"20,000 calls: {grown / 2**20:+.2f} MiB")
    assert grown < 5 * 2**20


def _resident_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()
