"""From trajectories to the numbers of an evaluation."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence

from pydantic import Field

from mcpagent.core.records import JsonObject, Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import SCHEMA_VERSION, Trajectory
from mcpagent.evaluate.breakdown import Breakdown
from mcpagent.evaluate.intervals import clustered_mean
from mcpagent.policy.contract import Policy
from mcpagent.rollout.agent import AgentSettings, ContextRenderer
from mcpagent.rollout.collector import attempts, collect
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.metrics import PoolMetrics

COMPLEXITIES = ("simple", "moderate", "complex")


class TaskOutcome(Record):
    """The scored attempts at one task, in the order of `attempt`: what a paired comparison needs."""

    complexity: str
    success: tuple[float, ...]
    reward: tuple[float, ...]
    unscored: int = 0

    @property
    def success_of_all(self) -> tuple[float, ...]:
        """Success of every attempt (0 or 1), with unscored ones as failed."""
        return (*self.success, *[0.0] * self.unscored)


class ComplexitySummary(Record):
    """The main numbers of the tasks of one complexity."""

    n_tasks: int
    n_episodes: int
    unscored: int
    task_success: Metric
    task_success_all: Metric | None = None  # None in results of before it was measured
    tool_sequence_accuracy: Metric
    mean_reward: Metric
    invalid_call_rate: Metric
    mean_turns: Metric
    mean_tool_calls: Metric


class EvalSummary(Record):
    """The numbers of some episodes. Unscored episodes are in `n_episodes`, and in no metric but
    `task_success_all`, where they count as failed: whatever makes episodes drop out, that one it cannot
    raise.

    The `n` of a metric is the number of tasks behind it, because the task is the independent unit.
    """

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
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
        calibration: Mapping[str, CalibrationRow] | None = None,
    ) -> EvalResult:
        """The result as the document that `eval --json` prints and that `eval/*.json` holds."""
        return EvalResult(
            **dict(self),
            provenance=provenance,
            cassette=cassette,
            tool_metrics=tool_metrics,
            breakdown=breakdown,
            calibration=dict(calibration or {}),
        )


# The policies that an evaluation is read against, and what each is.
CALIBRATION = {
    "gold": "the reference calls",
    "empty": "nothing is answered",
    "base": "the untrained model",
}


class CalibrationRow(Record):
    """What another policy comes to on the tasks of an evaluation, over its scored episodes. `failed` names
    the tasks that it played and failed, `error` is the first of an unscored episode; `source` is `played`, or
    the stored result that the numbers are from."""

    task_success: Metric
    mean_reward: Metric
    n_episodes: int
    unscored: int
    failed: tuple[str, ...] = ()
    error: str | None = None
    source: str


class EvalResult(EvalSummary):
    """An `EvalSummary` that says what was evaluated, on which data, and how. `cassette` is what one did,
    where tools were recorded or replayed; `tool_metrics` what the calls of its servers came to; `breakdown`
    where it succeeds and fails, None in results of before that was measured; `calibration` the rows `gold`,
    `empty` and `base` beside it, where they were asked for."""

    provenance: JsonObject
    cassette: JsonObject | None = None
    tool_metrics: PoolMetrics | None = None
    breakdown: Breakdown | None = None
    calibration: dict[str, CalibrationRow] = {}


EpisodeMeasure = Callable[[Trajectory], float | None]


def summarise(trajectories: Iterable[Trajectory], *, seed: int = 0) -> EvalSummary:
    """Metrics with 95% intervals; `seed` drives the resampling only. Attempts are grouped by task id."""
    by_task: dict[str, list[Trajectory]] = defaultdict(list)
    for trajectory in trajectories:
        by_task[trajectory.task_id].append(trajectory)
    tasks = {task_id: _outcome(by_task[task_id]) for task_id in sorted(by_task)}
    everything = [t for attempts in by_task.values() for t in attempts]
    present = {t.complexity for t in everything}
    ordered = [c for c in COMPLEXITIES if c in present] + sorted(present - set(COMPLEXITIES))
    return EvalSummary(
        metrics=_metrics(by_task, seed) | pass_metrics([o.success for o in tasks.values()], seed=seed),
        by_complexity={c: _of_complexity(c, tasks, by_task, seed) for c in ordered},
        n_tasks=len(tasks),
        n_episodes=len(everything),
        unscored=sum(o.unscored for o in tasks.values()),
        stop_reasons=dict(sorted(Counter(t.stop_reason.value for t in everything).items())),
        tasks=tasks,
    )


def is_scored(trajectory: Trajectory) -> bool:
    """Whether an episode has a reward and a success verdict; infrastructure failures have neither."""
    return trajectory.is_success is not None


def success_of_all(summary: EvalSummary, *, complexity: str | None = None) -> Metric:
    """Task success with unscored episodes counted as failed, of all tasks or of one complexity."""
    outcomes = [o for o in summary.tasks.values() if complexity in (None, o.complexity)]
    return clustered_mean([o.success_of_all for o in outcomes], seed=0, rate=True)


def pass_metrics(successes_by_task: Sequence[Sequence[float]], *, seed: int) -> dict[str, Metric]:
    """`pass@k` (one of k attempts succeeds) and `pass^k` (all k do), unbiased, for k = 2, 4, ... and K.

    With c successes in n attempts: pass@k = 1 - C(n-c, k) / C(n, k), pass^k = C(c, k) / C(n, k).
    A task with fewer than k scored attempts says nothing about k. Empty with one attempt a task.
    """
    most = max((len(s) for s in successes_by_task), default=0)
    metrics: dict[str, Metric] = {}
    for k in sorted({2**i for i in range(1, most.bit_length()) if 2**i <= most} | ({most} - {0, 1})):
        counts = [(len(s), round(sum(s))) for s in successes_by_task if len(s) >= k]
        any_of = [[1.0 - math.comb(n - c, k) / math.comb(n, k)] for n, c in counts]
        all_of = [[math.comb(c, k) / math.comb(n, k)] for n, c in counts]
        metrics[f"pass@{k}"] = clustered_mean(any_of, seed=seed)
        metrics[f"pass^{k}"] = clustered_mean(all_of, seed=seed)
    return metrics


def _outcome(attempts: Sequence[Trajectory]) -> TaskOutcome:
    scored = [t for t in sorted(attempts, key=lambda t: t.attempt) if is_scored(t)]
    return TaskOutcome(
        complexity=attempts[0].complexity,
        success=tuple(float(bool(t.is_success)) for t in scored),
        reward=tuple(t.reward for t in scored if t.reward is not None),
        unscored=len(attempts) - len(scored),
    )


def _mean(
    scored: Mapping[str, Sequence[Trajectory]], measure: EpisodeMeasure, seed: int, *, rate: bool
) -> Metric:
    """Episodes for which `measure` is None are left out."""
    values = [[v for t in attempts if (v := measure(t)) is not None] for attempts in scored.values()]
    return clustered_mean(values, seed=seed, rate=rate)


def _success(trajectory: Trajectory) -> float | None:
    return None if trajectory.is_success is None else float(trajectory.is_success)


def _tool_calls(trajectory: Trajectory) -> float:
    return float(trajectory.call_count)


def _parse_failure_share(trajectory: Trajectory) -> float | None:
    failures = sum(len(t.parse_failures) for t in trajectory.turns)
    attempts = failures + _tool_calls(trajectory)
    return failures / attempts if attempts else None


def _tool_error_share(trajectory: Trajectory) -> float | None:
    results = trajectory.tool_results
    return sum(r.is_error for r in results) / len(results) if results else None


def _term(name: str) -> EpisodeMeasure:
    return lambda trajectory: trajectory.term(name)


def _turns(trajectory: Trajectory) -> float:
    return float(len(trajectory.turns))


RATE_METRICS: dict[str, EpisodeMeasure] = {
    "task_success": _success,
    "task_success_all": lambda trajectory: float(bool(trajectory.is_success)),
    "tool_sequence_accuracy": _term("sequence_exact"),
    "answer_accuracy": _term("answer"),
    "coverage": _term("coverage"),
    "invalid_call_rate": _term("invalid_rate"),
    "parse_failure_rate": _parse_failure_share,
    "tool_error_rate": _tool_error_share,
}
MEAN_METRICS: dict[str, EpisodeMeasure] = {
    "mean_reward": lambda trajectory: trajectory.reward,
    "mean_turns": _turns,
    "mean_tool_calls": _tool_calls,
    "mean_searches": lambda trajectory: float(len(trajectory.searches)),
}


def _metrics(by_task: Mapping[str, Sequence[Trajectory]], seed: int) -> dict[str, Metric]:
    scored = {task_id: [t for t in by_task[task_id] if is_scored(t)] for task_id in sorted(by_task)}
    episodes = {"task_success_all": {task_id: by_task[task_id] for task_id in scored}}
    rates = {
        name: _mean(episodes.get(name, scored), measure, seed, rate=True)
        for name, measure in RATE_METRICS.items()
    }
    return rates | {name: _mean(scored, measure, seed, rate=False) for name, measure in MEAN_METRICS.items()}


def _of_complexity(
    complexity: str,
    tasks: Mapping[str, TaskOutcome],
    by_task: Mapping[str, Sequence[Trajectory]],
    seed: int,
) -> ComplexitySummary:
    outcomes = {task_id: o for task_id, o in tasks.items() if o.complexity == complexity}
    metrics = _metrics({task_id: by_task[task_id] for task_id in outcomes}, seed)
    unscored = sum(o.unscored for o in outcomes.values())
    return ComplexitySummary(
        n_tasks=len(outcomes),
        n_episodes=unscored + sum(len(o.success) for o in outcomes.values()),
        unscored=unscored,
        **{name: metrics[name] for name in ComplexitySummary.model_fields if name in metrics},
    )


# What a training run measures of itself, as the stems of files under eval/.
UNTRAINED, BEST = "untrained", "best"


async def evaluate(
    tasks: Sequence[Task],
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: ContextRenderer | None,
    samples: int = 1,
    seed: int = 0,
    concurrency: int = 256,
    deterministic: bool = True,
    on_done: Callable[[Trajectory], None] | None = None,
    played: Mapping[str, Trajectory] | None = None,
) -> list[Trajectory]:
    """Play `samples` attempts at each task with the fixed form of the reward, and with evaluation seeds,
    which training never uses. `deterministic` is what `rollout.deterministic` comes to, as in training. Those
    of `played`, by id, are taken as they are."""
    played = played or {}
    planned = list(attempts(tasks, per_task=samples, seed=seed, label="evaluation"))
    fresh = await collect(
        [attempt for attempt in planned if attempt.episode_id not in played],
        policy=policy,
        tools=tools,
        settings=settings,
        renderer=renderer,
        concurrency=concurrency,
        deterministic=deterministic,
        on_done=on_done,
    )
    by_id = {**played, **{trajectory.id: trajectory for trajectory in fresh}}
    return [by_id[attempt.episode_id] for attempt in planned]
