"""What an instance of a server costs: measured on one that runs."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from mcpagent.core.records import Record
from mcpagent.core.tools import ToolCall, ToolSpec
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.servers_config import MemoryServer, ServerConfig, StdioServer
from mcpagent.tools.transports.processes import MARK_ENV, marked

_LOOKS = 20  # instances of an in-memory server; the median of so many opens counts
_RESULT_LIMIT_CHARS = 1_000_000  # answers are compared, so they must not be cut


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
        config = replace(config, env={**config.env, MARK_ENV: mark})
    started_s = time.perf_counter()
    async with ToolPool(
        [config],
        timeout_s=timeout_s,
        retry=0,
        result_limit_chars=_RESULT_LIMIT_CHARS,
        isolation={config.name: "shared"},
        on_note=on_note,
    ) as pool:
        start_s = time.perf_counter() - started_s
        if isinstance(config, StdioServer):
            tree = marked(mark)
            cost = InstanceCost(
                start_s=start_s,
                cpu_s=sum(process.cpu_s for process in tree),
                rss_bytes=sum(process.rss_bytes for process in tree),
                processes=len(tree),
            )
        elif isinstance(config, MemoryServer):
            cost = InstanceCost(start_s=await _memory_open_s(config, list(pool.tools.values())))
        else:
            cost = InstanceCost(start_s=start_s)
        yield StartedInstance(pool, cost)


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
