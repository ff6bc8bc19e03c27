"""Checks of the final answer and of the end state.

With the answer line only that line counts (`mcpagent.reward.text.line`). Without it the whole text is
searched (`mcpagent.reward.text.free`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from mcpagent.core.answer_line import split_answer
from mcpagent.core.matching import expect_holds, others_unchanged
from mcpagent.core.patterns import PatternError, pattern_found
from mcpagent.core.placeholders import PlaceholderError, resolve_references, result_value
from mcpagent.core.tasks import AnswerCheck, StateCheck
from mcpagent.core.tools import ToolResult
from mcpagent.reward.text.abstention import abstention_holds
from mcpagent.reward.text.free import is_answer, is_short, text_holds
from mcpagent.reward.text.line import is_given, is_short_line, read_answer
from mcpagent.reward.text.phrasing import AnswerContext, plain

_NOTHING = AnswerContext()
# What asks for a bound, and how an answer says that its value is one.
_BOUNDS = [
    (re.compile(rf"\b(?:{asked})\b", re.I), re.compile(rf"\b(?:{said}) (?=\W*(?:the )?\d)", re.I))
    for asked, said in (
        (
            r"at most|max|maxim\w+|largest|biggest|longest|limit|capacity|up to|gusts?|peak",
            "up to|at most|a maximum of|no more than|(?:may|might|can|could) reach",
        ),
        (r"at least|minim\w+", "at least|a minimum of|no less than"),
        (r"limit|threshold|alert\w*|fires?|trigger\w*", "above|over|beyond|below|under"),
        (r"when (?:may|can|could)|earliest|ready|available", "not before|no earlier than|from|as of"),
        (r"how (?:long|soon|quickly|fast)", "after"),
    )
]


def answer_holds(
    check: AnswerCheck,
    answer: str | None,
    results: Mapping[str, Any],
    context: AnswerContext = _NOTHING,
    *,
    on_line: bool = False,
) -> bool:
    """Return whether `answer` passes; `on_line` grades its answer line alone. `results` resolves step
    references of the expected value; one that the episode never produced cannot be answered, so it fails.
    None (no answer was given) fails."""
    if answer is None:
        return False
    if check.unit:
        context = replace(context, said=f"{context.said} {check.unit}")
    before, line = split_answer(answer) if on_line else ("", answer)
    if line is None:
        return False
    for asked, said in _BOUNDS if check.type in ("number", "date", "pairs") else ():
        line = said.sub("", line) if asked.search(context.said) else line
    try:
        value = resolve_references(check.value, results)
        accepted = [value, *resolve_references(list(check.accept), results)]
        without = resolve_references(check.without, results)
    except PlaceholderError:
        return False
    for question in accepted:  # a title that asks is no doubt
        if isinstance(question, str) and "?" in question:
            line = line.replace(question, question.replace("?", ""))
    if check.type == "abstention":
        told = f"{before}\n{line}" if on_line else answer
        return abstention_holds(check, told, without, context, line=line if on_line else None)
    if check.type == "regex":
        # What the reference says may be said, whatever a result says too.
        facts = [context.reference] if context.reference else []
        return _is_found(str(value), line) and (
            on_line or (is_short(check, line, facts, context) and is_answer(check, line, facts, context))
        )
    if on_line:
        return is_short_line(line, accepted) and is_given(
            check, accepted, read_answer(line, check), replace(context, on_line=True)
        )
    if check.type == "string":
        return any(plain(str(each)) == plain(answer) for each in accepted)
    return any(text_holds(check, each, line, context) for each in accepted)


def state_holds(
    check: StateCheck, result: ToolResult, results: Mapping[str, Any], before: ToolResult | None = None
) -> bool:
    """Return whether the end state that `result` reports is as expected. `results` as above; `before` is what
    the same call reported before the episode, which only some rules need: without it they fail."""
    if result.is_error:
        return False
    was = None if before is None or before.is_error else result_value(before)
    try:
        expected = resolve_references(check.expect, results)
    except PlaceholderError:
        return False
    now = result_value(result)
    return expect_holds(expected, now, was) and (
        not check.nothing_else_changed or (was is not None and others_unchanged(expected, now, was))
    )


def _is_found(pattern: str, text: str) -> bool:
    try:
        return pattern_found(pattern, text)
    except PatternError:
        return False  # what cannot be searched in bounded time is not found; `data validate` says so
