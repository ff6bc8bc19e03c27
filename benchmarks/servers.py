"""What the built-in servers cost, in CPU time of their own process: starting, an episode in memory, a call.

    python -m benchmarks.servers

Start-up is compared with an empty server of the same SDK, in turns within the same run.
"""

from __future__ import annotations

import asyncio
import json
import os
import resource
import statistics
import sys
import time
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from mcpagent.core.tools import ToolCall
from mcpagent.servers.embedded import build
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import MemoryServer

ROUNDS = 5
CALLS = 2000
IN_FLIGHT = 16
EPISODES = 500
EMPTY = ("-c", "from mcp.server import MCPServer; MCPServer('empty', log_level='WARNING').run()")

_COMPANY, _CHANNEL = build().companies[0], build().channels[0]
CALL: dict[str, tuple[str, dict[str, Any]]] = {
    "polygon": ("polygon_get_previous_close", {"ticker": _COMPANY.ticker}),
    "fmp": ("fmp_get_quote", {"symbol": _COMPANY.ticker}),
    "tavily": ("tavily_search", {"query": f"target {_COMPANY.ticker}"}),
    "slack": ("get_slack_channel_history", {"channel_id": _CHANNEL.id}),
    # What the server itself costs: its other tools run code, and a sandbox has a process of its own.
    "python": ("store_execution_result", {"key": "close", "value": [1.5] * 20}),
}


def main() -> None:
    servers = [name for name in BUILTIN_NAMES if name in CALL]
    startup_s = start_up(servers)
    empty_s = statistics.median(startup_s.pop("empty"))
    report: dict[str, Any] = {"empty_start_cpu_s": round(empty_s, 3)}
    for name in servers:
        started_s = statistics.median(startup_s[name])
        call_s = (asyncio.run(child_cpu_s(name, calls=CALLS)) - started_s) / CALLS
        report[name] = {
            "start_cpu_s": round(started_s, 3),
            "start_over_empty": round(started_s / empty_s, 2),
            "calls_per_cpu_s": round(1 / call_s),
            "memory_episode_cpu_ms": round(asyncio.run(memory_episode_s(name)) * 1e3, 2),
        }
    print(json.dumps(report, indent=2))


def start_up(servers: list[str]) -> dict[str, list[float]]:
    """CPU seconds from spawn to the listed tools and the end, `ROUNDS` of each, in turns."""
    seconds: dict[str, list[float]] = {name: [] for name in ("empty", *servers)}
    for _ in range(ROUNDS):
        for name, measured in seconds.items():
            measured.append(asyncio.run(child_cpu_s(name, calls=0)))
    return seconds


async def child_cpu_s(name: str, *, calls: int) -> float:
    """CPU seconds of a server's process that lists its tools and answers `calls` calls, 16 at once."""
    arguments = EMPTY if name == "empty" else ("-m", "mcpagent.cli.main", "serve", name)
    before_s = children_cpu_s()
    parameters = StdioServerParameters(command=sys.executable, args=list(arguments), env=dict(os.environ))
    async with Client(stdio_client(parameters)) as client:
        await client.list_tools()
        left = iter(range(calls))

        async def work() -> None:
            tool, given = CALL[name]
            for _ in left:
                assert not (await client.call_tool(tool, given)).is_error

        if calls:
            await asyncio.gather(*(work() for _ in range(IN_FLIGHT)))
    return children_cpu_s() - before_s


async def memory_episode_s(name: str) -> float:
    """CPU seconds of an episode with its own instance, as the pool runs it: opened, three calls, closed."""
    tool, given = CALL[name]
    call = ToolCall(id="1", server=name, tool=tool, arguments=given)
    started_s = 0.0
    async with ToolPool([MemoryServer(name=name, isolation="episode")]) as pool:
        for episode in range(EPISODES + 1):
            if episode == 1:  # the first one builds what is built once
                started_s = time.process_time()
            async with pool.session() as session:
                for _ in range(3):
                    assert not (await session.call(call)).is_error
    return (time.process_time() - started_s) / EPISODES


def children_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    main()
