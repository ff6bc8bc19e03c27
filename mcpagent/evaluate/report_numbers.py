"""How the report writes numbers: one way for each kind, with a real minus sign, a dash for what is absent."""

from __future__ import annotations

from mcpagent.core.metrics import Metric

ABSENT = "–"


def percent(value: float | None, *, signed: bool = False) -> str:
    """`0.875` as `87.5%`."""
    return ABSENT if value is None else _minus(f"{100 * value:{'+' if signed else ''}.1f}%")


def points(value: float | None) -> str:
    """A difference of rates in percentage points: `0.125` as `+12.5`."""
    return ABSENT if value is None else _minus(f"{100 * value:+.1f}")


def number(value: float | None, *, digits: int = 3, signed: bool = False) -> str:
    """A number with a fixed count of decimals."""
    return ABSENT if value is None else _minus(f"{value:{'+' if signed else ''},.{digits}f}")


def percent_interval(metric: Metric) -> str:
    """`[82.0, 91.3]`, or a dash."""
    if metric.ci_low is None or metric.ci_high is None:
        return ABSENT
    return f"[{100 * metric.ci_low:.1f}, {100 * metric.ci_high:.1f}]"


def number_interval(metric: Metric, *, digits: int = 2) -> str:
    """`[1.92, 2.31]`, or a dash."""
    if metric.ci_low is None or metric.ci_high is None:
        return ABSENT
    return f"[{number(metric.ci_low, digits=digits)}, {number(metric.ci_high, digits=digits)}]"


def points_interval(metric: Metric) -> str:
    """`[+41.0, +57.5]`, or a dash."""
    if metric.ci_low is None or metric.ci_high is None:
        return ABSENT
    return f"[{points(metric.ci_low)}, {points(metric.ci_high)}]"


def _minus(text: str) -> str:
    return text.replace("-", "−")
