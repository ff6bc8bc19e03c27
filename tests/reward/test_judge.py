from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Judgement, StopReason, total_reward
from mcpagent.reward.judge import is_open_to_judge
from mcpagent.reward.record import EpisodeRecord, grade
from mcpagent.reward.terms import ConfiguredReward
from mcpagent.reward.validate import task_problems
from tests.reward.records import CLOSE, QUOTE, episode, made, make_task, term, turn

TYPED: dict[str, Any] = {"tool_sequence": [QUOTE], "final_answer": {"type": "number", "value": CLOSE}}
UNTYPED: dict[str, Any] = {"tool_sequence": [QUOTE], "reference_answer": f"It closed at {CLOSE}."}
OPEN: dict[str, Any] = {"judge_rubric": "The answer is polite."}


def task(method: str, **truth: Any) -> Task:
    plain = make_task(**truth)
    spec = plain.reward_spec.model_copy(update={"method": method})
    return plain.model_copy(update={"reward_spec": spec})


def looked(verdict: bool | None = None, *, ticker: str = "AAPL") -> EpisodeRecord:
    """One call of the plan, and what a judge said of it."""
    record = episode(turn(made(ticker=ticker)), turn(), answer=f"It was {CLOSE}, with pleasure.")
    said = Judgement(model="m", identity="i", question_sha256="q", verdict=verdict)
    return replace(record, judgement=said)


@pytest.mark.parametrize("truth", [UNTYPED, OPEN])
@pytest.mark.parametrize(("verdict", "success"), [(True, 1.0), (False, 0.0), (None, None)])
def test_the_judge_decides_about_an_answer_without_a_type(
    truth: dict[str, Any], verdict: bool | None, success: float | None
) -> None:
    of, record = task("rule+judge", **truth), looked(verdict)
    assert is_open_to_judge(of, record)
    terms = grade(of, record)
    assert term(terms, "success").value == term(terms, "judge").value == success
    reward = total_reward(terms)
    if success is None:
        assert reward is None  # unscored, and not a failure
    else:
        assert reward is not None and (reward >= 0.45) == (success == 1.0)


@pytest.mark.parametrize("verdict", [True, False, None])
def test_the_rule_alone_decides_about_an_answer_with_a_type(verdict: bool | None) -> None:
    of, right = task("rule+judge", **TYPED), looked(verdict)
    wrong = replace(right, final_answer="It was 1.")
    assert not is_open_to_judge(of, right) and not is_open_to_judge(of, wrong)
    for record in (right, wrong):
        assert grade(of, record) == grade(task("rule", **TYPED), record)


def test_a_failure_by_the_rule_is_not_put_to_the_judge() -> None:
    of, record = task("rule+judge", **UNTYPED), looked(True, ticker="MSFT")
    assert not is_open_to_judge(of, record)
    terms = grade(of, record)
    assert (term(terms, "success").value, term(terms, "judge").value) == (0.0, None)


@pytest.mark.parametrize("truth", [TYPED, UNTYPED, OPEN])
@pytest.mark.parametrize(("verdict", "reward"), [(True, 1.0), (False, 0.0), (None, None)])
def test_by_judge_the_verdict_is_the_success_whatever_the_rule_says(
    truth: dict[str, Any], verdict: bool | None, reward: float | None
) -> None:
    of, record = task("judge", **truth), looked(verdict, ticker="MSFT")
    assert is_open_to_judge(of, record)
    assert total_reward(grade(of, record)) == reward


def test_without_a_plan_no_call_is_one_too_many() -> None:
    calls = [turn(made(ticker=name)) for name in "ABCD"]
    record = replace(looked(True), turns=tuple(calls))
    assert total_reward(grade(task("judge", **OPEN), record)) == 1.0
    # With one, four calls are not of it and the first of them is free: 1 - 3 * 0.04.
    assert total_reward(grade(task("judge", **UNTYPED), record)) == pytest.approx(0.88)


@pytest.mark.parametrize(
    ("stop", "success"),
    [(StopReason.NOT_RECORDED, 0.0), (StopReason.FAILED, None), (StopReason.TIMEOUT, None)],
)
@pytest.mark.parametrize("method", ["judge", "rule+judge"])
def test_no_judge_is_asked_about_an_episode_that_did_not_end_well(
    method: str, stop: StopReason, success: float | None
) -> None:
    of, record = task(method, **OPEN), replace(looked(), stop_reason=stop)
    assert not is_open_to_judge(of, record)
    assert term(grade(of, record), "success").value == success


def test_the_verdict_counts_by_the_success_alone() -> None:
    """So that every success stays above every failure, as without a judge."""
    verdict = term(grade(task("rule+judge", **UNTYPED), looked(True)), "judge")
    assert (verdict.value, verdict.weight) == (1.0, 0.0)
    assert ConfiguredReward().bounds.separates


def test_a_task_for_a_judge_alone_needs_a_rubric() -> None:
    assert "judge_rubric" in task_problems(task("judge"))[0]
    assert task_problems(task("judge", **OPEN)) == []
    assert "nothing says what success is" in task_problems(task("rule", **OPEN))[0]
    assert task_problems(task("judge", judge_rubric={"weights": {"politeness": 1}})) == []
