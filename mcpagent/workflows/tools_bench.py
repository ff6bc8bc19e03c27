"""Call one tool many times and measure it, as training would call it: through the pool."""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpagent.console import Advance, Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolResult
from mcpagent.errors import UserError
from mcpagent.tools.servers_config import ServerConfig
from mcpagent.workflows.tools_call import OpenTool, open_tool

_REPORT_INTERVAL_S = 0.5  # a bar that moves at every call would be a tenth of the measured CPU time


@dataclass(kw_only=True)
class BenchOutcome:
    """What was measured. Latencies are those of the calls that succeeded, without waiting for a turn."""

    tool: str
    concurrency: int
    planned: int
    start_s: float = 0.0  # of the server
    wall_s: float = 0.0
    cpu_s: float = 0.0  # of this process: the client, and a built-in server, which runs in it
    latencies_s: list[float] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)
    first_failure: str | None = None

    @property
    def calls(self) -> int:
        """Calls that have an outcome; fewer than planned after an interrupt."""
        return len(self.latencies_s) + self.failures.total()

    @property
    def calls_per_s(self) -> float | None:
        return self.calls / self.wall_s if self.calls else None

    @property
    def cpu_s_per_call(self) -> float | None:
        return self.cpu_s / self.calls if self.calls else None

    def latency_s(self, quantile: float) -> float | None:
        """The smallest latency that at least this share of the calls kept; None if none succeeded."""
        if not self.latencies_s:
            return None
        return sorted(self.latencies_s)[max(0, math.ceil(quantile * len(self.latencies_s)) - 1)]

    def add(self, result: ToolResult) -> None:
        if result.failure is None:
            self.latencies_s.append(result.latency_s)
            return
        self.failures[result.failure.value] += 1
        self.first_failure = self.first_failure or result.content

    def as_json(self) -> dict[str, Any]:
        return {
            "tool": self.tool,
            "planned": self.planned,
            "calls": self.calls,
            "concurrency": self.concurrency,
            "start_s": self.start_s,
            "wall_s": self.wall_s,
            "calls_per_s": self.calls_per_s,
            "latency_s": {"p50": self.latency_s(0.5), "p95": self.latency_s(0.95)},
            "cpu_s_per_call": self.cpu_s_per_call,
            "failures": dict(self.failures),
            "first_failure": self.first_failure,
        }


def bench_tool(
    dotted: str,
    arguments: JsonObject,
    configs: Sequence[ServerConfig],
    *,
    calls: int,
    concurrency: int,
    timeout_s: float | None = None,
    allow_writes: bool = False,
    console: Console,
) -> BenchOutcome:
    """Make `calls` equal calls of `SERVER.TOOL`, `concurrency` at a time. An interrupt ends it early.

    Raises UserError where there is no such tool, or where it is not read-only and writes are not allowed.
    """

    async def run() -> BenchOutcome:
        started_s = time.perf_counter()
        outcome = BenchOutcome(tool=dotted, concurrency=concurrency, planned=calls)
        async with open_tool(
            dotted, configs, timeout_s=timeout_s, max_in_flight=concurrency, console=console
        ) as tool:
            if not tool.spec.annotations.read_only and not allow_writes:
                raise UserError(
                    f"{dotted} does not say that it is read-only: {calls} calls may have {calls} effects",
                    remedy="--allow-writes makes them.",
                )
            outcome.start_s = time.perf_counter() - started_s
            with console.progress(f"calling {dotted}", total=calls) as advance:
                await _measure(tool, arguments, outcome, advance)
        return outcome

    return asyncio.run(run())


async def _measure(tool: OpenTool, arguments: JsonObject, outcome: BenchOutcome, advance: Advance) -> None:
    started_s, started_cpu_s = time.perf_counter(), time.process_time()
    numbers = iter(range(outcome.planned))
    shown = asyncio.create_task(_show(outcome, advance))
    try:
        await asyncio.gather(*(_work(tool, arguments, numbers, outcome) for _ in range(outcome.concurrency)))
    except asyncio.CancelledError:
        # Ctrl-C: what was measured is the result. asyncio.run cancels once; a second Ctrl-C interrupts it.
        if (task := asyncio.current_task()) is not None:
            task.uncancel()
    outcome.wall_s = time.perf_counter() - started_s
    outcome.cpu_s = time.process_time() - started_cpu_s
    shown.cancel()
    await asyncio.wait({shown})


async def _work(tool: OpenTool, arguments: JsonObject, numbers: Iterator[int], outcome: BenchOutcome) -> None:
    for number in numbers:
        outcome.add(await tool.call(arguments, call_id=f"bench-{number}"))


async def _show(outcome: BenchOutcome, advance: Advance) -> None:
    """Until cancelled, also while nothing comes back; then what is left."""
    shown = 0
    try:
        while True:
            await asyncio.sleep(_REPORT_INTERVAL_S)
            advance(outcome.calls - shown)
            shown = outcome.calls
    finally:
        advance(outcome.calls - shown)
