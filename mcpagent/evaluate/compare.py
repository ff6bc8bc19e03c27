"""Two evaluations of the same tasks, compared task by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mcpagent.core.metrics import Metric
from mcpagent.core.records import Record
from mcpagent.errors import UserError
from mcpagent.evaluate.intervals import clustered_mean, paired_difference
from mcpagent.evaluate.summary import EvalSummary, TaskOutcome

SIGNIFICANCE = 0.05
Verdict = Literal["b is better", "a is better", "no difference shown"]


class Comparison(Record):
    """`difference` is b minus a over the tasks that both scored; `a` and `b` are over those tasks too."""

    a: Metric
    b: Metric
    difference: Metric
    p_value: float | None
    wins: int
    losses: int
    ties: int
    unpaired: int
    verdict: Verdict


def compare(
    a: EvalSummary,
    b: EvalSummary,
    *,
    measure: Literal["success", "reward"] = "success",
    complexity: str | None = None,
    seed: int = 0,
) -> Comparison:
    """Paired comparison of `measure`. Raises UserError when the two share no scored task."""
    left, right = _values(a, measure, complexity), _values(b, measure, complexity)
    shared = sorted(t for t in left.keys() & right.keys())
    if not shared:
        raise UserError(
            "the two evaluations share no scored task, so there is nothing to pair",
            remedy="evaluate both on the same data: mcpagent eval checkpoint PATH --data FILE",
        )
    rate = measure == "success"
    paired = paired_difference(left, right, seed=seed, rate=rate)
    return Comparison(
        a=clustered_mean([left[t] for t in shared], seed=seed, rate=rate),
        b=clustered_mean([right[t] for t in shared], seed=seed, rate=rate),
        difference=paired.difference,
        p_value=paired.p_value,
        wins=paired.wins,
        losses=paired.losses,
        ties=paired.ties,
        unpaired=paired.unpaired,
        verdict=_verdict(paired.difference, paired.p_value),
    )


def _values(
    summary: EvalSummary, measure: Literal["success", "reward"], complexity: str | None
) -> dict[str, Sequence[float]]:
    def of(outcome: TaskOutcome) -> tuple[float, ...]:
        return outcome.success if measure == "success" else outcome.reward

    chosen = {t: of(o) for t, o in summary.tasks.items() if complexity in (None, o.complexity)}
    return {t: v for t, v in chosen.items() if v}


def _verdict(difference: Metric, p_value: float | None) -> Verdict:
    if difference.value is None or p_value is None or p_value >= SIGNIFICANCE:
        return "no difference shown"
    return "b is better" if difference.value > 0 else "a is better"
