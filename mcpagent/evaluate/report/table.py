"""A table of a page: columns, and rows of cells that one macro draws."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from mcpagent.core.records import Metric
from mcpagent.evaluate.report.numbers import (
    ABSENT,
    number,
    number_interval,
    percent,
    percent_interval,
    points,
    points_interval,
)


@dataclass(frozen=True)
class Cell:
    """A text, and the interval of a number."""

    text: str
    interval: str = ""


@dataclass(frozen=True)
class Column:
    """The name of a column; numbers stand to the right."""

    name: str
    is_number: bool


@dataclass(frozen=True)
class Table:
    """`hint` says what a reader needs to know first."""

    title: str
    hint: str
    columns: Sequence[Column]
    rows: Sequence[Sequence[Cell]]


def table(
    title: str, columns: Sequence[str], rows: Iterable[Sequence[object]], *, hint: str = ""
) -> list[Table]:
    """Return a table, or nothing without rows. A star marks a column of numbers; None is shown as a dash."""
    cells = [[each if isinstance(each, Cell) else Cell(_text(each)) for each in row] for row in rows]
    named = [Column(name.removeprefix("*"), name.startswith("*")) for name in columns]
    return [Table(title, hint, named, cells)] if cells else []


def rate(metric: Metric | None) -> Cell:
    """Return `87.5% [82.0, 91.3]`."""
    return Cell(ABSENT) if metric is None else Cell(percent(metric.value), percent_interval(metric))


def mean(metric: Metric | None) -> Cell:
    """Return `2.11 [1.92, 2.31]`."""
    return Cell(ABSENT) if metric is None else Cell(number(metric.value, digits=2), number_interval(metric))


def change(metric: Metric | None) -> Cell:
    """Return a difference of rates in points, `+12.5 [+4.1, +20.9]`."""
    return Cell(ABSENT) if metric is None else Cell(points(metric.value), points_interval(metric))


def _text(value: object) -> str:
    return ABSENT if value is None else f"{value:,}" if isinstance(value, int) else str(value)
