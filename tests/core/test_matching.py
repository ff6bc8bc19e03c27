from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.matching import (
    UNRESOLVED,
    argument_score,
    call_matches,
    resolve_rules,
    rule_problems,
    values_equal,
)
from mcpagent.core.tasks import PlanStep
from mcpagent.core.tools import ToolCall

GOLD = PlanStep(step=1, server="s", tool="t", params={"ticker": "AAPL", "limit": 5})


def call(arguments: dict[str, Any], *, server: str = "s", tool: str = "t") -> ToolCall:
    return ToolCall(id="c0", server=server, tool=tool, arguments=arguments)


def matches(arguments: dict[str, Any], rules: dict[str, Any] | None = None) -> bool:
    return call_matches(GOLD, GOLD.params, rules or {}, call(arguments))


@pytest.mark.parametrize(
    ("gold", "given", "equal"),
    [
        (5, 5.0, True),
        (5, "5", True),
        ("5.0", 5, True),
        (0.1 + 0.2, 0.3, True),
        (5, 5.001, False),
        (True, 1, False),
        (True, "true", False),
        ("AAPL", " aapl ", True),
        ("007", "7", False),  # two strings: an identifier, not an amount
        ("Send the memo", "send the memo", False),  # free text keeps its case
        ("Send the memo", " Send the memo", True),
        ([1, "A"], [1.0, "a"], True),
        ([1, 2], [2, 1], False),
        ({"a": 1}, {"a": "1"}, True),
        ({"a": 1}, {"a": 1, "b": 2}, False),
        (None, 0, False),
        (UNRESOLVED, UNRESOLVED, False),
    ],
)
def test_values_are_equal_as_a_person_sees_them(gold: Any, given: Any, equal: bool) -> None:
    assert values_equal(gold, given) is equal


@pytest.mark.parametrize(
    ("gold", "given", "equal"),
    [
        (1617176400000, 1617176400001, False),  # a time in milliseconds, off by one
        (1_000_000_000.0, 1_000_000_001, False),
        (1234567890123456788, 1234567890123456789, False),  # past what a float tells apart
        (1234567890123456789, 1234567890123456789, True),
        (10**400, 10**400, True),
        (6.674e-11, 6.7e-11, False),  # the constant of gravitation
        (6.674e-11, 0, False),
        (2e-9, 3e-9, False),
        (0, 5.55e-17, True),  # 0.1 + 0.2 - 0.3
        (0.3, 0.1 + 0.2, True),
        (3.3e15, 1.1e15 * 3, True),
        (1617176400000, 1617176400000.0, True),
    ],
)
def test_numbers_are_equal_up_to_the_noise_of_floats_and_no_further(
    gold: float, given: float, equal: bool
) -> None:
    assert values_equal(gold, given) is equal
    assert values_equal([gold], [given]) is equal


def test_a_call_matches_when_tool_and_every_argument_agree() -> None:
    assert matches({"ticker": "aapl", "limit": "5"})
    assert not matches({"ticker": "AAPL"})
    assert not matches({"ticker": "AAPL", "limit": 5, "extra": 1})
    assert not matches({"ticker": "MSFT", "limit": 5})
    assert matches({"ticker": "AAPL", "limit": 5, "extra": None})  # null is the same as missing
    assert not call_matches(GOLD, GOLD.params, {}, call(GOLD.params, server="other"))
    assert not call_matches(GOLD, GOLD.params, {}, call(GOLD.params, tool="other"))
    assert not call_matches(GOLD, GOLD.params, {}, call(GOLD.params, server=""))


def test_rules_widen_what_is_acceptable() -> None:
    rules: dict[str, Any] = {"limit": {"optional": True}}
    assert matches({"ticker": "AAPL"}, rules)
    assert matches({"ticker": "AAPL", "limit": 5}, rules)
    assert not matches({"ticker": "AAPL", "limit": 6}, rules)
    assert matches({"ticker": "AAPL", "limit": 99}, {"limit": {"ignore": True}})
    assert matches({"ticker": "AAPL", "limit": 7}, {"limit": {"any_of": [6, 7]}})
    assert matches({"ticker": "AAPL", "limit": 5}, {"limit": {"any_of": [6, 7]}})
    assert not matches({"ticker": "AAPL", "limit": 8}, {"limit": {"any_of": [6, 7]}})
    assert matches({"ticker": "AAPL", "limit": 5.4}, {"limit": {"tolerance": 0.5}})
    assert not matches({"ticker": "AAPL", "limit": 5.6}, {"limit": {"tolerance": 0.5}})
    assert matches({"ticker": "the AAPL stock", "limit": 5}, {"ticker": {"regex": r"\bAAPL\b"}})
    assert not matches({"ticker": "AAPLE", "limit": 5}, {"ticker": {"regex": r"\bAAPL\b"}})
    assert matches({"ticker": "AAPL", "limit": 5, "page": 2}, {"page": {"optional": True}})


@pytest.mark.parametrize("name", ["contains", "regex", "length"])
def test_a_rule_whose_reference_has_no_result_yet_accepts_nothing(name: str) -> None:
    rules = resolve_rules({"ticker": {name: "${step9.ticker}"}}, {})
    assert not matches({"ticker": "AAPL", "limit": 5}, rules)


def test_the_argument_score_is_the_share_of_right_names_in_the_union() -> None:
    # union {ticker, limit, extra}, right {ticker}: 1 / 3
    assert argument_score(GOLD.params, {}, {"ticker": "AAPL", "limit": 6, "extra": 1}) == pytest.approx(1 / 3)
    assert argument_score(GOLD.params, {}, {}) == 0.0
    assert argument_score({}, {}, {}) == 1.0
    assert argument_score(GOLD.params, {"limit": {"ignore": True}}, {"ticker": "AAPL"}) == 1.0


@given(
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
    st.dictionaries(st.sampled_from("abcd"), st.integers(0, 2)),
)
def test_without_rules_the_score_is_symmetric_and_one_only_for_equals(
    gold: dict[str, int], given: dict[str, int]
) -> None:
    score = argument_score(gold, {}, given)
    assert 0.0 <= score <= 1.0
    assert score == argument_score(given, {}, gold)
    assert (score == 1.0) == (gold == given)


def test_wrong_rules_are_named() -> None:
    problems = rule_problems(
        {"a": {"anyof": [1]}, "b": {"any_of": 3}, "c": {"regex": "("}, "d": {"tolerance": "wide"}, "e": 5}
    )
    assert len(problems) == 5
    for parameter, problem in zip("abcde", problems, strict=True):
        assert f"match.{parameter}" in problem
    assert rule_problems({"a": {"any_of": [1], "tolerance": 0.1, "optional": True}}) == []
