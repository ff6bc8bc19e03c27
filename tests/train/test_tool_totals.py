"""What the servers counted in the parts of a run, added up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.tools.limits import BreakerState
from mcpagent.tools.metrics import CallCounts, PoolMetrics, ServerMetrics
from mcpagent.train.budget import ToolTotals

FIRST = {
    "fmp": [("get_quote", 0.1, None), ("get_quote", 0.3, FailureKind.TIMEOUT)],
    "slack": [("post", 0.2, None)],
}
SECOND = {
    "fmp": [("get_quote", 0.2, FailureKind.TIMEOUT), ("search", 0.4, None)],
    "tavily": [("search", 0.1, None)],
}
PERCENTILES = {"latency_p50_s", "latency_p95_s"}
NOW = {"in_flight", "next_try_s"}  # of the moment


def told(*parts: dict[str, list[tuple[str, float, FailureKind | None]]]) -> dict[str, Any]:
    """The record of a pool whose servers got the calls of all `parts`."""
    names = sorted({name for part in parts for name in part})
    return {
        "tool_metrics": PoolMetrics(servers=tuple(_server(n, parts) for n in names)).model_dump(mode="json")
    }


def _server(
    name: str, parts: Sequence[dict[str, list[tuple[str, float, FailureKind | None]]]]
) -> ServerMetrics:
    counts = CallCounts()
    for tool, latency_s, failure in (call for part in parts for call in part.get(name, [])):
        result = ToolResult(
            call_id="1",
            server=name,
            tool=tool,
            content="1",
            is_error=failure is not None,
            failure=failure,
            latency_s=latency_s,
            truncated_chars=3,
        )
        counts.note(result, waited_s=latency_s / 2, sendings=2)
    restarts = sum(name in part for part in parts)
    return ServerMetrics(
        server=name,
        in_flight=0,
        most_in_flight=2,
        restarts=restarts,
        breaker=BreakerState.CLOSED,
        next_try_s=0.0,
        waited_s=counts.waited_s,
        waited_max_s=counts.waited_max_s,
        tools=counts.tools(),
    )


def without_percentiles(metrics: dict[str, Any]) -> list[Any]:
    return [
        {
            **server,
            "tools": [{k: v for k, v in tool.items() if k not in PERCENTILES} for tool in server["tools"]],
        }
        for server in metrics["tool_metrics"]["servers"]
    ]


def test_two_parts_count_what_one_would_have_counted() -> None:
    joined = ToolTotals([{"step": 1}, told(FIRST), {"step": 2}]).joined(told(SECOND))
    assert without_percentiles(joined) == without_percentiles(told(FIRST, SECOND))
    p50 = {t["tool"]: t["latency_p50_s"] for s in joined["tool_metrics"]["servers"] for t in s["tools"]}
    part = {
        t["tool"]: t["latency_p50_s"] for s in told(SECOND)["tool_metrics"]["servers"] for t in s["tools"]
    }
    assert p50 == {**part, "post": p50["post"]} and p50["post"] is not None, (
        "where there is a new one, it counts"
    )


def test_a_new_run_and_what_else_the_record_says_stay_as_they_are() -> None:
    assert ToolTotals([]).joined(told(SECOND)) == told(SECOND)
    joined = ToolTotals([told(FIRST)]).joined({**told(), "cassette": {"live": 1}})
    assert joined == {**told(FIRST), "cassette": {"live": 1}}
