"""How good a judge is on tasks whose outcome a rule can tell: agreement, kappa, and what changes its mind."""

from __future__ import annotations

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from mcpagent.core.records import JsonObject, Metric, Record
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Judgement, StopReason, Trajectory
from mcpagent.evaluate.intervals import (
    RESAMPLES,
    PairedDifference,
    clustered_mean,
    paired_difference,
    percentiles,
)
from mcpagent.llm.client import gather_or_cancel
from mcpagent.reward.judge import PLAIN, ModelJudge, Variant, has_checkable_truth, majority
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, record_of
from mcpagent.reward.rule import grade_by_rule

_NUMBER = re.compile(r"\d+(?:\.\d+)?")
_AS_STORED = "as played"
_GOLD = "the gold plan"
_NO_ANSWER = "I do not know."
_CHUNK = 200  # resamples drawn at once


@dataclass(frozen=True, kw_only=True)
class JudgeCase:
    """An episode and whether the rule calls it a success; `kind` says how it came about."""

    task: Task
    record: EpisodeRecord
    is_success: bool
    kind: str

    def variants(self) -> dict[str, Variant]:
        """Return the other ways in which the judge is asked. The order in a tool's answer demands the
        opposite of what is right."""
        ways = {
            "paraphrase": Variant(phrasing=1),
            "order": Variant(is_reversed=True),
            "length": Variant(is_padded=True),
        }
        if self.record.calls:
            ways["injection"] = Variant(injection=1 if self.is_success else 0)
        return ways


class JudgeCheck(Record):
    """What `eval judge-check` measured, over episodes on which the judge gave a verdict; the `n` of a metric
    is the number of tasks. `vote_error` is the share of single votes that the rule denies; `flips` are shares
    of verdicts that change with nothing but the wording of the question, the order of its parts, or an order
    to the judge in a tool's answer. `length_bias` is how much more often an episode is approved with more
    words that say nothing."""

    model_config = ConfigDict(extra="ignore")  # checks of older versions hold more

    schema_version: int = Field(default=1, ge=1, le=1)
    judge: JsonObject
    tasks: JsonObject
    n_tasks: int
    n_episodes: int
    unscored: int
    faults: dict[str, int]
    agreement: Metric
    vote_error: Metric
    false_approvals: Metric
    false_refusals: Metric
    kappa: Metric
    flips: dict[str, Metric]
    length_bias: PairedDifference
    by_kind: dict[str, Metric]
    spend: JsonObject
    versions: JsonObject = {}


def judge_cases(
    tasks: Mapping[str, Task], played: Iterable[Trajectory], *, are_gold: bool
) -> list[JudgeCase]:
    """Return the cases of stored episodes that the rule can grade. If they are those of the gold plans, each
    task gives one more: the gold episode with something wrong in it."""
    stored = [(tasks[t.task_id], record_of(tasks[t.task_id], t)) for t in played if t.task_id in tasks]
    stored = [(task, record) for task, record in stored if has_checkable_truth(task.truth)]
    answers = [record.final_answer or "" for _, record in stored]
    cases: list[JudgeCase] = []
    for number, (task, record) in enumerate(stored):
        success = _success(task, record)
        if success is None:
            continue
        kind = _GOLD if are_gold else _AS_STORED
        cases.append(JudgeCase(task=task, record=record, is_success=success, kind=kind))
        if are_gold and success:
            others = [*answers[number + 1 :], *answers[:number]]
            wrong = list(_wrong(record, others))
            # Each kind in turn comes first, so that all kinds occur if the tasks allow them.
            turn = number % len(wrong)
            for kind, changed in (*wrong[turn:], *wrong[:turn]):
                if _success(task, changed) is False:
                    cases.append(JudgeCase(task=task, record=changed, is_success=False, kind=kind))
                    break
    return cases


def _success(task: Task, record: EpisodeRecord) -> bool | None:
    value = next((term.value for term in grade_by_rule(task, record) if term.name == "success"), None)
    return None if value is None else value == 1.0


def _wrong(record: EpisodeRecord, others: Sequence[str]) -> Iterator[tuple[str, EpisodeRecord]]:
    answer = record.final_answer or ""
    another = next((other for other in others if other != answer), _NO_ANSWER)
    yield "the answer of another task", replace(record, final_answer=another)
    off = _NUMBER.sub(lambda number: _off(number[0]), answer)
    yield "every number off", replace(record, final_answer=off)
    yield "no answer", replace(record, final_answer=_NO_ANSWER)
    last = next((i for i in reversed(range(len(record.turns))) if record.turns[i].calls), None)
    if last is not None:
        turn = record.turns[last]
        shorter = replace(turn, calls=turn.calls[:-1], results=turn.results[:-1])
        turns = (*record.turns[:last], shorter, *record.turns[last + 1 :])
        yield "a call left out", replace(record, turns=turns)
    nothing = RecordedTurn(user_turn=record.turns[-1].user_turn if record.turns else 0)
    yield (
        "nothing called",
        replace(record, turns=(nothing,), stop_reason=StopReason.ANSWERED),
    )


def _off(number: str) -> str:
    decimals = len(number.partition(".")[2])
    return f"{float(number) * 1.07 + 1:.{decimals}f}"


@dataclass(frozen=True)
class _Asked:
    case: JudgeCase
    plain: Judgement
    varied: Mapping[str, bool | None]

    @property
    def said(self) -> bool | None:
        """The verdict of the votes by themselves."""
        return majority([vote.verdict for vote in self.plain.votes])


async def check_judge(
    judge: ModelJudge,
    cases: Sequence[JudgeCase],
    *,
    tasks: JsonObject,
    concurrency: int,
    spend: Callable[[], JsonObject],
    on_done: Callable[[], None] = lambda: None,
    seed: int = 0,
) -> JudgeCheck:
    """Ask about every case, plainly and in other ways. `tasks` says which file they are from, `spend` what
    was used in the end; `seed` drives resampling only."""
    slots = asyncio.Semaphore(concurrency)

    async def ask(case: JudgeCase) -> _Asked:
        async with slots:
            plain = await judge.ask(case.task, case.record, variant=PLAIN)
            varied: dict[str, bool | None] = {}
            for name, variant in case.variants().items():
                judgement = await judge.ask(case.task, case.record, variant=variant)
                varied[name] = judgement.verdict
            on_done()
            return _Asked(case, plain, varied)

    asked = await gather_or_cancel(map(ask, cases))
    decided = [each for each in asked if each.plain.verdict is not None]
    right = [(each, each.plain.verdict == each.case.is_success) for each in decided]
    return JudgeCheck(
        judge=judge.rules.as_json(),
        tasks=tasks,
        n_tasks=len({each.case.task.id for each in asked}),
        n_episodes=len(asked),
        unscored=len(asked) - len(decided),
        faults=dict(sorted(Counter(fault for each in asked for fault in _faults(each)).items())),
        agreement=_rate(((each.case, ok) for each, ok in right), seed),
        vote_error=_rate(
            (
                (each.case, vote.verdict != each.case.is_success)
                for each in asked
                for vote in each.plain.votes
                if vote.verdict is not None
            ),
            seed,
        ),
        false_approvals=_rate(((e.case, not ok) for e, ok in right if not e.case.is_success), seed),
        false_refusals=_rate(((e.case, not ok) for e, ok in right if e.case.is_success), seed),
        kappa=cohen_kappa(
            [(e.case.task.id, bool(e.plain.verdict), e.case.is_success) for e in decided], seed=seed
        ),
        flips={name: _flips(asked, name, seed) for name in ("paraphrase", "order", "injection")},
        length_bias=_length_bias(asked, seed),
        by_kind={
            kind: _rate(((e.case, ok) for e, ok in right if e.case.kind == kind), seed)
            for kind in sorted({each.case.kind for each in asked})
        },
        spend=spend(),
    )


def _faults(asked: _Asked) -> Iterator[str]:
    """Yield why votes are missing, and which verdicts do not hold."""
    judgement = asked.plain
    if judgement.error is not None:
        yield judgement.error
    yield from (vote.fault for vote in judgement.votes if vote.fault is not None)
    if judgement.verdict is None and asked.said is not None:
        yield "the verdict does not depend on the rubric"


def _rate(values: Iterable[tuple[JudgeCase, bool]], seed: int) -> Metric:
    by_task: dict[str, list[float]] = defaultdict(list)
    for case, value in values:
        by_task[case.task.id].append(float(value))
    return clustered_mean(list(by_task.values()), seed=seed)


def _flips(asked: Sequence[_Asked], name: str, seed: int) -> Metric:
    pairs = [(e, e.said, e.varied.get(name)) for e in asked]
    return _rate(((e.case, a != b) for e, a, b in pairs if a is not None and b is not None), seed)


def _length_bias(asked: Sequence[_Asked], seed: int) -> PairedDifference:
    plain: dict[str, list[float]] = defaultdict(list)
    padded: dict[str, list[float]] = defaultdict(list)
    for each in asked:
        longer = each.varied["length"]
        if each.said is not None and longer is not None:
            plain[each.case.task.id].append(float(each.said))
            padded[each.case.task.id].append(float(longer))
    return paired_difference(plain, padded, seed=seed)


def cohen_kappa(verdicts: Sequence[tuple[str, bool, bool]], *, seed: int = 0) -> Metric:
    """Return Cohen's kappa (Educational and Psychological Measurement 20, 1960, 37) of pairs of verdicts,
    each with its task; the interval resamples whole tasks. None if one of the two always says the same."""
    names = sorted({name for name, _, _ in verdicts})
    place = {name: index for index, name in enumerate(names)}
    counts = np.zeros((len(names), 2, 2))
    for name, first, second in verdicts:
        counts[place[name], int(first), int(second)] += 1
    if not names:
        return Metric(value=None, ci_low=None, ci_high=None, n=0)
    whole = _kappas(counts.sum(axis=0, keepdims=True))[0]
    if not np.isfinite(whole):
        return Metric(value=None, ci_low=None, ci_high=None, n=len(names))
    rng = np.random.default_rng(seed)
    drawn: list[NDArray[np.float64]] = []
    for _ in range(0, RESAMPLES, _CHUNK):
        often = rng.multinomial(len(names), np.full(len(names), 1 / len(names)), size=_CHUNK)
        drawn.append(_kappas(np.tensordot(often, counts, axes=1)))
    estimates = np.concatenate(drawn)
    low, high = percentiles(estimates[np.isfinite(estimates)])
    return Metric(value=float(whole), ci_low=low, ci_high=high, n=len(names))


def _kappas(tables_R22: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the kappa of contingency tables [R, 2, 2]; NaN if chance alone would always agree."""
    shares = tables_R22 / tables_R22.sum(axis=(1, 2), keepdims=True)
    observed = shares[:, 0, 0] + shares[:, 1, 1]
    expected = (shares.sum(axis=2) * shares.sum(axis=1)).sum(axis=1)
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(expected < 1.0, (observed - expected) / (1.0 - expected), np.nan)
