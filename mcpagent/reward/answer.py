"""Checks of the final answer and of the end state.

With the answer line only that line counts (`mcpagent.reward.line`). Without it the whole text is searched: a
right one has the facts, does not deny them, is about as long as the reference, and is not a copy of what the
tools returned or a list to choose from.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import isclose
from typing import Any, cast

from mcpagent.core.answer_line import split_answer
from mcpagent.core.matching import expect_holds, others_unchanged
from mcpagent.core.patterns import PatternError, pattern_found
from mcpagent.core.placeholders import PlaceholderError, format_value, resolve_references, result_value
from mcpagent.core.tasks import AnswerCheck, StateCheck
from mcpagent.core.tools import ToolResult
from mcpagent.core.values import as_number, is_json_object, numbers_in
from mcpagent.reward.abstention import abstention_holds
from mcpagent.reward.amounts import amounts
from mcpagent.reward.canonical import canonical
from mcpagent.reward.grammar import unwrapped
from mcpagent.reward.line import CHANGED_FROM, is_given, read_answer, without_asked_bound
from mcpagent.reward.moments import Span
from mcpagent.reward.phrasing import (
    HEDGE,
    AnswerContext,
    denied_after,
    is_affirmed,
    is_dump,
    plain,
    without_unless_hedged,
)
from mcpagent.reward.rivals import are_joined, is_about_another, is_of_another, is_shown_beside, rival_amounts
from mcpagent.reward.spans import units_for, value_spans

MAX_DIFFERENT_NUMBERS = 4
MAX_WORDS = (
    300  # of an answer to a pattern without a reference answer; `max_words` of the record overrides it
)
FEW_WORDS = 60  # an answer may always have so many
WORDS_PER_REFERENCE_WORD = 8
_ZERO = ("0", "none", "no", "nobody", "nothing", "never")
_NO_TITLE = r"(?<!\bMr\.)(?<!\bMs\.)(?<!\bDr\.)(?<!\bMrs\.)(?<!\bMme\.)(?<!\bProf\.)"
_SENTENCE = re.compile(
    rf"(?<=[.!?;]){_NO_TITLE}\s+"
    r"(?!\d|(?:jan|feb|mar|apr|may|ju[nl]|aug|sep|oct|nov|dec)[a-z]*\.?,? \d{4})|\n+| - ",
    re.I,
)
_LINE = re.compile(rf"(?<=[.!?]){_NO_TITLE}\s+(?=[A-Z])|\n+")
_OF_OTHERS = re.compile(  # "The other three are open."
    r"(?:^|(?<=[.!?;,\n])\s*)(?:(?:and|but|while|whereas) )?(?:all )?the "
    r"(?:others|rest|(?:other|remaining) (?:two|three|four|five|six|seven|eight|nine|ten|\d+))\b[^.!?;\n]*",
    re.I | re.M,
)
_THEREFORE = re.compile(r",? (?:so|therefore|hence|thus|which means) ")
_ASIDE = re.compile(
    r"(?:,\s+(?:and |but )?|\s(?=while|whereas))(?:while|whereas|after|before|which|who|though|although"
    r"|unlike|compared|against|ahead|followed|because|with|as)\b((?:[^.;\n]|\.(?=\d))*)"
)
_COMPARISON = re.compile(
    r"(?:,\s+(?:unlike|(?:well )?within)"
    r"|\s(?:compared (?:with|to)|against|ahead of|behind|followed by|vs\.?))(?=\s)"
    r"((?:[^,.;\n]|[.,](?=\d))*)"
)
_NOTHING = AnswerContext()
# What asks for a bound, and how an answer says that its value is one.
_BOUNDS = [
    (re.compile(rf"\b(?:{asked})\b", re.I), re.compile(rf"\b(?:{said}) (?=\W*\d)", re.I))
    for asked, said in (
        (r"at most|max|maxim\w+|limit|capacity|up to", "up to|at most|a maximum of|no more than"),
        (r"at least|minim\w+", "at least|a minimum of|no less than"),
    )
]


def as_facts(value: Any) -> list[Any]:
    """Return the facts of a check's value: those of a list, the things and values of pairs, or itself."""
    if is_json_object(value):
        return [item for pair in value.items() for item in pair]
    return [*cast("list[Any] | tuple[Any, ...]", value)] if isinstance(value, list | tuple) else [value]


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
    for asked, said in _BOUNDS if check.type in ("number", "pairs") else ():
        line = said.sub("", line) if asked.search(context.said) else line
    try:
        value = resolve_references(check.value, results)
        accepted = [value, *resolve_references(list(check.accept), results)]
        without = resolve_references(check.without, results)
    except PlaceholderError:
        return False
    if check.type == "abstention":
        told = f"{before}\n{line}" if on_line else answer
        return abstention_holds(check, told, without, context, line=line if on_line else None)
    if check.type == "regex":
        # What the reference says may be said, whatever a result says too.
        facts = [context.reference] if context.reference else []
        return _is_found(str(value), line) and (on_line or _is_answer(check, line, facts, context))
    if on_line:
        return is_given(check, accepted, read_answer(line, check), replace(context, on_line=True))
    if check.type == "string":
        return any(plain(str(each)) == plain(answer) for each in accepted)
    return any(_text_holds(check, each, line, context) for each in accepted)


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


def _text_holds(check: AnswerCheck, value: Any, answer: str, context: AnswerContext) -> bool:
    facts, answer = as_facts(value), unwrapped(answer, check)
    if not _OF_OTHERS.search(context.said):
        answer = _OF_OTHERS.sub("", answer)
    texts = [format_value(fact) for fact in facts]
    return _states(check, value, read_answer(answer, check), context) and _is_answer(
        check, answer, texts, context
    )


def _is_answer(check: AnswerCheck, answer: str, facts: Sequence[str], context: AnswerContext) -> bool:
    is_typed = check.type not in ("must_include", "regex")  # of which the whole answer has been read
    if not _is_short(check, answer, facts, context):
        return False
    if not is_dump(answer, facts, context, is_typed=is_typed):
        return True
    if not is_typed or check.type == "number":
        return False
    # What is denied of others, or said of them, is no offer.
    for part in _SENTENCE.split(answer):
        if HEDGE.search(part) or is_about_another(part, facts, context):
            answer = answer.replace(part, "")
    answer = _without_aside(CHANGED_FROM.sub(" ", answer))
    return not is_dump(answer, facts, context, is_typed=is_typed)


def _states(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> bool:
    """Whether the value is said and not denied: a number or facts anywhere, anything else by a sentence that
    would do as the answer line."""
    if check.type == "number":
        # What is compared with is another one's, if something else is said of this one.
        alone, asked = without_unless_hedged(_COMPARISON, text), _given(context, set())
        text = alone if any(amount.number not in asked for amount in amounts(alone)) else text
        texts = dict.fromkeys((text, _without_aside(text)))
        return any(_states_number(check, value, told, context) for told in texts)
    if check.type == "must_include":
        return _includes_all(as_facts(value), check, text, context)
    sentences = [text, *_SENTENCE.split(text), *_LINE.split(text)]
    sentences += [*map(_without_aside, sentences)]
    sentences.append(
        _COMPARISON.sub(lambda m: m[0] if HEDGE.search(m[1]) or not re.search(r"\d", m[1]) else "", text)
    )
    sentences = [part for part in dict.fromkeys(sentences) if part.strip()]
    options = (True, False) if check.type == "yes_no" else check.options
    plainly = [replace(context, said="")] if check.type == "yes_no" else []
    for heard in (*plainly, context):  # a plain yes or no tells more than other words
        parts = [(part, o) for part in sentences[1:] for o in options if is_given(check, [o], part, heard)]
        given = [o for part, o in parts if o == value or not is_about_another(part, [str(value)], context)]
        if given and given[-1] != value:
            return False  # corrected
        if given:
            break
    return any(
        is_given(check, [value], part, context) and not denied_after(text, text.find(part) + len(part))
        for part in (*sentences, _THEREFORE.split(text)[-1])
    )


def _without_aside(text: str) -> str:
    """A text without clauses that go on with something else: ", while B has 3", ", after arriving at 9"."""
    return without_unless_hedged(_ASIDE, text)


def _is_said(spans: Sequence[Span], text: str, context: AnswerContext) -> bool:
    return any(
        (text[start:end].casefold() in _ZERO and not denied_after(text, end))
        or is_affirmed(text, start, end, context)
        for start, end in spans
    )


def _states_number(check: AnswerCheck, value: Any, text: str, context: AnswerContext) -> bool:
    """Whether the number is said, and nothing that is joined to it or said after it rivals it. Numbers that
    lead to it may stand before it."""
    target = as_number(value)
    if target is None and isinstance(value, str):
        numbers = numbers_in(value)
        target = numbers[-1] if numbers else None
    if target is None:
        return False
    exact, text = value if isinstance(value, int) else target, without_asked_bound(text, context.said)
    stated = value_spans(check, exact, text, context, is_strict=False)
    right = [a for a in amounts(text) if any(start <= a.start < end for start, end in stated)]
    is_count = "pieces" in units_for(check, context, may_be_percent=False).names
    rivals = rival_amounts(text, right, value, context, is_count=is_count)
    if len(rivals) > 1 and isclose(sum(rival.number for rival in rivals), target, rel_tol=1e-9):
        rivals = []  # the parts that it is the sum of
    told = sorted({*right, *rivals}, key=lambda amount: amount.start)
    pairs = [(a, b) for a, b in pairwise(told) if (a in right) != (b in right) and are_joined(text, a, b)]
    joined = {amount for pair in pairs for amount in pair}
    stated = [span for span in stated if not any(span[0] <= one.start < span[1] for one in joined)]
    stated = [span for span in stated if not is_of_another(text, span, value, context)]
    if not _is_said(stated, text, context):
        return False
    unknown = [rival for rival in rivals if not is_shown_beside(rival, [value], context)]
    last = max(start for start, _ in stated)
    return len({a.number for a in unknown}) <= MAX_DIFFERENT_NUMBERS and all(a.start < last for a in unknown)


def _includes_all(facts: Sequence[Any], check: AnswerCheck, text: str, context: AnswerContext) -> bool:
    """Whether every fact is there, and no more different numbers than the facts hold and a few."""
    held = {number for fact in facts for number in numbers_in(format_value(fact))}
    numeric = sum(not isinstance(fact, str) for fact in facts)
    allowed = MAX_DIFFERENT_NUMBERS + max(numeric, len(held))
    if len({amount.number for amount in amounts(text)} - _given(context, held)) > allowed:
        return False
    as_it_is = check.model_copy(update={"type": "must_include"})
    spans = [value_spans(as_it_is, fact, text, context, is_strict=False) for fact in facts]
    return all(_is_said(of_fact, text, context) for of_fact in spans)


def _given(context: AnswerContext, targets: set[Any]) -> set[int | float]:
    """The numbers of the question, which an answer may repeat, but for those that are targets."""
    return set(numbers_in(canonical(context.said))) - targets


def _is_short(check: AnswerCheck, answer: str, facts: Sequence[str], context: AnswerContext) -> bool:
    limit = (check.model_extra or {}).get("max_words")
    if limit is None:
        reference = context.reference or " ".join(facts)
        expected = max(len(reference.split()), sum(len(fact.split()) for fact in facts))
        limit = max(FEW_WORDS, WORDS_PER_REFERENCE_WORD * expected) if expected else MAX_WORDS
    return len(answer.split()) <= limit
