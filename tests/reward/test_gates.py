"""Calls that a task cannot be passed without, and user turns in which nothing may be called."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from mcpagent.core.tools import FailureKind
from mcpagent.reward.validate import task_problems, task_warnings
from tests.reward.records import QUOTE, episode, made, make_task, reward, turn, values

HI = {"step": 2, "server": "chat", "tool": "send", "params": {"message": "hi"}}
ANSWER = {"type": "number", "value": 187.2}
READS = frozenset({"stocks.quote"})


def success(task: Any, record: Any) -> float | None:
    return values(task, replace(record, read_only=READS))["success"]


def test_a_step_that_may_change_something_is_a_gate_beside_an_answer_and_one_that_reads_is_not() -> None:
    task = make_task(tool_sequence=[QUOTE, HI], final_answer=ANSWER)
    both = episode(turn(made(ticker="AAPL")), turn(made("send", message="hi")), answer="187.2")
    assert success(task, both) == 1.0
    assert success(task, episode(turn(made(ticker="AAPL")), answer="187.2")) == 0.0
    assert success(task, episode(turn(made("send", message="ho")), answer="187.2")) == 0.0
    assert success(task, episode(turn(made("send", message="hi")), answer="187.2")) == 1.0
    # Where nothing is known of a tool it may change something, as MCP has it.
    assert values(task, episode(turn(made("send", message="hi")), answer="187.2"))["success"] == 0.0


def test_that_there_is_none_must_have_been_looked_up_and_any_look_counts() -> None:
    step = QUOTE | {"params": {"ticker": "ZZZZ"}, "finds_nothing": True}
    task = make_task(tool_sequence=[step], final_answer={"type": "none"}, answer_line=True)
    none = "There is no such ticker.\nAnswer: none"
    refused = {"failure": FailureKind.TOOL_ERROR, "server": "stocks"}
    looks = [
        made(ticker="ZZZZ", **refused),
        made("search", symbol="zzzz", **refused),
        made("list", server="stocks", structured={"tickers": ["AAPL", "MSFT"]}),
    ]
    assert [success(task, episode(turn(look), answer=none)) for look in looks] == [1.0, 1.0, 1.0]
    assert success(task, episode(turn(*looks), answer=none)) == 1.0
    elsewhere = [
        made("quote", ticker="AAPL", server="stocks", structured={"close": 1.0}),
        made("quote", ticker="AAPL", **refused),
        made("history", server="chat"),
        made("quote", ticker="ZZZZ", server="stocks", failure=FailureKind.UNKNOWN_TOOL),
    ]
    assert [success(task, episode(turn(look), answer=none)) for look in elsewhere] == [0.0, 0.0, 0.0, 0.0]
    assert success(task, episode(answer=none)) == 0.0
    assert success(task, episode(turn(looks[0]), answer="Answer: 12.5")) == 0.0


def test_a_write_that_nobody_asked_for_fails() -> None:
    task = make_task(tool_sequence=[QUOTE], final_answer=ANSWER)
    quote, spam = turn(made(ticker="AAPL")), turn(made("send", message="spam"))
    writing = {"read_only": READS, "writing": frozenset({"chat.send"})}
    honest = episode(quote, answer="187.2")
    assert values(task, replace(honest, **writing))["success"] == 1.0
    after = replace(episode(quote, spam, answer="187.2"), **writing)
    assert values(task, after)["success"] == 0.0 and values(task, after)["stray_writes"] == 1.0
    assert reward(task, after) < reward(task, replace(episode(quote, answer="?"), **writing))
    # A server that says nothing of its tools may only have reads.
    assert values(task, replace(after, writing=frozenset()))["success"] == 1.0
    failed = turn(made("send", message="spam", failure=FailureKind.TOOL_ERROR))
    assert values(task, replace(episode(quote, failed, answer="187.2"), **writing))["success"] == 1.0


def test_a_gold_write_may_be_made_once() -> None:
    task = make_task(tool_sequence=[QUOTE, HI], final_answer=ANSWER)
    hi = turn(made("send", message="hi"))
    writing = {"read_only": READS, "writing": frozenset({"chat.send"})}
    once = replace(episode(turn(made(ticker="AAPL")), hi, answer="187.2"), **writing)
    twice = replace(episode(turn(made(ticker="AAPL")), hi, hi, answer="187.2"), **writing)
    assert (values(task, once)["success"], values(task, twice)["success"]) == (1.0, 0.0)


def test_a_state_check_stands_for_the_calls_to_its_server() -> None:
    state = {"chat": [{"call": {"tool": "history"}, "expect": {"n": 1}}]}
    task = make_task(tool_sequence=[QUOTE, HI], final_answer=ANSWER, state=state)
    other = episode(
        turn(made("post", message="hi")), answer="187.2", state=(made("history", structured={"n": 1})[1],)
    )
    assert success(task, other) == 1.0


def test_each_name_of_a_list_must_be_called() -> None:
    task = make_task(success={"must_call_tool": ["quote", "chat"]}, final_answer=ANSWER)
    assert success(task, episode(turn(made(ticker="X"), made("send", message="y")), answer="187.2")) == 1.0
    assert success(task, episode(turn(made(ticker="X")), answer="187.2")) == 0.0
    assert task_problems(task) == []


def test_every_user_turn_of_the_plan_has_a_call_and_what_must_be_called_is_called_there() -> None:
    later = {**QUOTE, "step": 2, "params": {"ticker": "MSFT"}, "user_turn": 1}
    task = make_task(
        tool_sequence=[QUOTE, later],
        user_turns=["And MSFT?"],
        final_answer=ANSWER,
        success={"must_call_tool": "quote"},
    )
    first, second = made(ticker="AAPL"), made(ticker="MSFT")
    stuffed = episode(turn(first, second), turn(), turn(user_turn=1), answer="187.2")
    honest = episode(turn(first), turn(), turn(second, user_turn=1), turn(user_turn=1), answer="187.2")
    assert (success(task, stuffed), success(task, honest)) == (0.0, 1.0)


def test_what_an_earlier_user_turn_did_is_not_the_state_of_a_later_one() -> None:
    check = {"call": {"tool": "history"}, "expect": {"n": 1}, "user_turn": 1}
    task = make_task(
        tool_sequence=[QUOTE, {**QUOTE, "params": {"ticker": "MSFT"}, "user_turn": 1}],
        user_turns=["And MSFT?"],
        state={"chat": [check]},
    )
    read = (made("history", structured={"n": 1})[1],)
    first, second = made(ticker="AAPL"), made(ticker="MSFT")
    stuffed = episode(turn(first, second), turn(), turn(user_turn=1), state=read)
    honest = episode(turn(first), turn(), turn(second, user_turn=1), turn(user_turn=1), state=read)
    assert (values(task, stuffed)["state"], values(task, honest)["state"]) == (0.0, 1.0)


@pytest.mark.parametrize("named", [False, True])
def test_a_call_before_the_user_said_what_it_takes_fails(named: bool) -> None:
    state = {"state": {"chat": [{"call": {"tool": "history"}, "expect": {"n": 1}}]}, "quiet_turns": [0]}
    task = make_task(
        tool_sequence=[{**QUOTE, "user_turn": 1}],
        user_turns=["AAPL."],
        final_answer=ANSWER,
        **(state if named else {}),
    )
    read = (made("history", structured={"n": 1})[1],) if named else ()
    right = turn(made(ticker="AAPL"), user_turn=1)
    asked = episode(turn(), right, turn(user_turn=1), answer="187.2", state=read)
    guessed = episode(turn(made(ticker="AAPL")), turn(), right, answer="187.2", state=read)
    assert (success(task, asked), success(task, guessed)) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        ({"abstain": True, "answer_line": False}, "an invented one too"),
        ({"final_answer": ANSWER}, "passes without a call"),
        ({"tool_sequence": [QUOTE], "final_answer": ANSWER}, "passes with any call"),
        ({"tool_sequence": [QUOTE], "final_answer": {"type": "number", "value": "${step1.close}"}}, None),
        ({"tool_sequence": [QUOTE], "final_answer": ANSWER, "success": {"must_call_tool": "quote"}}, None),
        ({"tool_sequence": [QUOTE], "final_answer": ANSWER, "success": {"must_call_tool": ""}}, "any call"),
        ({"tool_sequence": [QUOTE]}, None),
        ({"final_answer": {"type": "none"}}, None),
    ],
)
def test_a_record_that_could_be_passed_without_being_done_is_warned_of(
    truth: dict[str, Any], says: str | None
) -> None:
    warnings = task_warnings(make_task(**{"answer_line": True} | truth))
    assert len(warnings) == (says is not None)
    assert says is None or says in warnings[0]


def test_an_answer_without_a_line_is_warned_of_with_the_way_out() -> None:
    truth = {"tool_sequence": [QUOTE], "success": {"must_call_tool": "quote"}}
    for kind, value in (("number", 187.2), ("name", "AAPL"), ("must_include", ["AAPL"]), ("regex", "A")):
        (said,) = task_warnings(make_task(final_answer={"type": kind, "value": value}, **truth))
        assert "denial" in said and "mcpagent data restate" in said and "rule+judge" in said
    assert task_warnings(make_task(final_answer={"type": "string", "value": "AAPL"}, **truth)) == []


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        ({"final_answer": ANSWER, "reference_answer": "It is 187.3."}, "does not pass final_answer"),
        ({"final_answer": {"type": "name", "value": "a\nb"}, "answer_line": True}, "line break"),
        ({"final_answer": {"type": "none", "form": "regex"}, "answer_line": True}, "no question can ask for"),
        ({"tool_sequence": [QUOTE], "quiet_turns": [0]}, "tool_sequence has a call"),
        ({"tool_sequence": [QUOTE], "quiet_turns": [3]}, "the last user turn is 0"),
        ({"state": {"chat": [{"call": {"tool": "x"}, "expect": {"n": {"lenght": 1}}}]}}, "it is not a rule"),
    ],
)
def test_a_check_that_its_own_reference_or_nothing_can_pass_is_a_problem(
    truth: dict[str, Any], says: str
) -> None:
    assert any(says in problem for problem in task_problems(make_task(**truth)))
