from __future__ import annotations

import asyncio
import math
import random

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind
from mcpagent.tools.limits import BreakerState
from mcpagent.tools.metrics import Histogram
from mcpagent.tools.pool import ToolPool
from tests.tools.support import call, memory_echo


@pytest.mark.parametrize("share", [0.01, 0.5, 0.95, 0.99, 1.0])
def test_percentiles_are_right_within_three_percent(share: float) -> None:
    rng = random.Random(1)
    values = [rng.lognormvariate(-3, 2) for _ in range(5000)]
    histogram = Histogram()
    for value in values:
        histogram.add(value)
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    assert histogram.percentile(share) == pytest.approx(exact, rel=0.03)


def test_a_histogram_does_not_grow_with_what_it_counts() -> None:
    rng = random.Random(2)
    histogram = Histogram()
    for _ in range(100_000):
        histogram.add(10 ** rng.uniform(-6, 3.5))
    assert len(histogram._counts) < 500


async def test_metrics_say_what_the_calls_of_each_tool_came_to() -> None:
    async with ToolPool([memory_echo()], ToolsConfig(result_limit_chars=100, timeout_s=0.2)) as pool:
        async with pool.session() as session:
            await asyncio.gather(*(call(session, "echo", text=str(i)) for i in range(7)))
            await call(session, "big", size=1000)
            await call(session, "refuse")
            await call(session, "refuse")
            await call(session, "hang")
            await call(session, "no_such_tool")
        metrics = pool.metrics()
    (server,) = metrics.servers
    assert (server.server, server.in_flight, server.restarts) == ("echo", 0, 0)
    assert (server.breaker, server.next_try_s) == (BreakerState.CLOSED, 0)
    tools = {tool.tool: tool for tool in server.tools}
    assert {name: tool.calls for name, tool in tools.items()} == {"echo": 7, "big": 1, "refuse": 2, "hang": 1}
    assert (tools["big"].truncated, tools["echo"].truncated) == (1, 0)
    assert tools["refuse"].failures == {FailureKind.TOOL_ERROR: 2}
    assert tools["hang"].failures == {FailureKind.TIMEOUT: 1}
    assert tools["hang"].latency_p50_s is not None
    assert tools["hang"].latency_p50_s >= 0.19
    echo = tools["echo"]
    assert echo.latency_p50_s is not None and echo.latency_p95_s is not None
    assert 0 < echo.latency_p50_s <= echo.latency_p95_s <= 1.03 * echo.latency_max_s
