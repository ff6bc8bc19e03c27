"""Numbers as a reader sees them, on the page and in what describes a chart. None is -0.0."""

from __future__ import annotations

from mcpagent.core.records import Metric

ABSENT = "–"


def percent(value: float | None, *, signed: bool = False) -> str:
    """Return `0.875` as `87.5%`."""
    return ABSENT if value is None else _minus(f"{100 * value:{'+' if signed else ''}z.1f}%")


def points(value: float | None) -> str:
    """Return a difference of rates in percentage points: `0.125` as `+12.5`."""
    return ABSENT if value is None else _minus(f"{100 * value:+z.1f}")


def number(value: float | None, *, digits: int = 3, signed: bool = False) -> str:
    """Return a number with a fixed count of decimals."""
    return ABSENT if value is None else _minus(f"{value:{'+' if signed else ''}z,.{digits}f}")


def significant(value: float | None) -> str:
    """Return a number with three significant figures."""
    return ABSENT if value is None else _minus(f"{value:.3g}")


def p_value(value: float | None) -> str:
    """Return a p value with three decimals; below 0.001 only that bound."""
    return ABSENT if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def percent_interval(metric: Metric) -> str:
    """Return `[82.0, 91.3]`, or nothing."""
    if metric.ci_low is None or metric.ci_high is None:
        return ""
    return f"[{100 * metric.ci_low:.1f}, {100 * metric.ci_high:.1f}]"


def number_interval(metric: Metric) -> str:
    """Return `[1.92, 2.31]`, or nothing."""
    if metric.ci_low is None or metric.ci_high is None:
        return ""
    return f"[{number(metric.ci_low, digits=2)}, {number(metric.ci_high, digits=2)}]"


def points_interval(metric: Metric) -> str:
    """Return `[+41.0, +57.5]`, or nothing."""
    if metric.ci_low is None or metric.ci_high is None:
        return ""
    return f"[{points(metric.ci_low)}, {points(metric.ci_high)}]"


def _minus(text: str) -> str:
    return text.replace("-", "−")
