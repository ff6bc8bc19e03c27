"""Checks of the final answer and of the end state.

A right answer states what is asked for: it has the facts, does not deny them, is about as long as the
reference, and is not a copy of what the tools returned or a list to choose from.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, cast

from mcpagent.core.matching import expect_holds, others_unchanged
from mcpagent.core.placeholders import PlaceholderError, format_value, resolve_references, result_value
from mcpagent.core.tasks import AnswerCheck, StateCheck
from mcpagent.core.tools import ToolResult
from mcpagent.core.values import as_number, numbers_equal, numbers_in, quantities_in
from mcpagent.reward.abstention import abstention_holds
from mcpagent.reward.phrasing import Evidence, has_words, is_denied, is_dump, plain, without_markup

MAX_DIFFERENT_NUMBERS = 4
MAX_WORDS = (
    300  # of an answer to a pattern without a reference answer; `max_words` of the record overrides it
)
FEW_WORDS = 60  # an answer may always have so many
WORDS_PER_REFERENCE_WORD = 8
_SCALES = {
    **dict.fromkeys(("thousand", "k"), 3),
    **dict.fromkeys(("million", "m", "mn", "mio"), 6),
    **dict.fromkeys(("billion", "b", "bn"), 9),
    **dict.fromkeys(("trillion", "t", "tn"), 12),
}
_SCALE = re.compile(rf"\s?({'|'.join(sorted(_SCALES, key=len, reverse=True))})\b", re.IGNORECASE)
_FALLING = re.compile(
    r"\b(?:fell|fall(?:s|en|ing)?|down|drop\w*|declin\w+|los[et]|loss(?:es)?|decreas\w+|lower|minus"
    r"|negative|sank|slid|shed)\b",
    re.IGNORECASE,
)
_NOTHING = Evidence()


def as_facts(value: Any) -> list[Any]:
    """The facts of a check's value: those of a list, or the one that it is."""
    return [*cast("list[Any] | tuple[Any, ...]", value)] if isinstance(value, list | tuple) else [value]


def answer_holds(
    check: AnswerCheck, answer: str | None, results: Mapping[str, Any], evidence: Evidence = _NOTHING
) -> bool:
    """Whether `answer` passes. `results` resolves step references of the expected value; one that the episode
    never produced cannot be answered, so it fails. None (no answer was given) fails."""
    if answer is None:
        return False
    try:
        value = resolve_references(check.value, results)
        if check.type == "abstention":
            return abstention_holds(check, answer, resolve_references(check.without, results), evidence)
    except PlaceholderError:
        return False
    facts = as_facts(value)
    match check.type:
        case "string":
            return plain(str(value)) == plain(answer)
        case "number":
            holds = _number_holds(value, answer, check.tolerance, evidence)
        case "regex":
            facts = []
            holds = re.search(str(value), answer) is not None
        case "must_include":
            holds = _includes_all(facts, answer, check.tolerance, evidence)
    texts = [format_value(fact) for fact in facts]
    return holds and _is_short(check, answer, texts, evidence) and not is_dump(answer, texts, evidence)


def state_holds(
    check: StateCheck, result: ToolResult, results: Mapping[str, Any], before: ToolResult | None = None
) -> bool:
    """Whether the end state that `result` reports is as expected. `results` as above; `before` is what the
    same call reported before the episode, which only some rules need: without it they fail."""
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


def _number_holds(expected: Any, answer: str, tolerance: float, evidence: Evidence) -> bool:
    target = as_number(expected)
    if target is None and isinstance(expected, str):
        numbers = numbers_in(expected)
        target = float(numbers[-1]) if numbers else None
    if target is None:
        return False
    new = _new_numbers(answer, evidence, {target})
    if not new or len({number for number, _, _ in new}) > MAX_DIFFERENT_NUMBERS:
        return False
    return _states(new[-1], target, answer, tolerance, evidence)


def _includes_all(facts: Sequence[Any], answer: str, tolerance: float, evidence: Evidence) -> bool:
    """Every fact is there, and no more different numbers than the facts hold and a few."""
    held = {number for fact in facts for number in numbers_in(format_value(fact))}
    numeric = sum(not isinstance(fact, str) for fact in facts)
    allowed = MAX_DIFFERENT_NUMBERS + max(numeric, len(held))
    if len({number for number, _, _ in quantities_in(answer)} - _given(evidence, held)) > allowed:
        return False
    return all(_includes(fact, answer, tolerance, evidence) for fact in facts)


def _new_numbers(answer: str, evidence: Evidence, targets: set[Any]) -> list[tuple[int | float, int, int]]:
    """The numbers of `answer` without those of the question, which an answer may repeat, unless they are
    targets. All of them where the question holds every one."""
    given, quantities = _given(evidence, targets), quantities_in(answer)
    return [quantity for quantity in quantities if quantity[0] not in given] or quantities


def _given(evidence: Evidence, targets: set[Any]) -> set[int | float]:
    """The numbers of the question, which an answer may repeat, but for those that are targets."""
    return set(numbers_in(evidence.said)) - targets


def _includes(fact: Any, answer: str, tolerance: float, evidence: Evidence) -> bool:
    """Somewhere in `answer`, and not denied there."""
    target = as_number(fact)
    if target is not None and (not isinstance(fact, str) or not fact.strip().startswith("0")):
        quantities = [q for q in quantities_in(answer) if _states(q, target, answer, tolerance, evidence)]
        if quantities or not isinstance(fact, str):
            return bool(quantities)
    text = without_markup(answer).replace("’", "'").casefold()
    return any(not is_denied(text, start, end, said=evidence.said) for start, end in _places(fact, text))


def _places(fact: Any, text: str) -> Iterator[tuple[int, int]]:
    """Where the words of a fact stand, whole: "AAP" is not in "AAPL"."""
    words = r"\s+".join(map(re.escape, without_markup(plain(str(fact))).split()))
    for match in re.finditer(rf"(?<!\w){words}(?!\w)", text):
        yield match.start(), match.end()


def _states(
    quantity: tuple[int | float, int, int], target: float, answer: str, tolerance: float, evidence: Evidence
) -> bool:
    """Whether a number of `answer` is said to be `target`: as it stands, as "2.9 trillion", or for -2 as
    "fell by 2"."""
    number, start, end = quantity
    scale = _SCALE.match(answer, end)
    readings = [number, *([number * 10 ** _SCALES[scale[1].lower()]] if scale else ())]
    if target < 0 < number and _FALLING.search(answer):
        readings += [-reading for reading in readings]
    is_close = any(numbers_equal(target, reading, tolerance=tolerance) for reading in readings)
    return is_close and not is_denied(answer, start, end, said=evidence.said)


def _is_short(check: AnswerCheck, answer: str, facts: Sequence[str], evidence: Evidence) -> bool:
    limit = (check.model_extra or {}).get("max_words")
    if limit is None:
        reference = evidence.reference or " ".join(facts)
        expected = max(len(reference.split()), sum(len(fact.split()) for fact in facts))
        limit = max(FEW_WORDS, WORDS_PER_REFERENCE_WORD * expected) if expected else MAX_WORDS
    return len(answer.split()) <= limit


def says(fact: Any, text: str) -> bool:
    """Whether a fact stands in a text: a number as a number, anything else as whole words."""
    target = as_number(fact)
    if target is not None and any(numbers_equal(target, number) for number in numbers_in(text)):
        return True
    return has_words(plain(format_value(fact)), plain(text))
