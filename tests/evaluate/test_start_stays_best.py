"""The sides of a report if what a run began with stayed its best checkpoint."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from mcpagent.evaluate.report.run_data import _pair  # pyright: ignore[reportPrivateUsage]


def test_a_best_checkpoint_of_step_0_is_the_side_after_training() -> None:
    stored: dict[str, Any] = {
        stem: SimpleNamespace(provenance={"step": 0}, tasks={"task": 1}) for stem in ("untrained", "best")
    }
    assert _pair(stored) == ("untrained", "best")
