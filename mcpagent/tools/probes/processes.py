"""The processes of a running server: which they are, and what an instance costs."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace

import psutil

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.records import Record
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import ServerConfig, StdioServer

_RESULT_LIMIT_CHARS = 1_000_000  # answers are compared, so they must not be cut


STARTED_BY_ENV = (
    "MCPAGENT_STARTED_BY"  # a server's processes inherit it, also those that leave its group and session
)


def marked(mark: str) -> list[psutil.Process]:
    """Every running process of ours that was started with `STARTED_BY_ENV=mark`."""
    processes: list[psutil.Process] = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):  # another user's, or gone by now
            if process.environ().get(STARTED_BY_ENV) == mark and process.status() != psutil.STATUS_ZOMBIE:
                processes.append(process)
    return processes


class InstanceCost(Record):
    """`start_s` is wall time until the tools are listed. None: not ours to measure (a server in this process
    has no memory of its own, one over HTTP no process here)."""

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
    """Run one instance of a server, measured. Raises UserError if it does not start."""
    mark = secrets.token_hex(8)
    if isinstance(config, StdioServer):
        config = replace(config, env={**config.env, STARTED_BY_ENV: mark})
    started_s = time.perf_counter()
    async with ToolPool(
        [config],
        ToolsConfig(
            timeout_s=timeout_s,
            retry=0,
            result_limit_chars=_RESULT_LIMIT_CHARS,
            per_server={config.name: ServerSection(isolation="shared")},
        ),
        on_note=on_note,
    ) as pool:
        start_s = time.perf_counter() - started_s
        if isinstance(config, StdioServer):
            cost = _measured(marked(mark), start_s=start_s)
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
