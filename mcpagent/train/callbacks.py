"""What may look at every step of a run, add to its record, and end it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that is done: its record as it stands in metrics.jsonl, and its episodes, which were sampled
    with the weights of the step before."""

    step: int
    metrics: JsonObject
    trajectories: Sequence[Trajectory]


class Callback(Protocol):
    """Both are called once a step, in this order, before the step's checkpoint is written."""

    def on_step(self, report: StepReport) -> None:
        """Look at a step; what is added to `report.metrics` joins the record."""
        ...

    def should_stop(self) -> str | None:
        """Why the run is to end now; None goes on."""
        ...
