"""Per-tool call metrics: latencies, failures, truncated results, restarts. Memory is bounded."""

from __future__ import annotations

import math
from collections import Counter, defaultdict

from mcpagent.core.records import Record
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.tools.limits import BreakerState

_RATIO = 1.05  # of a bucket's ends, so that a percentile is right within 2.5 %
_LOG_RATIO = math.log(_RATIO)
_SHORTEST_S = 1e-6


class ToolMetrics(Record):
    """The calls of one tool that reached its connection. Latencies are those of answered calls and timeouts,
    from sending to the answer, within 2.5 %; None before the first."""

    tool: str
    calls: int
    latency_p50_s: float | None
    latency_p95_s: float | None
    latency_max_s: float
    failures: dict[FailureKind, int]
    truncated: int  # results that were cut
    repeats: int  # sendings beyond the first
    secrets: int = 0  # texts of the server in which a secret stood


class ServerMetrics(Record):
    """One server. `waited_s` is what calls spent, in all, before they were sent: on slots, on the rate limit
    and on restarts."""

    server: str
    in_flight: int
    most_in_flight: int
    restarts: int
    breaker: BreakerState
    next_try_s: float  # seconds until a failing server is tried again; 0 if nothing waits
    waited_s: float
    waited_max_s: float
    forms: int = 0  # that it asked for in the middle of calls, and that were answered with their defaults
    tools: tuple[ToolMetrics, ...]


class PoolMetrics(Record):
    """A snapshot of every server of a pool."""

    servers: tuple[ServerMetrics, ...]


class Histogram:
    """Durations in buckets of 5 %: at most about 400 of them from a microsecond to an hour."""

    def __init__(self) -> None:
        self._counts: Counter[int] = Counter()

    def add(self, seconds: float) -> None:
        """Count one duration."""
        self._counts[round(math.log(max(seconds, _SHORTEST_S)) / _LOG_RATIO)] += 1

    def percentile(self, share: float) -> float | None:
        """Return the nearest-rank percentile in seconds, `share` in 0..1; None if nothing was added."""
        rank = max(1, math.ceil(share * self._counts.total()))
        for bucket in sorted(self._counts):
            rank -= self._counts[bucket]
            if rank <= 0:
                return math.exp(bucket * _LOG_RATIO)
        return None


class _ToolCounts:
    def __init__(self) -> None:
        self.calls = 0
        self.latencies = Histogram()
        self.latency_max_s = 0.0
        self.failures: Counter[FailureKind] = Counter()
        self.truncated = 0
        self.repeats = 0
        self.secrets = 0


class CallCounts:
    """Counts what the calls of one server came to."""

    def __init__(self) -> None:
        self.restarts = 0
        self.waited_s = 0.0
        self.waited_max_s = 0.0
        self._tools: defaultdict[str, _ToolCounts] = defaultdict(_ToolCounts)

    def note(self, result: ToolResult, *, waited_s: float, sendings: int) -> None:
        """Count one finished call; `sendings` is 0 if it never left."""
        tool = self._tools[result.tool]
        tool.calls += 1
        if sendings:
            tool.repeats += sendings - 1
            tool.latencies.add(result.latency_s)
            if result.latency_s > tool.latency_max_s:
                tool.latency_max_s = result.latency_s
        if result.failure is not None:
            tool.failures[result.failure] += 1
        if result.truncated_chars:
            tool.truncated += 1
        self.waited_s += waited_s
        if waited_s > self.waited_max_s:
            self.waited_max_s = waited_s

    def note_secret(self, tool: str) -> int:
        """Count a text in which a secret stood; how many there were by now."""
        counts = self._tools[tool]
        counts.secrets += 1
        return counts.secrets

    def tools(self) -> tuple[ToolMetrics, ...]:
        """Return a snapshot, sorted by the name of the tool."""
        return tuple(
            ToolMetrics(
                tool=name,
                calls=tool.calls,
                latency_p50_s=tool.latencies.percentile(0.5),
                latency_p95_s=tool.latencies.percentile(0.95),
                latency_max_s=tool.latency_max_s,
                failures=dict(tool.failures),
                truncated=tool.truncated,
                repeats=tool.repeats,
                secrets=tool.secrets,
            )
            for name, tool in sorted(self._tools.items())
        )
