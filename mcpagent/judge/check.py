"""How far a judge agrees with the rule on tasks whose outcome the rule can tell: Cohen's kappa."""

from __future__ import annotations

import asyncio
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from mcpagent.core.records import JsonObject, Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Judgement, StopReason, Trajectory
from mcpagent.evaluate.intervals import RESAMPLES, clustered_mean, percentiles
from mcpagent.judge.model import ModelJudge
from mcpagent.llm.client import gather_or_cancel
from mcpagent.reward.judge import is_left_to_judge
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, record_of
from mcpagent.reward.rule import grade_by_rule


@dataclass(frozen=True, kw_only=True)
class JudgeCase:
    """An episode and its label: whether the rule calls it a success."""

    task: Task
    record: EpisodeRecord
    is_success: bool


class JudgeCheck(Record):
    """The result of `eval judge-check`, over the episodes on which the judge gave a verdict; the `n` of a
    metric is the number of tasks."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # checks of older versions hold more

    schema_version: int = Field(default=1, ge=1, le=1)
    judge: JsonObject
    tasks: JsonObject
    n_tasks: int
    n_episodes: int
    unscored: int
    faults: dict[str, int]
    agreement: Metric
    false_approvals: Metric  # of what the rule calls a failure
    false_refusals: Metric
    kappa: Metric
    spend: JsonObject = {}
    versions: JsonObject = {}

    def is_good_enough(self, min_kappa: float) -> bool:
        """Return True if training would take the judge."""
        return self.kappa.value is not None and self.kappa.value >= min_kappa


def has_label(task: Task) -> bool:
    """Return whether the rule alone can tell a success of the task."""
    return task.truth.final_answer is not None or not is_left_to_judge(task)


def judge_cases(
    tasks: Mapping[str, Task], played: Iterable[Trajectory], *, are_gold: bool
) -> list[JudgeCase]:
    """Return the cases of stored episodes that the rule can grade. If they are those of the gold plans, each
    success gives a failure too: with the answer of another task, else with nothing called."""
    stored = [(tasks[t.task_id], record_of(tasks[t.task_id], t)) for t in played if t.task_id in tasks]
    cases = [case for task, record in stored if has_label(task) for case in _labelled(task, record)]
    successes = [case for case in cases if are_gold and case.is_success]
    for number, case in enumerate(successes):
        answers = (other.record.final_answer for other in (*successes[number:], *successes[:number]))
        another = next((answer for answer in answers if answer != case.record.final_answer), None)
        silent = replace(case.record, turns=(RecordedTurn(user_turn=0),), stop_reason=StopReason.ANSWERED)
        wrong = [*_labelled(case.task, replace(case.record, final_answer=another))]
        wrong += _labelled(case.task, silent)
        cases += [each for each in wrong if not each.is_success][:1]
    return cases


def _labelled(task: Task, record: EpisodeRecord) -> Iterable[JudgeCase]:
    value = next(term.value for term in grade_by_rule(task, record) if term.name == "success")
    if value is not None:
        yield JudgeCase(task=task, record=record, is_success=value == 1.0)


async def check_judge(
    judge: ModelJudge,
    cases: Sequence[JudgeCase],
    *,
    tasks: JsonObject,
    concurrency: int,
    on_done: Callable[[], None],
    seed: int,
) -> JudgeCheck:
    """Ask about every case. `tasks` says which file they are from; `seed` drives resampling only."""
    slots = asyncio.Semaphore(concurrency)

    async def ask(case: JudgeCase) -> Judgement:
        async with slots:
            said = await judge.ask(case.task, case.record)
            on_done()
            return said

    said = await gather_or_cancel(map(ask, cases))
    decided = [(case, s.verdict) for case, s in zip(cases, said, strict=True) if s.verdict is not None]
    wrong = [(case, verdict != case.is_success) for case, verdict in decided]
    return JudgeCheck(
        judge=judge.rules.as_json(),
        tasks=tasks,
        n_tasks=len({case.task.id for case in cases}),
        n_episodes=len(cases),
        unscored=len(cases) - len(decided),
        faults=dict(Counter(s.fault for s in said if s.fault is not None)),
        agreement=_rate([(case, not is_wrong) for case, is_wrong in wrong], seed),
        false_approvals=_rate([each for each in wrong if not each[0].is_success], seed),
        false_refusals=_rate([each for each in wrong if each[0].is_success], seed),
        kappa=cohen_kappa([(case.task.id, verdict, case.is_success) for case, verdict in decided], seed=seed),
    )


def _rate(values: Sequence[tuple[JudgeCase, bool]], seed: int) -> Metric:
    by_task: dict[str, list[float]] = defaultdict(list)
    for case, value in values:
        by_task[case.task.id].append(float(value))
    return clustered_mean(list(by_task.values()), seed=seed)


def cohen_kappa(verdicts: Sequence[tuple[str, bool, bool]], *, seed: int = 0) -> Metric:
    """Return Cohen's kappa (Educational and Psychological Measurement 20, 1960, 37) of pairs of verdicts,
    each with its task; the interval resamples whole tasks. None if both always say the same."""
    place = {name: index for index, name in enumerate(sorted({name for name, _, _ in verdicts}))}
    n = len(place)
    counts_T22 = np.zeros((n, 2, 2))
    for name, first, second in verdicts:
        counts_T22[place[name], int(first), int(second)] += 1
    value = float(_kappas(counts_T22.sum(axis=0, keepdims=True))[0])
    if not np.isfinite(value):
        return Metric(value=None, ci_low=None, ci_high=None, n=n)
    often_RT = np.random.default_rng(seed).multinomial(n, np.full(n, 1 / n), size=RESAMPLES)
    estimates = _kappas(np.tensordot(often_RT, counts_T22, axes=1))
    low, high = percentiles(estimates[np.isfinite(estimates)])
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def _kappas(tables_R22: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the kappa of contingency tables [R, 2, 2]; NaN if chance alone would always agree."""
    a, b, c, d = tables_R22.reshape(-1, 4).T
    with np.errstate(divide="ignore", invalid="ignore"):
        return 2.0 * (a * d - b * c) / ((a + b) * (b + d) + (a + c) * (c + d))
