"""What an end state has to be like, rule by rule; the examples of the documentation among them."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from mcpagent.config.environment import resource_root
from mcpagent.core.matching import call_matches, expect_holds, expect_problems, needs_before, others_unchanged
from mcpagent.core.tasks import PlanStep
from mcpagent.core.tools import ToolCall

NOW: dict[str, Any] = {
    "messages": [{"text": "Sold 3 crates at 14:05", "by": "ada"}, {"text": "hi", "by": "bob"}],
    "open": [3, 1, 2],
    "price": 187.204,
    "status": "Shipped",
    "tags": {"a": 1, "b": 2},
    "rule": {"length": 3},
}
BEFORE: dict[str, Any] = {
    **NOW,
    "messages": NOW["messages"][1:],
    "open": [3, 1],
    "price": 185.204,
    "status": "Open",
}


@pytest.mark.parametrize(
    ("expect", "holds"),
    [
        ({"status": "shipped"}, True),
        ({"status": {"any_of": ["sent", "shipped"]}}, True),
        ({"status": {"any_of": ["sent", "open"]}}, False),
        ({"messages[0].text": {"regex": r"^Sold \d+ crates"}}, True),
        ({"messages[0].text": {"regex": "bought"}}, False),
        ({"price": {"equals": 187.2, "tolerance": 0.01}}, True),
        ({"price": {"equals": 187.2, "tolerance": 0.001}}, False),
        ({"price": {"any_of": [1, 187.2], "tolerance": 0.01}}, True),
        ({"messages[0].text": {"contains": "3 crates"}}, True),
        ({"messages[0].text": {"contains": "4 crates"}}, False),
        ({"messages": {"contains": {"by": "bob"}}}, True),
        ({"messages": {"contains": {"by": "bob", "text": {"regex": "^h"}}}}, True),
        ({"messages": {"contains": {"by": "bob", "text": {"regex": "^Sold"}}}}, False),
        ({"open": {"contains": 2}}, True),
        ({"open": {"contains": 4}}, False),
        ({"open": {"unordered": [1, 2, 3]}}, True),
        ({"open": {"unordered": [1, 2, 2]}}, False),
        ({"open": {"unordered": [1, 2]}}, False),
        ({"open": [1, 2, 3]}, False),
        ({"open": {"length": 3}}, True),
        ({"open": {"length": 2}}, False),
        ({"status": {"length": 7}}, True),
        ({"open": {"length": 3, "contains": 9}}, False),
        ({"open": {"increased_by": 1}}, True),
        ({"open": {"increased_by": 2}}, False),
        ({"price": {"increased_by": 2}}, True),
        ({"price": {"increased_by": 1.9}}, False),
        ({"price": {"increased_by": 1.9, "tolerance": 0.2}}, True),
        ({"tags": {"unchanged": True}}, True),
        ({"status": {"unchanged": True}}, False),
        ({"tags.c": {"absent": True}}, True),
        ({"tags.b": {"absent": True}}, False),
        ({"tags.b": {"absent": False}}, True),
        ({"tags.c": {"absent": False}}, False),
        ({"rule": {"equals": {"length": 3}}}, True),
        ({"nothing.there": {"any_of": [None]}}, False),
        ({"tags": {"a": 1, "b": 2}}, True),
    ],
)
def test_a_rule_says_what_a_value_of_the_state_is_like(expect: dict[str, Any], holds: bool) -> None:
    assert expect_problems(expect) == []
    assert expect_holds(expect, NOW, BEFORE) is holds


def test_a_rule_that_compares_fails_where_nothing_was_read_before() -> None:
    for rule in ({"increased_by": 0}, {"unchanged": True}):
        assert needs_before({"open": rule})
        assert not expect_holds({"open": rule}, NOW, None)
    assert not needs_before({"open": {"length": 3}, "status": "Open"})


@pytest.mark.parametrize(
    ("expect", "now", "holds"),
    [
        # One message was put in front, and nothing else happened to the list.
        ({"messages[0].text": "new"}, {"messages": [{"text": "new"}, {"text": "old"}], "topic": "x"}, True),
        ({"messages[0].text": "new"}, {"messages": [{"text": "new"}, {"text": "old"}], "topic": "y"}, False),
        ({"messages[0].text": "new"}, {"messages": [{"text": "new"}, {"text": "OLD!"}], "topic": "x"}, False),
        ({"messages[0].text": "new"}, {"messages": [{"text": "new"}], "topic": "x"}, True),
        ({"topic": "y"}, {"messages": [{"text": "old"}], "topic": "y"}, True),
        ({"topic": "y"}, {"messages": [{"text": "old"}], "topic": "y", "more": 1}, False),
        ({"topic": "y"}, {"messages": [], "topic": "y"}, False),
        # One field of an item, and not its others.
        ({"messages[0].text": "new"}, {"messages": [{"text": "new", "by": "eve"}], "topic": "x"}, False),
        # What is new is new as a whole.
        (
            {"draft.text": "hi"},
            {"messages": [{"text": "old"}], "topic": "x", "draft": {"text": "hi", "n": 1}},
            True,
        ),
    ],
)
def test_what_no_path_names_is_as_it_was(expect: dict[str, Any], now: dict[str, Any], holds: bool) -> None:
    before = {"messages": [{"text": "old"}], "topic": "x"}
    assert others_unchanged(expect, now, before) is holds


@pytest.mark.parametrize(
    ("changed", "holds"), [({}, True), ({"www.b.com": {"hits": 3}}, False), ({"www": {"hits": 1}}, False)]
)
def test_a_quoted_path_names_one_thing(changed: dict[str, Any], holds: bool) -> None:
    before = {"web": {"www.a.com": {"hits": 1, "owner": "ada"}, "www.b.com": {"hits": 2}}}
    now = {"web": {**before["web"], "www.a.com": {"hits": 9, "owner": "ada"}, **changed}}
    for path in ('web["www.a.com"].hits', "web['www.a.com'].hits"):
        assert expect_holds({path: 9}, now, None)
        assert others_unchanged({path: 9}, now, before) is holds


@pytest.mark.parametrize(
    ("rule", "holds"),
    [
        ({"contains": "Anna"}, True),
        ({"contains": "ANNA"}, True),
        ({"contains": "ANNA", "case": True}, False),
        ({"contains": "Anna", "case": True}, True),
    ],
)
def test_contains_minds_letter_case_if_told(rule: dict[str, Any], holds: bool) -> None:
    assert expect_problems({"v": rule}) == []
    assert expect_holds({"v": rule}, {"v": "Anna Berg"}, None) is holds
    assert expect_holds({"v": rule}, {"v": ["Anna"]}, None) is holds


def test_contains_takes_a_rule_for_an_item() -> None:
    now = {"v": [{"text": "hi"}, "ticket 17", 4.02]}
    assert expect_holds({"v": {"contains": {"regex": "^ticket [0-9]+$"}}}, now, None)
    assert expect_holds({"v": {"contains": {"equals": 4, "tolerance": 0.1}}}, now, None)
    assert not expect_holds({"v": {"contains": {"regex": "^task"}}}, now, None)
    assert any("regex" in problem for problem in expect_problems({"v": {"contains": {"regex": "("}}}))


@pytest.mark.parametrize(
    ("expect", "says"),
    [
        ({"a": {"any_off": [1]}}, "it is not a rule"),
        ({"a": {"any_of": [1], "limit": 2}}, "it is not a rule"),
        ({"a": {"any_of": []}}, "any_of is [], but must be a list"),
        ({"a": {"any_of": 3}}, "any_of is 3"),
        ({"a": {"regex": "("}}, "not a regular expression"),
        ({"a": {"tolerance": "much", "equals": 1}}, "tolerance is 'much'"),
        ({"a": {"length": -1}}, "length is -1"),
        ({"a": {"length": "three"}}, "length is 'three'"),
        ({"a": {"unordered": 3}}, "unordered is 3"),
        ({"a": {"increased_by": "one"}}, "increased_by is 'one'"),
        ({"a": {"unchanged": False}}, "unchanged is False"),
        ({"a": {"absent": 1}}, "absent is 1"),
        ({"a": {"contains": ""}}, "contains is ''"),
        ({"a": {"contains": {"text": {"regexp": "x"}}}}, "it is not a rule"),
        ({"a[": 1}, "not one like"),
    ],
)
def test_a_rule_that_says_nothing_is_refused(expect: dict[str, Any], says: str) -> None:
    problems = expect_problems(expect)
    assert problems and says in problems[0]


@pytest.mark.parametrize(
    ("rule", "given", "accepted"),
    [
        ({"contains": "harbour"}, "the northern Harbour", True),
        ({"contains": "harbour"}, "the station", False),
        ({"unordered": True}, ["c", "a", "b"], True),
        ({"unordered": True}, ["c", "a", "a"], False),
        ({"unordered": [1, 2]}, [2, 1], True),
        ({"length": 2}, ["x", "y"], True),
        ({"length": 2}, ["x"], False),
    ],
)
def test_arguments_speak_the_same_language(rule: dict[str, Any], given: Any, accepted: bool) -> None:
    gold = ["a", "b", "c"] if rule.get("unordered") is True else "x"
    step = PlanStep.model_validate({"step": 1, "server": "s", "tool": "t", "params": {"p": gold}})
    call = ToolCall(id="c", server="s", tool="t", arguments={"p": given})
    assert call_matches(step, step.params, {"p": rule}, call) is accepted


def test_the_examples_of_the_documentation_hold() -> None:
    """Each line of the table in docs/data.md: an expectation, a state that has it and one that does not."""
    text = (resource_root() / "docs/data.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\{.*?\})` \| `(.*?)` \| `(.*?)` \|$", text, re.MULTILINE)
    assert len(rows) >= 9
    named = set()
    for rule, good, bad in rows:
        expected = json.loads(rule)
        named |= expected.keys()
        before = {"v": 4} if "increased_by" in rule or "unchanged" in rule else None
        assert expect_problems({"v": expected}) == []
        assert expect_holds({"v": expected}, json.loads(good), before), (rule, good)
        assert not expect_holds({"v": expected}, json.loads(bad), before), (rule, bad)
    assert {
        "any_of",
        "regex",
        "contains",
        "unordered",
        "length",
        "increased_by",
        "unchanged",
        "absent",
    } <= named
