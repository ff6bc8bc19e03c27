"""Numbers as a reader sees them, on the page and in what describes a chart. None is -0.0."""

from __future__ import annotations

from collections.abc import Callable

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


def p_value(value: float | None) -> str:
    """Return a p value with three decimals; below 0.001 only that bound."""
    return ABSENT if value is None else "< 0.001" if value < 0.001 else f"{value:.3f}"


def rate(metric: Metric | None) -> str:
    """Return `87.5% [82.0, 91.3]`."""
    return _with_interval(metric, percent, lambda value: number(100 * value, digits=1))


def mean(metric: Metric | None) -> str:
    """Return `2.11 [1.92, 2.31]`."""
    return _with_interval(metric, lambda value: number(value, digits=2))


def change(metric: Metric | None, unit: str = "") -> str:
    """Return a difference of rates in points, `+12.5 [+4.1, +20.9]`."""
    return _with_interval(metric, lambda value: f"{points(value)}{unit}", points)


def _with_interval(
    metric: Metric | None, show: Callable[[float], str], show_end: Callable[[float], str] | None = None
) -> str:
    if metric is None or metric.value is None:
        return ABSENT
    text, show_end = show(metric.value), show_end or show
    if metric.ci_low is None or metric.ci_high is None:
        return text
    return f"{text} [{show_end(metric.ci_low)}, {show_end(metric.ci_high)}]"


def _minus(text: str) -> str:
    return text.replace("-", "−")
