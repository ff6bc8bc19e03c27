"""Two evaluations of the same tasks, compared task by task."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Literal

from mcpagent.core.intervals import MAX_UNSCORED
from mcpagent.core.records import Metric, Record
from mcpagent.errors import UserError
from mcpagent.evaluate.intervals import (
    clustered_mean,
    holm,
    paired_difference,
)
from mcpagent.evaluate.summary import EvalSummary, TaskOutcome

SIGNIFICANCE = 0.05
_FEWEST_TASKS = 5  # that can decide anything: five that all differ one way have a mid-p of 1/2^5
ComparisonVerdict = Literal["b is better", "a is better", "no difference shown", "no verdict"]


class EpisodeCount(Record):
    """The episodes of one side, and how many of them could not be scored."""

    episodes: int
    unscored: int

    @property
    def share(self) -> float:
        """The share of episodes that are unscored, 0..1; 0 without episodes."""
        return self.unscored / self.episodes if self.episodes else 0.0


class PartDifference(Record):
    """The paired comparison of all tasks, or of a part of them. `adjusted_p` is corrected for the number of
    parts (Holm); None for fewer tasks than any outcome could decide."""

    name: str
    a: Metric
    b: Metric
    difference: Metric
    adjusted_p: float | None

    @property
    def has_fallen(self) -> bool:
        """Return True if b is worse. The chance that this is said of any part wrongly is 5% at most."""
        is_sure = self.adjusted_p is not None and self.adjusted_p < SIGNIFICANCE
        return is_sure and (self.difference.value or 0.0) < 0


class Comparison(Record):
    """The paired comparison of the task success of two evaluations.

    `difference` is b minus a over the tasks that both have, an unscored episode counted as failed; `a` and
    `b` are over those tasks too. The three with `_scored` are over scored episodes only. `p_value`, the mid-p
    of the sign flips, decides the verdict; `exact_p` is the exact one, which errs towards no difference.
    `why_no_verdict` says how unscored episodes rule a verdict out. `parts` are all tasks and what they are
    divided into (`breakdown.GUARDED`), if both sides say it."""

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
    parts: tuple[PartDifference, ...] = ()


def compare(a: EvalSummary, b: EvalSummary) -> Comparison:
    """Compare task success by task. Raises UserError if the two share no task."""
    of_a, of_b = a.tasks, b.tasks
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
        parts=_parts(of_a, of_b),
    )


def _parts(a: Mapping[str, TaskOutcome], b: Mapping[str, TaskOutcome]) -> tuple[PartDifference, ...]:
    members: dict[tuple[str, str], list[str]] = defaultdict(list)
    for task_id in sorted(a.keys() & b.keys()):
        if a[task_id].parts == b[task_id].parts:
            for of_division in a[task_id].parts.items():
                members[of_division].append(task_id)
            members["all", "tasks"].append(task_id)
    values = Counter(division for division, _ in members)
    if len(values) < 2:  # evaluations of older versions, or of trajectories alone
        return ()
    places = sorted(place for place in members if place[0] == "all" or values[place[0]] > 1)
    sides = [[{t: side[t].attempts for t in members[place]} for side in (a, b)] for place in places]
    paired = [paired_difference(left, right, seed=0) for left, right in sides]
    tested = [i for i, (left, _) in enumerate(sides) if len(left) >= _FEWEST_TASKS]
    p_values = [p for i in tested if (p := paired[i].mid_p) is not None]
    adjusted = dict(zip(tested, holm(p_values), strict=True))
    return tuple(
        PartDifference(
            name=" ".join(place),
            a=clustered_mean(list(left.values()), seed=0),
            b=clustered_mean(list(right.values()), seed=0),
            difference=one.difference,
            adjusted_p=adjusted.get(i),
        )
        for i, (place, (left, right), one) in enumerate(zip(places, sides, paired, strict=True))
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


def _count(outcomes: Mapping[str, TaskOutcome]) -> EpisodeCount:
    unscored = sum(o.unscored for o in outcomes.values())
    return EpisodeCount(episodes=sum(len(o.success) for o in outcomes.values()) + unscored, unscored=unscored)


def _verdict(difference: Metric, p_value: float | None) -> ComparisonVerdict:
    if difference.value is None or p_value is None or p_value >= SIGNIFICANCE:
        return "no difference shown"
    return "b is better" if difference.value > 0 else "a is better"
