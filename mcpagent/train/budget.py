"""Hard caps on a run: what it has spent, and which cap that reaches."""

from __future__ import annotations

import operator
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import psutil

from mcpagent.config.sections import BudgetConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.models.load import trim_heap
from mcpagent.tools.metrics import PoolMetrics, ServerMetrics, ToolMetrics


@dataclass
class Spent:
    """The spending of a whole run, its resumed parts included."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    tool_calls: int = 0
    cost_usd: float = 0.0

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Spent:
        """Return what a checkpoint kept; counts that only former versions had are left out."""
        return cls(**{name: saved[name] for name in saved.keys() & cls.__dataclass_fields__.keys()})


class BudgetReached(Exception):
    """A cap was reached in the middle of a step."""


class Meter:
    """Adds up what a run spends from now on to what it `spent` before."""

    def __init__(self, budget: BudgetConfig, spent: Spent) -> None:
        self.spent, self._prices = spent, budget.usd_per_call
        self._caps = {
            "wall_s": budget.wall_s,
            "cpu_s": budget.cpu_s,
            "tool_calls": budget.tool_calls,
            "cost_usd": budget.cost_usd,
        }
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def read(self) -> None:
        """Bring the clocks up to date."""
        wall, cpu = time.monotonic(), time.process_time()
        self.spent.wall_s += wall - self._wall
        self.spent.cpu_s += cpu - self._cpu
        self._wall, self._cpu = wall, cpu

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that has just ended. Raises BudgetReached if a cap is exceeded: what the step
        would still cost is saved, what it did cost remains counted."""
        self.spent.tool_calls += len(trajectory.tool_results)
        self.spent.cost_usd += sum(
            self._prices.get(f"{result.server}.{result.tool}", self._prices.get(result.server, 0.0))
            for result in trajectory.tool_results
        )
        if (reason := self._first(operator.gt)) is not None:
            raise BudgetReached(reason)

    def reached(self) -> str | None:
        """Return the first cap that is reached, with its number; None while there is none."""
        return self._first(operator.ge)

    def _first(self, is_past: Callable[[float, float], bool]) -> str | None:
        self.read()
        for name, cap in self._caps.items():
            if cap is not None and is_past(getattr(self.spent, name), cap):
                return f"budget.{name} {cap:g} is spent"
        return None


def resident_mib(*, trimmed: bool = False) -> float:
    """MiB that the process holds. `trimmed` first hands back freed pages that glibc's allocator keeps: they
    show the largest batch so far, not what is in use, and hide a leak behind it. Taking pages again costs
    some tens of milliseconds, too much for steps that are themselves that short."""
    if trimmed:
        trim_heap()
    return psutil.Process().memory_info().rss / 2**20


T = TypeVar("T")

_KEY = "tool_metrics"


class ToolTotals:
    """Adds what the servers counted before a resume; `records` are those of the steps until then."""

    def __init__(self, records: Sequence[JsonObject]) -> None:
        told = next((record[_KEY] for record in reversed(records) if _KEY in record), None)
        self._before = None if told is None else PoolMetrics.model_validate(told)

    def joined(self, metrics: JsonObject) -> JsonObject:
        """`Tools.take_metrics` with the calls of earlier parts. Percentiles of latency are those of this part
        if it has any: they cannot be added up."""
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
    joined = {name(one): one for one in before}
    for one in now:
        joined[name(one)] = join(joined[name(one)], one) if name(one) in joined else one
    return tuple(joined[key] for key in sorted(joined))
