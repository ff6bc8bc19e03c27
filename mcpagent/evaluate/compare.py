"""Two evaluations of the same tasks, compared task by task."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

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


class SliceDifference(Record):
    """The paired comparison over a part of the tasks, on those that both scored. `adjusted_p` is the p value
    corrected for the number of slices that are tested (Holm), `differs` whether that is below 0.05; a slice
    of fewer than `FEWEST_TASKS` tasks, which no outcome could decide, is not tested."""

    n_tasks: int
    a: Metric
    b: Metric
    difference: Metric
    p_value: float | None
    adjusted_p: float | None
    differs: bool


class Comparison(Record):
    """The paired comparison of two evaluations.

    `difference` is b minus a over the tasks that both scored; `a` and `b` are over those tasks too.
    `a_all`, `b_all` and `difference_all` are success over the tasks that both have, with unscored episodes
    counted as failed. `p_value`, the mid-p of the sign flips, is what the verdict goes by; `exact_p` is the
    exact one, which errs towards no difference. `why_no_verdict` says what of the counts stands against a
    verdict. `needed` is how many tasks decide what was seen; `slices`, by what they divide the tasks by and
    then by value, is empty where the tasks themselves were not at hand."""

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
    exact_p: float | None = None
    needed: TasksNeeded | None = None
    slices: dict[str, dict[str, SliceDifference]] = {}


def compare(
    a: EvalSummary,
    b: EvalSummary,
    *,
    measure: Literal["success", "reward"] = "success",
    complexity: str | None = None,
    tasks: Iterable[Task] = (),
    points: float = POINTS,
    seed: int = 0,
) -> Comparison:
    """Paired comparison of `measure`, and of its slices where the `tasks` are given; `points` (0..1) is the
    difference that it is to say the needed number of tasks for. Raises UserError when the two share no scored
    task."""
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
        a_all=clustered_mean([every_left[t] for t in common], seed=seed, rate=True),
        b_all=clustered_mean([every_right[t] for t in common], seed=seed, rate=True),
        difference_all=paired_difference(every_left, every_right, seed=seed).difference,
        needed=tasks_needed(left, right, points=points) if rate else None,
        slices=_slices(tasks, left, right, seed=seed, rate=rate),
    )


def _slices(
    tasks: Iterable[Task],
    a: Mapping[str, Sequence[float]],
    b: Mapping[str, Sequence[float]],
    *,
    seed: int,
    rate: bool,
) -> dict[str, dict[str, SliceDifference]]:
    """Divisions that leave all tasks in one part say nothing more, and are left out."""
    parts: dict[str, dict[str, list[str]]] = {name: defaultdict(list) for name in DIVISIONS}
    for task in tasks:
        if task.id in a and task.id in b:
            for name, divide in DIVISIONS.items():
                parts[name][divide(task)].append(task.id)
    places = [(name, part) for name, by in parts.items() if len(by) > 1 for part in sorted(by)]
    sides = [[{t: side[t] for t in parts[name][part]} for side in (a, b)] for name, part in places]
    paired = [paired_difference(left, right, seed=seed, rate=rate) for left, right in sides]
    tested = [i for i, (left, _) in enumerate(sides) if len(left) >= FEWEST_TASKS]
    p_values = [p for i in tested if (p := paired[i].mid_p) is not None]
    adjusted = dict(zip(tested, holm(p_values), strict=True))
    slices: dict[str, dict[str, SliceDifference]] = {}
    for i, ((name, part), (left, right), one) in enumerate(zip(places, sides, paired, strict=True)):
        p_value = adjusted.get(i)
        slices.setdefault(name, {})[part] = SliceDifference(
            n_tasks=len(left),
            a=clustered_mean(list(left.values()), seed=seed, rate=rate),
            b=clustered_mean(list(right.values()), seed=seed, rate=rate),
            difference=one.difference,
            p_value=one.mid_p if i in adjusted else None,
            adjusted_p=p_value,
            differs=p_value is not None and p_value < SIGNIFICANCE,
        )
    return slices


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
