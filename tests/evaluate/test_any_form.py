"""Success in any form: what it forgives, what it does not, and who may not read it."""

from __future__ import annotations

from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.any_form import success_in_any_form
from mcpagent.evaluate.summary import summarise
from mcpagent.reward.terms import DEFAULT_REWARD, regraded
from tests.evaluate.records import call, result, trajectory, turn

STEP = {"step": 1, "server": "polygon", "tool": "get_aggs", "params": {"ticker": "AAPL"}}
CALLED = turn(0, "a", calls=[call(0, ticker="AAPL")], results=[result(0, '{"close": 179.66}')])


def asked(check: dict[str, Any], **truth: Any) -> Task:
    about = {"task_id": "t", "tool_sequence": [STEP], "answer_line": True, "final_answer": check, **truth}
    prompt = [{"role": "user", "content": "What did AAPL close at?"}]
    return Task.model_validate({"prompt": prompt, "reward_spec": {"ground_truth": about}})


def said(task: Task, message: str | None, *, calls: bool = True) -> Trajectory:
    """The graded episode that ends with a message, after the call of the plan or none."""
    played = trajectory("t", turns=[CALLED] if calls else [turn(0, "b")], final_answer=message)
    return regraded(task, played, DEFAULT_REWARD)


PRICE = {"type": "number", "value": 179.66, "decimals": 2}
# A check, a last message that has the value in no form that was asked for, and one that has another value.
FORMS: list[tuple[dict[str, Any], str, str]] = [
    (PRICE, "AAPL closed at $179.66 that day.", "AAPL closed at $179.67 that day."),
    ({"type": "number", "value": "${step1.close}"}, "It is 179.66, I think.", "It is 179, I think."),
    ({"type": "number", "value": 2 / 3, "decimals": 2}, "about 0.67", "about 0.66"),
    ({"type": "number", "value": 1200}, "That makes 1,200 shares.", "That makes 200 shares."),
    ({"type": "date", "value": "2026-05-05T09:34", "precision": "day"}, "On 2026-05-05.", "On 2026-05-06."),
    ({"type": "name", "value": "Apple Inc."}, "The company is apple inc. of course", "It is Apple"),
    ({"type": "name", "value": "C-7", "accept": ["C-8"]}, "C-8, near the door", "C7, near the door"),
    ({"type": "set", "value": ["Ada", "Bo"]}, "Both Bo and Ada.", "Only Bo."),
    (
        {"type": "pairs", "value": {"low": 1.5, "high": 2}},
        "high was 2 and low 1.5",
        "high was 2, low unknown",
    ),
    ({"type": "choice", "value": "red", "options": ["red", "blue"]}, "Red or blue", "Blue"),
    ({"type": "yes_no", "value": True}, "Yes, it did.", "It did not."),
    ({"type": "none"}, "There is none.", "I cannot tell."),
]


@pytest.mark.parametrize(("check", "right", "wrong"), FORMS, ids=lambda part: str(part)[:40])
def test_the_right_value_anywhere_counts_and_another_one_does_not(
    check: dict[str, Any], right: str, wrong: str
) -> None:
    task = asked(check)
    assert said(task, right).is_success is False
    assert success_in_any_form(task, said(task, right)) == 1.0
    assert success_in_any_form(task, said(task, wrong)) == 0.0


def test_it_is_an_upper_bound_that_a_list_of_guesses_passes() -> None:
    task = asked(PRICE)
    assert success_in_any_form(task, said(task, "It may be 178.1, 179.66 or 181.")) == 1.0
    in_form = said(task, "Answer: 179.66")
    assert in_form.is_success and success_in_any_form(task, in_form) == 1.0


def test_nothing_but_the_form_is_forgiven() -> None:
    evidence = [{"value": 179.66, "about": ["AAPL"]}]
    task = asked(PRICE, evidence=evidence)
    assert success_in_any_form(task, said(task, "It is 179.66")) == 1.0
    assert success_in_any_form(task, said(task, "It is 179.66", calls=False)) == 0.0  # it saw no result
    assert success_in_any_form(task, said(task, None)) == 0.0
    loose = asked({"type": "string", "value": "179.66"}, answer_line=False)
    assert success_in_any_form(loose, said(loose, "It is 179.66")) == 0.0  # no form was stated


def test_an_unscored_episode_counts_as_failed_in_any_form_too() -> None:
    task = asked(PRICE)
    lost = turn(0, "a", calls=[call(0)], results=[result(0, "", failure=FailureKind.CRASHED)])
    unscored = regraded(task, trajectory("t", turns=[lost], final_answer="179.66"), DEFAULT_REWARD)
    assert unscored.is_success is None
    summary = summarise(
        [unscored, said(task, "It is 179.66").model_copy(update={"attempt": 1})], tasks=[task]
    )
    assert (summary.unscored, summary.metrics["success_in_any_form"].value) == (1, 0.5)


def test_the_three_numbers_are_apart_and_one_needs_the_tasks() -> None:
    task = asked(PRICE)
    messages = ("Answer: 179.66", "Answer: 5", "It is 179.66.", "No idea.")
    episodes = [said(task, message).model_copy(update={"attempt": at}) for at, message in enumerate(messages)]
    metrics = summarise(episodes, tasks=[task]).metrics
    names = ("answer_form_rate", "task_success", "success_in_any_form")
    assert [metrics[name].value for name in names] == [0.5, 0.25, 0.5]
    assert "success_in_any_form" not in summarise(episodes).metrics
