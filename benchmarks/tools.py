"""What a tool call costs, against the bare SDK client on the same server in the same run.

    python -m benchmarks.tools [--transport memory|stdio|http] [--calls N] [--rounds N] [--json]

CPU is that of this process per call; in memory that includes the server, for both sides. The overhead is the
median over rounds of ours / bare, taken next to each other in alternating order: on a machine that does other
things too, only neighbours can be compared. The gate is on CPU: 1.25 over stdio, 1.5 in memory.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import asdict, dataclass
from typing import Any

from mcp import Client, StdioServerParameters, stdio_client

from benchmarks import echo_server
from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import ToolCall
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, InProcessServer, ServerConfig, StdioServer

TRANSPORTS = ("memory", "stdio", "http")
AT_ONCE = (1, 8, 32, 128)
GATES = {"memory": 1.5, "stdio": 1.25}
_SCRIPT = ("-m", "benchmarks.echo_server")

_HEADER = (
    f"{'':<10}{'at once':>8}{'calls/s':>20}{'CPU us/call':>20}{'overhead':>11}{'range':>15}{'gate':>7}\n"
    f"{'':<18}{'bare':>10}{'ours':>10}{'bare':>10}{'ours':>10}"
)

Call = Callable[[str], Awaitable[str]]


@dataclass(frozen=True, kw_only=True)
class Row:
    """One transport at one concurrency. CPU is in microseconds per call; `gate` None: no bound is set."""

    transport: str
    at_once: int
    bare_calls_per_s: float
    calls_per_s: float
    bare_cpu_us: float
    cpu_us: float
    overhead: float
    overhead_low: float
    overhead_high: float
    gate: float | None


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--transport", choices=TRANSPORTS, action="append")
    parser.add_argument("--calls", type=int, default=200, help="calls a round and side")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    rows: list[Row] = []

    def note(row: Row) -> None:
        rows.append(row)
        if not options.as_json:
            print(_line(row), flush=True)

    if not options.as_json:
        print(_HEADER, flush=True)
    for transport in options.transport or TRANSPORTS:
        asyncio.run(measure(transport, calls=options.calls, rounds=options.rounds, on_row=note))
    if options.as_json:
        print(json.dumps([asdict(row) for row in rows], indent=2))


async def measure(transport: str, *, calls: int, rounds: int, on_row: Callable[[Row], None]) -> None:
    """Both sides on one transport, at every concurrency."""
    with _server(transport) as (target, config):
        async with _bare(target) as bare, _ours(config) as ours:
            for side in (bare, ours):
                await _run(side, calls=50, at_once=8)
            for at_once in AT_ONCE:
                on_row(await _row(transport, at_once, bare, ours, calls=calls, rounds=rounds))


async def _row(transport: str, at_once: int, bare: Call, ours: Call, *, calls: int, rounds: int) -> Row:
    pairs: list[tuple[tuple[float, float], tuple[float, float]]] = []
    for number in range(rounds):
        first, second = (bare, ours) if number % 2 else (ours, bare)
        one = await _run(first, calls=calls, at_once=at_once)
        other = await _run(second, calls=calls, at_once=at_once)
        pairs.append((one, other) if number % 2 else (other, one))
    ratios = sorted(mine[0] / theirs[0] for theirs, mine in pairs)
    return Row(
        transport=transport,
        at_once=at_once,
        bare_calls_per_s=round(statistics.median(theirs[1] for theirs, _ in pairs), 1),
        calls_per_s=round(statistics.median(mine[1] for _, mine in pairs), 1),
        bare_cpu_us=round(statistics.median(theirs[0] for theirs, _ in pairs), 1),
        cpu_us=round(statistics.median(mine[0] for _, mine in pairs), 1),
        overhead=round(statistics.median(ratios), 3),
        overhead_low=round(ratios[0], 3),
        overhead_high=round(ratios[-1], 3),
        gate=GATES.get(transport),
    )


async def _run(call: Call, *, calls: int, at_once: int) -> tuple[float, float]:
    """CPU microseconds per call, and calls per second."""
    texts = iter([f"text {number}" for number in range(calls)])

    async def worker() -> None:
        for text in texts:
            if await call(text) != text:
                raise RuntimeError("the server answered something else")

    begun_s, cpu_s = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(at_once)))
    spent_cpu_s, spent_s = time.process_time() - cpu_s, time.perf_counter() - begun_s
    return spent_cpu_s / calls * 1e6, calls / spent_s


@contextmanager
def _server(transport: str) -> Iterator[tuple[Any, ServerConfig]]:
    """What the bare client connects to, and the same server for the pool."""
    if transport == "memory":
        yield echo_server.build(), InProcessServer(name="echo", server=echo_server.build())
    elif transport == "stdio":
        command = StdioServerParameters(command=sys.executable, args=list(_SCRIPT))
        yield stdio_client(command), StdioServer(name="echo", command=sys.executable, args=_SCRIPT)
    else:
        with subprocess.Popen([sys.executable, *_SCRIPT, "--http"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            url = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
            try:
                yield url, HttpServer(name="echo", url=url)
            finally:
                process.terminate()


@asynccontextmanager
async def _bare(target: Any) -> AsyncIterator[Call]:
    async with Client(target) as client:
        await client.list_tools()

        async def call(text: str) -> str:
            result = await client.call_tool("echo", {"text": text})
            return result.content[0].text  # pyright: ignore[reportAttributeAccessIssue]

        yield call


@asynccontextmanager
async def _ours(config: ServerConfig) -> AsyncIterator[Call]:
    limits = ServerSection(max_in_flight=max(AT_ONCE))
    async with (
        ToolPool([config], ToolsConfig(per_server={config.name: limits})) as pool,
        pool.session() as session,
    ):

        async def call(text: str) -> str:
            request = ToolCall(id="1", server="echo", tool="echo", arguments={"text": text})
            return (await session.call(request)).content

        yield call


def _line(row: Row) -> str:
    low_high = f"{row.overhead_low:.2f}-{row.overhead_high:.2f}"
    gate = "" if row.gate is None else f"{row.gate:.2f}"
    return (
        f"{row.transport:<10}{row.at_once:>8}{row.bare_calls_per_s:>10.0f}{row.calls_per_s:>10.0f}"
        f"{row.bare_cpu_us:>10.0f}{row.cpu_us:>10.0f}{row.overhead:>11.2f}{low_high:>15}{gate:>7}"
    )


if __name__ == "__main__":
    main()
