"""Answers of datasets that have no answer line, as their field grades them: equality or containment.

Neither sees a denial ("it is not 7"), nor a second value next to the right one; `mcpagent data validate` says
so of each such record, and names the way out: an answer line, or the method `rule+judge`.
"""

from __future__ import annotations

import re
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.patterns import PatternError, pattern_found
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.reward.answer.shown import stands_in

_WORDS = {True: ("yes", "true"), False: ("no", "false")}


def holds(check: AnswerCheck, value: Any, message: str) -> bool:
    """Return whether `message` has `value`: string is equality as names are compared, regex a pattern that is
    found, `abstention` any word at all, all others containment by type."""
    match check.type:
        case "string":
            return folded(message) == folded(format_value(value))
        case "regex":
            return _is_found(format_value(value), message)
        case "abstention" | "none":
            return re.search(r"\w", message) is not None
        case "yes_no":
            is_yes = folded(format_value(value)) in _WORDS[True]
            right, wrong = (any(stands_in(w, message) for w in _WORDS[side]) for side in (is_yes, not is_yes))
            return right and not wrong
        case _:
            return stands_in(value, message, tolerance=check.tolerance)


def _is_found(pattern: str, text: str) -> bool:
    try:
        return pattern_found(pattern, text)
    except PatternError:
        return False  # what cannot be searched in bounded time is not found; `data validate` says so
