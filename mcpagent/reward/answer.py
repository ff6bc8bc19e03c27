"""Checks of the final answer and of the end state."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from mcpagent.core.matching import values_equal
from mcpagent.core.numbers import as_number, numbers_in
from mcpagent.core.placeholders import PlaceholderError, lookup_path, resolve, result_value
from mcpagent.core.tasks import AnswerCheck, StateCheck
from mcpagent.core.tools import ToolResult

MAX_DIFFERENT_NUMBERS = 4
MAX_WORDS = 300  # of answers that are searched for facts; `max_words` of the record overrides it
_FLOAT_NOISE = 1e-9


def answer_holds(check: AnswerCheck, answer: str | None, results: Mapping[str, Any]) -> bool:
    """Whether `answer` passes. `results` resolves step references of the expected value; one that the episode
    never produced cannot be answered, so it fails. None (no answer was given) fails."""
    if answer is None:
        return False
    try:
        value = resolve(check.value, results)
    except PlaceholderError:
        return False
    match check.type:
        case "number":
            return _number_holds(value, answer, check.tolerance)
        case "string":
            return _plain(str(value)) == _plain(answer)
        case "regex":
            return _is_short(check, answer) and re.search(str(value), answer) is not None
        case "must_include":
            facts = value if isinstance(value, list | tuple) else [value]
            return _is_short(check, answer) and _includes_all(facts, answer, check.tolerance)


def state_holds(check: StateCheck, result: ToolResult, results: Mapping[str, Any]) -> bool:
    """Whether the end state that `result` reports has every expected value. `results` as above."""
    if result.is_error:
        return False
    try:
        return all(
            values_equal(resolve(expected, results), lookup_path(result_value(result), path))
            for path, expected in check.expect.items()
        )
    except PlaceholderError:
        return False


def _number_holds(expected: Any, answer: str, tolerance: float) -> bool:
    target = as_number(expected)
    if target is None and isinstance(expected, str):
        found = numbers_in(expected)
        target = float(found[-1]) if found else None
    numbers = numbers_in(answer)
    if target is None or not numbers or len(set(numbers)) > MAX_DIFFERENT_NUMBERS:
        return False
    return _is_close(numbers[-1], target, tolerance)


def _includes_all(facts: Sequence[Any], answer: str, tolerance: float) -> bool:
    numbers = numbers_in(answer)
    if len(set(numbers)) > MAX_DIFFERENT_NUMBERS + sum(as_number(fact) is not None for fact in facts):
        return False
    return all(_includes(fact, answer, numbers, tolerance) for fact in facts)


def _includes(fact: Any, answer: str, numbers: Sequence[float], tolerance: float) -> bool:
    if not isinstance(fact, str):
        target = as_number(fact)
        return target is not None and any(_is_close(number, target, tolerance) for number in numbers)
    # Whole words: the fact "AAP" is not in "AAPL".
    pattern = rf"(?<!\w){re.escape(_plain(fact))}(?!\w)"
    return re.search(pattern, _plain(answer)) is not None


def _is_close(number: float, target: float, tolerance: float) -> bool:
    return abs(number - target) <= tolerance + _FLOAT_NOISE * max(1.0, abs(target))


def _is_short(check: AnswerCheck, answer: str) -> bool:
    limit = (check.model_extra or {}).get("max_words", MAX_WORDS)
    return len(answer.split()) <= limit


def _plain(text: str) -> str:
    return " ".join(text.split()).casefold()
