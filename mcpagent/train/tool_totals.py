"""What the servers' calls came to over a whole run, although servers start anew with every part of it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import TypeVar

from mcpagent.core.records import JsonObject
from mcpagent.tools.metrics import PoolMetrics, ServerMetrics, ToolMetrics

T = TypeVar("T")

_KEY = "tool_metrics"


class ToolTotals:
    """Adds what the servers counted before a resume; `records` are those of the steps until then."""

    def __init__(self, records: Sequence[JsonObject]) -> None:
        told = next((record[_KEY] for record in reversed(records) if _KEY in record), None)
        self._before = None if told is None else PoolMetrics.model_validate(told)

    def joined(self, metrics: JsonObject) -> JsonObject:
        """`Tools.take_metrics` with the calls of earlier parts. Percentiles of latency are those of this part
        where it has any: they cannot be added up."""
        if self._before is None:
            return metrics
        now = PoolMetrics.model_validate(metrics[_KEY])
        return {**metrics, _KEY: _pool(self._before, now).model_dump(mode="json")}


def _pool(before: PoolMetrics, now: PoolMetrics) -> PoolMetrics:
    return PoolMetrics(servers=_by_name(before.servers, now.servers, name=lambda s: s.server, join=_server))


def _server(before: ServerMetrics, now: ServerMetrics) -> ServerMetrics:
    return now.model_copy(
        update={
            "most_in_flight": max(before.most_in_flight, now.most_in_flight),
            "restarts": before.restarts + now.restarts,
            "waited_s": before.waited_s + now.waited_s,
            "waited_max_s": max(before.waited_max_s, now.waited_max_s),
            "tools": _by_name(before.tools, now.tools, name=lambda t: t.tool, join=_tool),
        }
    )


def _tool(before: ToolMetrics, now: ToolMetrics) -> ToolMetrics:
    has_latencies = now.latency_p50_s is not None
    return now.model_copy(
        update={
            "calls": before.calls + now.calls,
            "latency_p50_s": now.latency_p50_s if has_latencies else before.latency_p50_s,
            "latency_p95_s": now.latency_p95_s if has_latencies else before.latency_p95_s,
            "latency_max_s": max(before.latency_max_s, now.latency_max_s),
            "failures": dict(Counter(before.failures) + Counter(now.failures)),
            "truncated": before.truncated + now.truncated,
            "repeats": before.repeats + now.repeats,
            "secrets": before.secrets + now.secrets,
        }
    )


def _by_name(
    before: Sequence[T], now: Sequence[T], *, name: Callable[[T], str], join: Callable[[T, T], T]
) -> tuple[T, ...]:
    """All of both, those of one name joined."""
    known = {name(one): one for one in before}
    for one in now:
        known[name(one)] = join(known[name(one)], one) if name(one) in known else one
    return tuple(known[key] for key in sorted(known))
