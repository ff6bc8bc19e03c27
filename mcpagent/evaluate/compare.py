"""Two evaluations of the same tasks, compared task by task."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from mcpagent.core.records import Metric, Record
from mcpagent.errors import UserError
from mcpagent.evaluate.intervals import clustered_mean, paired_difference
from mcpagent.evaluate.summary import EvalSummary, TaskOutcome

SIGNIFICANCE = 0.05
MAX_UNSCORED = 0.02  # of the episodes of either side: with more, what is missing could be the difference
ComparisonVerdict = Literal["b is better", "a is better", "no difference shown", "no verdict"]


class EpisodeCount(Record):
    """The episodes of one side, and how many of them could not be scored."""

    episodes: int
    unscored: int

    @property
    def share(self) -> float:
        """Unscored episodes per episode, 0..1; 0 without episodes."""
        return self.unscored / self.episodes if self.episodes else 0.0


class Comparison(Record):
    """The paired comparison of two evaluations.

    `difference` is b minus a over the tasks that both scored; `a` and `b` are over those tasks too.
    `a_all`, `b_all` and `difference_all` are success over the tasks that both have, with unscored episodes
    counted as failed. `why_no_verdict` says what of the counts stands against a verdict."""

    a: Metric
    b: Metric
    difference: Metric
    p_value: float | None
    wins: int
    losses: int
    ties: int
    unpaired: int
    verdict: ComparisonVerdict
    why_no_verdict: str | None
    a_count: EpisodeCount
    b_count: EpisodeCount
    a_all: Metric
    b_all: Metric
    difference_all: Metric


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
            "the two evaluations share no scored task, so no pairs can be compared",
            remedy="evaluate both on the same data: mcpagent eval checkpoint PATH --data FILE",
        )
    rate = measure == "success"
    paired = paired_difference(left, right, seed=seed, rate=rate)
    counts = _count(a, complexity), _count(b, complexity)
    why = why_no_verdict(*counts)
    every_left, every_right = _of_all(a, complexity), _of_all(b, complexity)
    common = sorted(every_left.keys() & every_right.keys())
    return Comparison(
        a=clustered_mean([left[t] for t in shared], seed=seed, rate=rate),
        b=clustered_mean([right[t] for t in shared], seed=seed, rate=rate),
        difference=paired.difference,
        p_value=paired.p_value,
        wins=paired.wins,
        losses=paired.losses,
        ties=paired.ties,
        unpaired=paired.unpaired,
        verdict="no verdict" if why is not None else _verdict(paired.difference, paired.p_value),
        why_no_verdict=why,
        a_count=counts[0],
        b_count=counts[1],
        a_all=clustered_mean([every_left[t] for t in common], seed=seed, rate=True),
        b_all=clustered_mean([every_right[t] for t in common], seed=seed, rate=True),
        difference_all=paired_difference(every_left, every_right, seed=seed).difference,
    )


def why_no_verdict(a: EpisodeCount, b: EpisodeCount) -> str | None:
    """Why the unscored episodes of two evaluations rule out a verdict; None where they do not."""
    for name, count in (("a", a), ("b", b)):
        if count.share > MAX_UNSCORED:
            return (
                f"{count.unscored} of the {count.episodes} episodes of {name} are unscored, more than "
                f"{MAX_UNSCORED:.0%}"
            )
    if a.unscored != b.unscored:
        return f"a left {a.unscored} of its episodes unscored and b {b.unscored}"
    return None


def _count(summary: EvalSummary, complexity: str | None) -> EpisodeCount:
    outcomes = [o for o in summary.tasks.values() if complexity in (None, o.complexity)]
    unscored = sum(o.unscored for o in outcomes)
    return EpisodeCount(episodes=sum(len(o.success) for o in outcomes) + unscored, unscored=unscored)


def _of_all(summary: EvalSummary, complexity: str | None) -> dict[str, Sequence[float]]:
    return {t: o.success_of_all for t, o in summary.tasks.items() if complexity in (None, o.complexity)}


def _values(
    summary: EvalSummary, measure: Literal["success", "reward"], complexity: str | None
) -> dict[str, Sequence[float]]:
    def of(outcome: TaskOutcome) -> tuple[float, ...]:
        return outcome.success if measure == "success" else outcome.reward

    values = {t: of(o) for t, o in summary.tasks.items() if complexity in (None, o.complexity)}
    return {t: v for t, v in values.items() if v}


def _verdict(difference: Metric, p_value: float | None) -> ComparisonVerdict:
    if difference.value is None or p_value is None or p_value >= SIGNIFICANCE:
        return "no difference shown"
    return "b is better" if difference.value > 0 else "a is better"
