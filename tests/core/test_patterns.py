"""Patterns of others: what is found, what is refused, and that none of them takes long."""

from __future__ import annotations

import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.patterns import PatternError, pattern_found, pattern_problem


@pytest.mark.parametrize(
    ("pattern", "text", "is_found"),
    [
        (r"^(a+)+$", "a" * 100_000 + "b", False),  # `re` would take longer than the universe lasts
        (r"(x+x+)+y", "x" * 100_000, False),
        (r"^Yes\b", "Yes, it is.", True),
        (r"^Yes\b", "No. Yes.", False),
        (r"(?i)\bAAPL\b", "the aapl stock", True),
        (r"\u00e9\Z", "café", True),
        (r"^\p{L}+$", "Müller", True),
        (r"(?P<year>\d{4})-(?<month>\d\d)", "on 2026-11-23", True),
        (r"end$", "end\n", False),
        ("\ud800", "a\udc00", True),  # halves of characters are alike
    ],
)
def test_a_pattern_is_found_or_not(pattern: str, text: str, is_found: bool) -> None:
    assert pattern_found(pattern, text) is is_found


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        ("(", "is not a regular expression"),
        ("(?=a)b", "cannot be searched in linear time"),
        (r"(a)\1", "cannot be searched in linear time"),
        ("a{5000}", "cannot be searched in linear time"),
        ("(((a{1000}){1000}){1000}){1000}", "cannot be searched in linear time"),
        ("(" * 50_000 + ")" * 50_000, "regular expression"),
        (7, "must be a string"),
    ],
)
def test_a_pattern_that_cannot_be_searched_is_refused_with_the_reason(pattern: object, reason: str) -> None:
    problem = pattern_problem(pattern)
    assert problem is not None and reason in problem and len(problem) < 400
    if isinstance(pattern, str):
        with pytest.raises(PatternError):
            pattern_found(pattern, "a")


def test_a_large_pattern_is_not_searched_in_a_large_text() -> None:
    with pytest.raises(PatternError, match="is too long for a text"):
        pattern_found("(.*)a.{900}z", "ab" * 100_000)


@given(st.from_regex(r"[ab.*+?|()0-2]{1,12}", fullmatch=True), st.text("abc", max_size=8))
def test_small_patterns_are_found_where_python_finds_them(pattern: str, text: str) -> None:
    try:
        expected = re.search(pattern, text) is not None
    except re.error:
        return
    if pattern_problem(pattern) is None:
        assert pattern_found(pattern, text) is expected


def test_every_search_ends() -> None:
    slow = ["(.*)a.{900}z", "(a?){500}a{500}", "(.*a.{400}){2}z", r"((a|b)*c.{300}){3}", "(.{0,999}){9}z"]
    for pattern in slow:
        text = "ab" * 50_000
        started = time.process_time()
        for length in (100, 1_000, 10_000, 100_000):
            try:
                pattern_found(pattern, text[:length])
            except PatternError:
                break
        assert time.process_time() - started < 40.0, pattern  # four searches of about a second at most
