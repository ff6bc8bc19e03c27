"""Two evaluations of the same tasks, compared task by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from mcpagent.core.intervals import MAX_UNSCORED
from mcpagent.core.records import Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import DIVISIONS
from mcpagent.evaluate.intervals import (
    FEWEST_TASKS,
    TasksNeeded,
    clustered_mean,
    holm,
    paired_difference,
    tasks_needed,
)
from mcpagent.evaluate.summary import EvalSummary, TaskOutcome

SIGNIFICANCE = 0.05
POINTS = 0.05  # the difference that a person usually asks about
ComparisonVerdict = Literal["b is better", "a is better", "no difference shown", "no verdict"]


class EpisodeCount(Record):
    """The episodes of one side, and how many of them could not be scored."""

    episodes: int
    unscored: int

    @property
    def share(self) -> float:
        """The share of episodes that are unscored, 0..1; 0 without episodes."""
        return self.unscored / self.episodes if self.episodes else 0.0


class SliceDifference(Record):
    """The paired comparison over a part of the tasks. `adjusted_p` is the p value corrected for the number of
    slices that are tested (Holm), `differs` whether that is below 0.05; a slice of fewer than `FEWEST_TASKS`
    tasks, which no outcome could decide, is not tested."""

    n_tasks: int
    a: Metric
    b: Metric
    difference: Metric
    p_value: float | None
    adjusted_p: float | None
    differs: bool


class Comparison(Record):
    """The paired comparison of the task success of two evaluations.

    `difference` is b minus a over the tasks that both have, an unscored episode counted as failed; `a` and
    `b` are over those tasks too. The three with `_scored` are over scored episodes only. `p_value`, the mid-p
    of the sign flips, decides the verdict; `exact_p` is the exact one, which errs towards no difference.
    `why_no_verdict` says how unscored episodes rule a verdict out. `needed` is how many tasks decide what was
    seen; `slices`, by what divides the tasks and then by value, is empty if the tasks were not given."""

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
    needed: TasksNeeded | None = None
    slices: dict[str, dict[str, SliceDifference]] = {}


def compare(
    a: EvalSummary,
    b: EvalSummary,
    *,
    complexity: str | None = None,
    tasks: Iterable[Task] = (),
    points: float = POINTS,
) -> Comparison:
    """Compare task success by task, and on slices of the `tasks` if they are given; `needed` says how many
    tasks a difference of `points` (0..1) takes. Raises UserError if the two share no task."""
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
        needed=tasks_needed(left, right, points=points),
        slices=_slices(tasks, left, right),
    )


def _slices(
    tasks: Iterable[Task], a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]
) -> dict[str, dict[str, SliceDifference]]:
    """Return the comparison of each part, without divisions that leave all tasks in one part."""
    parts: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in DIVISIONS}
    for task in tasks:
        if task.id in a and task.id in b:
            for name, divide in DIVISIONS.items():
                parts[name][divide(task)].append(task.id)
    places = [(name, part) for name, by in parts.items() if len(by) > 1 for part in sorted(by)]
    sides = [[{t: side[t] for t in parts[name][part]} for side in (a, b)] for name, part in places]
    paired = [paired_difference(left, right, seed=0) for left, right in sides]
    tested = [i for i, (left, _) in enumerate(sides) if len(left) >= FEWEST_TASKS]
    p_values = [p for i in tested if (p := paired[i].mid_p) is not None]
    adjusted = dict(zip(tested, holm(p_values), strict=True))
    slices: dict[str, dict[str, SliceDifference]] = {}
    for i, ((name, part), (left, right), one) in enumerate(zip(places, sides, paired, strict=True)):
        p_value = adjusted.get(i)
        slices.setdefault(name, {})[part] = SliceDifference(
            n_tasks=len(left),
            a=clustered_mean(list(left.values()), seed=0),
            b=clustered_mean(list(right.values()), seed=0),
            difference=one.difference,
            p_value=one.mid_p if i in adjusted else None,
            adjusted_p=p_value,
            differs=p_value is not None and p_value < SIGNIFICANCE,
        )
    return slices


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
