"""A few numbers of each episode in columns of 8 bytes, so that there may be any number of episodes."""

from __future__ import annotations

import math
from array import array
from collections.abc import Iterable, Mapping
from functools import cached_property


class Columns:
    """Numbers by name; NaN stands for one that an episode does not have. All are added before any is read."""

    def __init__(self, names: Iterable[str]) -> None:
        self._columns = {name: array("d") for name in names}
        self._attempts = array("q")
        self._rows: dict[str, list[int]] = {}  # by task

    def add(self, task_id: str, attempt: int, numbers: Mapping[str, float | None]) -> None:
        """Add an episode."""
        self._rows.setdefault(task_id, []).append(len(self._attempts))
        self._attempts.append(attempt)
        for name, column in self._columns.items():
            value = numbers[name]
            column.append(math.nan if value is None else value)

    def by_task(self, name: str) -> dict[str, list[float]]:
        """Return the numbers that episodes have, the attempts at each task in their order."""
        column = self._columns[name]
        return {
            task_id: [column[row] for row in rows if not math.isnan(column[row])]
            for task_id, rows in self._ordered.items()
        }

    @cached_property
    def _ordered(self) -> dict[str, list[int]]:
        attempts = self._attempts
        return {
            task_id: sorted(self._rows[task_id], key=attempts.__getitem__) for task_id in sorted(self._rows)
        }
