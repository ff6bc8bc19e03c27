"""Two evaluations of the same tasks, compared task by task."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from mcpagent.core.intervals import MAX_UNSCORED
from mcpagent.core.records import Metric, Record
from mcpagent.errors import UserError
from mcpagent.evaluate.intervals import (
    clustered_mean,
    paired_difference,
)
from mcpagent.evaluate.summary import EvalSummary, TaskOutcome

SIGNIFICANCE = 0.05
ComparisonVerdict = Literal["b is better", "a is better", "no difference shown", "no verdict"]


class EpisodeCount(Record):
    """The episodes of one side, and how many of them could not be scored."""

    episodes: int
    unscored: int

    @property
    def share(self) -> float:
        """The share of episodes that are unscored, 0..1; 0 without episodes."""
        return self.unscored / self.episodes if self.episodes else 0.0


class Comparison(Record):
    """The paired comparison of the task success of two evaluations.

    `difference` is b minus a over the tasks that both have, an unscored episode counted as failed; `a` and
    `b` are over those tasks too. The three with `_scored` are over scored episodes only. `p_value`, the mid-p
    of the sign flips, decides the verdict; `exact_p` is the exact one, which errs towards no difference.
    `why_no_verdict` says how unscored episodes rule a verdict out."""

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
    a_scored: Metric
    b_scored: Metric
    difference_scored: Metric
    exact_p: float | None = None


def compare(a: EvalSummary, b: EvalSummary, *, complexity: str | None = None) -> Comparison:
    """Compare task success by task, of one `complexity` if it is given. Raises UserError if the two share no
    task."""
    of_a, of_b = _outcomes(a, complexity), _outcomes(b, complexity)
    shared = sorted(of_a.keys() & of_b.keys())
    if not shared:
        raise UserError(
            "the two evaluations share no task, so no pairs can be compared",
            remedy="evaluate both on the same data: mcpagent eval checkpoint PATH --data FILE",
        )
    left, right = ({t: o.attempts for t, o in of.items()} for of in (of_a, of_b))
    scored = [{t: o.success for t, o in of.items()} for of in (of_a, of_b)]
    common = [t for t in shared if scored[0][t] and scored[1][t]]
    paired = paired_difference(left, right, seed=0)
    counts = _count(of_a), _count(of_b)
    why = why_no_verdict(*counts)
    return Comparison(
        a=clustered_mean([left[t] for t in shared], seed=0),
        b=clustered_mean([right[t] for t in shared], seed=0),
        difference=paired.difference,
        p_value=paired.mid_p,
        exact_p=paired.p_value,
        wins=paired.wins,
        losses=paired.losses,
        ties=paired.ties,
        unpaired=paired.unpaired,
        verdict="no verdict" if why is not None else _verdict(paired.difference, paired.mid_p),
        why_no_verdict=why,
        a_count=counts[0],
        b_count=counts[1],
        a_scored=clustered_mean([scored[0][t] for t in common], seed=0),
        b_scored=clustered_mean([scored[1][t] for t in common], seed=0),
        difference_scored=paired_difference(*scored, seed=0).difference,
    )


def why_no_verdict(a: EpisodeCount, b: EpisodeCount) -> str | None:
    """Return why the unscored episodes of two evaluations rule out a verdict; None if they do not."""
    for name, count in (("a", a), ("b", b)):
        if count.share > MAX_UNSCORED:
            return (
                f"{count.unscored} of the {count.episodes} episodes of {name} are unscored, more than "
                f"{MAX_UNSCORED:.0%}"
            )
    if a.unscored != b.unscored:
        return f"a left {a.unscored} of its episodes unscored and b {b.unscored}"
    return None


def _outcomes(summary: EvalSummary, complexity: str | None) -> dict[str, TaskOutcome]:
    return {t: o for t, o in summary.tasks.items() if complexity in (None, o.complexity)}


def _count(outcomes: Mapping[str, TaskOutcome]) -> EpisodeCount:
    unscored = sum(o.unscored for o in outcomes.values())
    return EpisodeCount(episodes=sum(len(o.success) for o in outcomes.values()) + unscored, unscored=unscored)


def _verdict(difference: Metric, p_value: float | None) -> ComparisonVerdict:
    if difference.value is None or p_value is None or p_value >= SIGNIFICANCE:
        return "no difference shown"
    return "b is better" if difference.value > 0 else "a is better"
