"""From trajectories to the numbers of an evaluation."""

from __future__ import annotations

import math
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import ConfigDict, Field

from mcpagent.core.records import JsonObject, Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.any_form import success_in_any_form
from mcpagent.evaluate.breakdown import Breakdown, guarded_parts
from mcpagent.evaluate.columns import Columns
from mcpagent.evaluate.intervals import clustered_mean
from mcpagent.storage.datasets import DiskList
from mcpagent.tools.metrics import PoolMetrics

SCHEMA_VERSION = 2  # 1 left unscored episodes out of `task_success`
COMPLEXITIES = ("simple", "moderate", "complex")


class TaskOutcome(Record):
    """The scored attempts at one task, in the order of `attempt`: what a paired comparison needs. `parts` are
    those that it belongs to, if the tasks were at hand (`breakdown.guarded_parts`)."""

    complexity: str
    success: tuple[float, ...]
    reward: tuple[float, ...]
    unscored: int = 0
    parts: dict[str, str] = {}

    @property
    def attempts(self) -> tuple[float, ...]:
        """The success of every attempt (0 or 1), an unscored one counted as failed."""
        return (*self.success, *[0.0] * self.unscored)


class ComplexitySummary(Record):
    """The main numbers of the tasks of one complexity."""

    n_tasks: int
    n_episodes: int
    unscored: int
    task_success: Metric
    task_success_scored: Metric
    tool_sequence_accuracy: Metric
    mean_reward: Metric
    invalid_call_rate: Metric
    mean_turns: Metric
    mean_tool_calls: Metric


class EvalSummary(Record):
    """The numbers of some episodes.

    In `task_success`, `pass@k`, `pass^k` and `success_in_any_form` an unscored episode counts as failed, so
    that losing episodes cannot raise them. The other metrics, `task_success_scored` among them, are over
    scored episodes only. `success_in_any_form` is there if the tasks were at hand.
    The `n` of a metric is the number of tasks behind it, because the task is the independent unit.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    metrics: dict[str, Metric]
    by_complexity: dict[str, ComplexitySummary]
    n_tasks: int
    n_episodes: int
    unscored: int
    stop_reasons: dict[str, int]
    tasks: dict[str, TaskOutcome]

    def with_provenance(
        self,
        provenance: JsonObject,
        *,
        cassette: JsonObject | None = None,
        tool_metrics: PoolMetrics | None = None,
        breakdown: Breakdown | None = None,
    ) -> EvalResult:
        """Return the document that `eval --json` prints and that `eval/*.json` holds."""
        return EvalResult(
            **dict(self),
            provenance=provenance,
            cassette=cassette,
            tool_metrics=tool_metrics,
            breakdown=breakdown,
        )


class EvalResult(EvalSummary):
    """An `EvalSummary` that says what was evaluated, on which data, and how. `cassette` counts what
    was recorded and replayed; `tool_metrics` sums up the calls of its servers; `breakdown` says in which
    parts it succeeds and fails."""

    model_config = ConfigDict(extra="ignore")  # results of older versions hold more

    provenance: JsonObject
    cassette: JsonObject | None = None
    tool_metrics: PoolMetrics | None = None
    breakdown: Breakdown | None = None


EpisodeMeasure = Callable[[Trajectory], float | None]


def summarise(
    trajectories: Iterable[Trajectory], *, seed: int = 0, tasks: Iterable[Task] | None = None
) -> EvalSummary:
    """Return metrics with 95% intervals; `seed` drives the resampling only. Attempts are grouped by task id.
    With the `tasks`, success in any form is one of them. Of an episode a few numbers are kept, so that there
    may be any number of them; `tasks` may be a file of tasks."""
    posed = () if tasks is None else tasks if isinstance(tasks, Sequence) else DiskList(tasks)
    places = {task.id: place for place, task in enumerate(posed)}
    columns = Columns((*_MEASURES, IN_ANY_FORM))
    complexities: dict[str, str] = {}  # by task
    parts: dict[str, dict[str, str]] = {}
    stop_reasons: Counter[str] = Counter()
    for trajectory in trajectories:
        complexities.setdefault(trajectory.task_id, sys.intern(trajectory.complexity))
        stop_reasons[trajectory.stop_reason.value] += 1
        # Of an unscored episode nothing counts but that it did not succeed.
        counts = _MEASURES if trajectory.is_success is not None else ("task_success",)
        numbers = {name: of(trajectory) if name in counts else None for name, of in _MEASURES.items()}
        place = places.get(trajectory.task_id)
        in_any_form = None
        if place is not None:
            in_any_form = success_in_any_form(task := posed[place], trajectory)
            parts[task.id] = parts.get(task.id) or guarded_parts(task)
        columns.add(trajectory.task_id, trajectory.attempt, {**numbers, IN_ANY_FORM: in_any_form})
    outcomes = _outcomes(columns, complexities, parts)
    in_any_form = {} if tasks is None else _metrics(columns, outcomes, seed, names=(IN_ANY_FORM,))
    ordered = [c for c in COMPLEXITIES if c in complexities.values()]
    ordered += sorted({*complexities.values()} - set(COMPLEXITIES))
    return EvalSummary(
        metrics=_metrics(columns, outcomes, seed)
        | in_any_form
        | pass_metrics([o.attempts for o in outcomes.values()], seed=seed),
        by_complexity={
            c: _of_complexity({t: o for t, o in outcomes.items() if o.complexity == c}, columns, seed)
            for c in ordered
        },
        n_tasks=len(outcomes),
        n_episodes=stop_reasons.total(),
        unscored=sum(o.unscored for o in outcomes.values()),
        stop_reasons=dict(sorted(stop_reasons.items())),
        tasks=outcomes,
    )


def _outcomes(
    columns: Columns, complexities: Mapping[str, str], parts: Mapping[str, dict[str, str]]
) -> dict[str, TaskOutcome]:
    played, rewards = columns.by_task("task_success"), columns.by_task("mean_reward")
    return {
        task_id: TaskOutcome(
            complexity=complexities[task_id],
            success=tuple(scored),
            reward=tuple(rewards[task_id]),
            unscored=len(played[task_id]) - len(scored),
            parts=parts.get(task_id, {}),
        )
        for task_id, scored in columns.by_task("task_success_scored").items()
    }


def _metrics(
    columns: Columns, tasks: Iterable[str], seed: int, names: Iterable[str] | None = None
) -> dict[str, Metric]:
    metrics: dict[str, Metric] = {}
    for name in _MEASURES if names is None else names:
        values = columns.by_task(name)
        metrics[name] = clustered_mean([values[t] for t in tasks], seed=seed, rate=is_rate(name))
    return metrics


def is_rate(name: str) -> bool:
    """Return whether a metric is a share of something, from 0 to 1."""
    return name in RATE_METRICS or name == IN_ANY_FORM or name.startswith("pass")


def _of_complexity(tasks: Mapping[str, TaskOutcome], columns: Columns, seed: int) -> ComplexitySummary:
    metrics = _metrics(columns, tasks, seed)
    unscored = sum(o.unscored for o in tasks.values())
    return ComplexitySummary(
        n_tasks=len(tasks),
        n_episodes=unscored + sum(len(o.success) for o in tasks.values()),
        unscored=unscored,
        **{name: metrics[name] for name in ComplexitySummary.model_fields if name in metrics},
    )


def pass_metrics(successes_by_task: Sequence[Sequence[float]], *, seed: int) -> dict[str, Metric]:
    """Return `pass@k` (one of k attempts succeeds) and `pass^k` (all k do), unbiased, for k = 2, 4, ... and
    K.

    With c successes in n attempts: pass@k = 1 - C(n-c, k) / C(n, k), pass^k = C(c, k) / C(n, k). A task with
    fewer than k attempts says nothing about k. Empty with one attempt a task."""
    most = max((len(s) for s in successes_by_task), default=0)
    metrics: dict[str, Metric] = {}
    for k in sorted({2**i for i in range(1, most.bit_length()) if 2**i <= most} | ({most} - {0, 1})):
        counts = [(len(s), round(sum(s))) for s in successes_by_task if len(s) >= k]
        any_of = [[1.0 - math.comb(n - c, k) / math.comb(n, k)] for n, c in counts]
        all_of = [[math.comb(c, k) / math.comb(n, k)] for n, c in counts]
        metrics[f"pass@{k}"] = clustered_mean(any_of, seed=seed)
        metrics[f"pass^{k}"] = clustered_mean(all_of, seed=seed)
    return metrics


def _success(trajectory: Trajectory) -> float | None:
    return None if trajectory.is_success is None else float(trajectory.is_success)


def _parse_failure_share(trajectory: Trajectory) -> float | None:
    failures = sum(len(t.parse_failures) for t in trajectory.turns)
    attempts = failures + trajectory.call_count
    return failures / attempts if attempts else None


def _tool_error_share(trajectory: Trajectory) -> float | None:
    results = trajectory.tool_results
    return sum(r.is_error for r in results) / len(results) if results else None


def _term(name: str) -> EpisodeMeasure:
    return lambda trajectory: trajectory.term(name)


RATE_METRICS: dict[str, EpisodeMeasure] = {
    "task_success": lambda trajectory: float(bool(trajectory.is_success)),
    "task_success_scored": _success,
    "tool_sequence_accuracy": _term("sequence_exact"),
    "answer_accuracy": _term("answer"),
    "answer_form_rate": _term("answer_form"),
    "coverage": _term("coverage"),
    "invalid_call_rate": _term("invalid_rate"),
    "parse_failure_rate": _parse_failure_share,
    "tool_error_rate": _tool_error_share,
}
MEAN_METRICS: dict[str, EpisodeMeasure] = {
    "mean_reward": lambda trajectory: trajectory.reward,
    "mean_turns": lambda trajectory: float(len(trajectory.turns)),
    "mean_tool_calls": lambda trajectory: float(trajectory.call_count),
    "mean_searches": lambda trajectory: float(len(trajectory.searches)),
}

_MEASURES = {**RATE_METRICS, **MEAN_METRICS}
IN_ANY_FORM = "success_in_any_form"  # needs the tasks; no training run reads it
ABOUT_ANY_FORM = (
    "Success in any form is an upper bound: the right value stands anywhere in the last message, so a list "
    "of guesses would pass. It is here because an untrained model loses by form what it may know."
)

# What a training run measures of itself, as the stems of files under eval/.
UNTRAINED, BEST = "untrained", "best"
