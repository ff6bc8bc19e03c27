"""Hard caps on a run: what it has spent, and which cap that reaches."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psutil

from mcpagent.config.sections import BudgetConfig
from mcpagent.core.trajectory import Trajectory
from mcpagent.models.load import trim_heap


@dataclass
class Spent:
    """The spending of a whole run, its resumed parts included."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    tool_calls: int = 0

    @classmethod
    def from_json(cls, saved: Mapping[str, Any]) -> Spent:
        """Return what a checkpoint kept; counts that only former versions had are left out."""
        return cls(**{name: saved[name] for name in saved.keys() & cls.__dataclass_fields__.keys()})


class BudgetReached(Exception):
    """A cap was reached in the middle of a step."""


class Meter:
    """Adds up what a run spends from now on to what it `spent` before."""

    def __init__(self, budget: BudgetConfig, spent: Spent) -> None:
        self.spent, self._caps = spent, budget.model_dump()
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
