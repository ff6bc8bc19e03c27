"""The processes of a running server: which they are, and what an instance costs."""

from __future__ import annotations

import secrets
import signal
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from mcpagent.core.records import Record
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.tools.limits import CallLimits
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.servers_config import MemoryServer, ServerConfig, StdioServer

_LOOKS = 20  # instances of an in-memory server; the median of so many opens counts
_RESULT_LIMIT_CHARS = 1_000_000  # answers are compared, so they must not be cut


STARTED_BY_ENV = (
    "MCPAGENT_STARTED_BY"  # a server's processes inherit it, also those that leave its group and session
)


def marked(mark: str) -> list[psutil.Process]:
    """Every running process of ours that was started with `STARTED_BY_ENV=mark`."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or gone by now
            if process.environ().get(STARTED_BY_ENV) == mark and is_running(process):
                processes.append(process)
    return processes


def is_running(process: psutil.Process) -> bool:
    """False for one that is gone or only waits to be reaped."""
    return process.is_running() and process.status() != psutil.STATUS_ZOMBIE


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


class InstanceCost(Record):
    """`start_s` is wall time until the tools are listed (in memory: until the first call runs). None: not
    ours to measure (a server in this process has no memory of its own, one over HTTP no process here)."""

    start_s: float
    cpu_s: float | None = None
    rss_bytes: int | None = None
    processes: int | None = None


@dataclass(frozen=True)
class StartedInstance:
    """A running instance with a pool of its own."""

    pool: ToolPool
    cost: InstanceCost


@asynccontextmanager
async def started_instance(
    config: ServerConfig, *, timeout_s: float, on_note: Callable[[str], None] = lambda _: None
) -> AsyncIterator[StartedInstance]:
    """Run one instance of a server, measured. Raises UserError where it does not start."""
    mark = secrets.token_hex(8)
    if isinstance(config, StdioServer):
        config = replace(config, env={**config.env, STARTED_BY_ENV: mark})
    started_s = time.perf_counter()
    async with ToolPool(
        [config],
        limits=CallLimits(timeout_s=timeout_s, retry=0, result_limit_chars=_RESULT_LIMIT_CHARS),
        isolation={config.name: "shared"},
        on_note=on_note,
    ) as pool:
        start_s = time.perf_counter() - started_s
        if isinstance(config, StdioServer):
            cost = _measured(marked(mark), start_s=start_s)
        elif isinstance(config, MemoryServer):
            cost = InstanceCost(start_s=await _memory_open_s(config, list(pool.tools.values())))
        else:
            cost = InstanceCost(start_s=start_s)
        yield StartedInstance(pool, cost)


def _measured(processes: list[psutil.Process], *, start_s: float) -> InstanceCost:
    """The cost of what runs now. Processor time includes that of children that were waited for."""
    cpu_s, rss_bytes, count = 0.0, 0, 0
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            rss_bytes += process.memory_info().rss
            cpu_s += sum(process.cpu_times()[:4])  # user, system, and both of its children
            count += 1
    return InstanceCost(start_s=start_s, cpu_s=cpu_s, rss_bytes=rss_bytes, processes=count)


async def _memory_open_s(config: MemoryServer, specs: list[ToolSpec]) -> float:
    """An episode's first call opens its instance, the second does not: the difference is the opening."""
    read = next((spec for spec in specs if spec.annotations.read_only), specs[0])
    arguments = harmless_arguments(read.input_schema, text="mcpagent-probe") or {}
    call = ToolCall(id="open", server=config.name, tool=read.name, arguments=arguments)
    opens: list[float] = []
    async with ToolPool([config], isolation={config.name: "episode"}) as pool:
        for _ in range(_LOOKS):
            async with pool.session() as session:
                started_s = time.perf_counter()
                await session.call(call)
                opened_s = time.perf_counter()
                await session.call(call)
                opens.append((opened_s - started_s) - (time.perf_counter() - opened_s))
    return max(0.0, statistics.median(opens))
