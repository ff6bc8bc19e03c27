"""The verdict on a last message: right, wrong, out of form or missing."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Any

from mcpagent.core.answer_line import NO_ANSWER, folded
from mcpagent.core.placeholders import PlaceholderError, resolve_references
from mcpagent.core.tasks import AnswerCheck
from mcpagent.reward.answer import others
from mcpagent.reward.answer.line import answer_values
from mcpagent.reward.answer.types import read

GRADER = 2  # raised when an answer may get another verdict than before
_FOUND = ("regex", "must_include")  # types of others, which say what a line has in it


class Verdict(StrEnum):
    """The reader's verdict on a last message."""

    RIGHT = "right"
    WRONG = "wrong"  # another value, in the form that was asked for
    OUT_OF_FORM = "out_of_form"  # several lines, text behind the line, or a value in no form of its type
    MISSING = "missing"  # no message, or no answer line

    @property
    def is_in_form(self) -> bool:
        """True if the answer had the form that the question states."""
        return self in (Verdict.RIGHT, Verdict.WRONG)


def verdict_on(
    check: AnswerCheck, message: str | None, results: Mapping[str, Any], *, on_line: bool
) -> Verdict:
    """Return the verdict on a last message; with `on_line` on its answer line alone. `results` resolve step
    references of the expected value: one that the episode never produced cannot be answered, so any answer is
    wrong."""
    given = None if message is None else answer_values(message) if on_line else (message,)
    if given is None:
        return Verdict.MISSING
    expected = accepted_values(check, results)
    verdict = Verdict.OUT_OF_FORM
    for text in given:
        said = [_reading(check, value, text, on_line=on_line) for value in expected or [None]]
        if any(said):
            return Verdict.RIGHT if expected else Verdict.WRONG
        if False in said:
            verdict = Verdict.WRONG
            if check.type == "choice":  # another option as it stands
                break
    return verdict


def accepted_values(check: AnswerCheck, results: Mapping[str, Any]) -> list[Any]:
    """Return the values that are right; none if one refers to a result that is not there."""
    try:
        return [resolve_references(value, results) for value in (check.value, *check.accept)]
    except PlaceholderError:
        return []


def _reading(check: AnswerCheck, value: Any, given: str, *, on_line: bool) -> bool | None:
    if not on_line or check.type in _FOUND:
        return others.holds(check, value, given)
    if check.type in ("none", "abstention"):
        return folded(given) == NO_ANSWER
    return read(check, value, given)
