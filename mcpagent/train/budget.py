"""Hard caps on a run: what it has spent, and which cap that reaches."""

from __future__ import annotations

import operator
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from mcpagent.core.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class Budget:
    """None: no cap. `usd_per_call` prices calls by server or server.tool; others cost nothing."""

    wall_s: float | None = None
    cpu_s: float | None = None
    steps: int | None = None
    tool_calls: int | None = None
    cost_usd: float | None = None
    usd_per_call: Mapping[str, float] = field(default_factory=dict)

    def price(self, trajectory: Trajectory) -> float:
        """USD of an episode's calls."""
        if not self.usd_per_call:
            return 0.0
        return sum(
            self.usd_per_call.get(f"{r.server}.{r.tool}", self.usd_per_call.get(r.server, 0.0))
            for r in trajectory.tool_results
        )


@dataclass
class Spent:
    """Of a whole run, its resumed parts included."""

    wall_s: float = 0.0
    cpu_s: float = 0.0
    steps: int = 0
    tool_calls: int = 0
    cost_usd: float = 0.0


class BudgetReached(Exception):
    """A cap was reached in the middle of a step."""


class Meter:
    """Adds up what a run spends from now on to what it `spent` before."""

    def __init__(self, budget: Budget, spent: Spent) -> None:
        self._budget, self.spent = budget, spent
        self._wall, self._cpu = time.monotonic(), time.process_time()

    def read(self) -> None:
        """Bring the clocks up to date."""
        wall, cpu = time.monotonic(), time.process_time()
        self.spent.wall_s += wall - self._wall
        self.spent.cpu_s += cpu - self._cpu
        self._wall, self._cpu = wall, cpu

    def add(self, trajectory: Trajectory) -> None:
        """Count an episode that has just ended. Raises BudgetReached where a cap is exceeded: what the step
        would still cost is saved, what it did cost remains counted."""
        self.spent.tool_calls += len(trajectory.tool_results)
        self.spent.cost_usd += self._budget.price(trajectory)
        if (reason := self._first(operator.gt)) is not None:
            raise BudgetReached(reason)

    def reached(self) -> str | None:
        """The first cap that is reached, with its number; None while there is none."""
        return self._first(operator.ge)

    def _first(self, is_past: Callable[[float, float], bool]) -> str | None:
        self.read()
        for name in vars(self.spent):
            cap = getattr(self._budget, name)
            if cap is not None and is_past(getattr(self.spent, name), cap):
                return f"budget.{name} {cap:g} is spent"
        return None
