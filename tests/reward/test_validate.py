from __future__ import annotations

from typing import Any

import pytest

from mcpagent.reward.validate import task_problems
from tests.reward.records import QUOTE, SEND, make_task


@pytest.mark.parametrize(
    "truth",
    [
        {"tool_sequence": [QUOTE, SEND]},
        {"abstain": True},
        {"success": {"must_call_tool": "stocks"}},
        {"final_answer": {"type": "string", "value": "yes"}},
        {"tool_sequence": [QUOTE], "final_answer": {"type": "number", "value": "${step1.close}"}},
    ],
)
def test_a_task_that_can_be_judged_has_no_problems(truth: dict[str, Any]) -> None:
    assert task_problems(make_task(**truth)) == []


@pytest.mark.parametrize(
    ("truth", "says"),
    [
        ({}, "nothing says what success is"),
        ({"abstain": True, "tool_sequence": [QUOTE]}, "no call is right"),
        ({"tool_sequence": [QUOTE, QUOTE]}, "occurs twice"),
        ({"tool_sequence": [{**QUOTE, "user_turn": 1}]}, "user_turn 1, but the last one is 0"),
        ({"tool_sequence": [{**SEND, "step": 1}]}, "step1, which is not an earlier step"),
        ({"tool_sequence": [QUOTE, {**SEND, "params": {"m": "${step1.}"}}]}, "not an expression"),
        ({"tool_sequence": [{**QUOTE, "match": {"ticker": {"anyof": []}}}]}, "unknown rules ['anyof']"),
        ({"tool_sequence": [QUOTE, SEND], "limits": {"max_tools": 1}}, "limits.max_tools is 1"),
        ({"tool_sequence": [QUOTE, SEND], "limits": {"max_servers": 1}}, "limits.max_servers is 1"),
        ({"final_answer": {"type": "number", "value": "a lot"}}, "needs a number"),
        ({"final_answer": {"type": "number", "value": "${step1.close}"}}, "not an earlier step"),
        ({"final_answer": {"type": "regex", "value": "("}}, "not a regular expression"),
        ({"final_answer": {"type": "must_include", "value": []}}, "every answer would pass"),
        ({"state": {"chat": [{"call": {"tool": "x"}, "expect": {}}]}}, "every end state would pass"),
        (
            {"state": {"chat": [{"call": {"tool": "x"}, "expect": {"n": 1}, "user_turn": 1}]}},
            "user_turn 1, but the last one is 0",
        ),
        ({"tool_sequence": [QUOTE], "tools_added": {"1": ["a.b"]}}, "it offers every tool"),
    ],
)
def test_a_task_that_cannot_be_judged_says_why(truth: dict[str, Any], says: str) -> None:
    problems = task_problems(make_task(**truth))
    assert len(problems) == 1
    assert says in problems[0]


@pytest.mark.parametrize(
    ("added", "says"),
    [
        ({"1": ["chat.send"]}, None),
        ({"2": ["chat.send"]}, "user_turn 2, but later user turns are 1 to 1"),
        ({"1": ["chat.send", "stocks.quote"]}, "offered before"),
        ({}, "step 2 calls chat.send, which is not offered"),
    ],
)
def test_a_tool_that_comes_later_comes_in_time_and_once(
    added: dict[str, list[str]], says: str | None
) -> None:
    truth = {"tool_sequence": [QUOTE, {**SEND, "user_turn": 1}], "user_turns": ["Post it."]}
    task = make_task(**truth, tools_added=added)
    problems = task_problems(task.model_copy(update={"extra_info": {"tools": ["stocks.quote"]}}))
    assert [says in problem for problem in problems if says][:1] == [True] * bool(says)
    assert bool(problems) == bool(says)


def test_gold_tools_must_be_offered() -> None:
    task = make_task(tool_sequence=[QUOTE], success={"must_call_tool": "fmp"})
    offered = task.model_copy(update={"extra_info": {"tools": ["chat.send"]}})
    assert task_problems(task) == []
    assert [
        "not offered" in problem or "no offered tool" in problem for problem in task_problems(offered)
    ] == [
        True,
        True,
    ]
