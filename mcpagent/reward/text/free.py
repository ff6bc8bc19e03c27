"""A free text, without an answer line: right if it has the facts, does not deny them, is about as long as the
reference, and is not a copy of what the tools returned or a list to choose from."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import isclose
from typing import Any, cast

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number, is_json_object, numbers_in
from mcpagent.reward.text.amounts import amounts
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.corrections import CORRECTION, NO_TITLE, is_taken_back
from mcpagent.reward.text.exchange import exchanges
from mcpagent.reward.text.grammar import blanked, unwrapped
from mcpagent.reward.text.line import CHANGED_FROM, is_given, read_answer, without_asked_bound
from mcpagent.reward.text.moments import Span
from mcpagent.reward.text.naming import short, worded_spans
from mcpagent.reward.text.phrasing import (
    HEDGE,
    WORDS_PER_REFERENCE_WORD,
    AnswerContext,
    denied_after,
    is_affirmed,
    is_dump,
    is_longer,
    without_unless_hedged,
)
from mcpagent.reward.text.reading import says
from mcpagent.reward.text.rivals import (
    are_joined,
    is_about_another,
    is_of_another,
    is_shown_beside,
    rival_amounts,
)
from mcpagent.reward.text.spans import units_for, value_spans
from mcpagent.reward.text.tables import read_tables
from mcpagent.reward.text.vocabulary import NEGATED, SAFE, stems
from mcpagent.reward.text.words import pattern

MAX_DIFFERENT_NUMBERS = 4
MAX_WORDS = (
    300  # of an answer to a pattern without a reference answer; `max_words` of the record overrides it
)
SHORT_ANSWER_WORDS = 60  # an answer may always have so many
_SCALAR = ("number", "name", "date", "choice")
_ZERO = ("0", "none", "no", "nobody", "nothing", "never")
_SENTENCE = re.compile(
    rf"(?<=[.!?;]){NO_TITLE}\s+"
    r"(?!\d|(?:jan|feb|mar|apr|may|ju[nl]|aug|sep|oct|nov|dec)[a-z]*\.?,? \d{4})|\n+| - ",
    re.I,
)
_LINE = re.compile(rf"(?<=[.!?]){NO_TITLE}\s+(?=[A-Z])|\n+")
_OF_OTHERS = re.compile(  # "The other three are open."
    r"(?:^|(?<=[.!?;,(\n])\s?)(?:(?:and|but|while|whereas) )?(?:all )?the "
    r"(?:others|rest|one (?:before|after)"
    r"|(?:other|remaining) (?:two|three|four|five|six|seven|eight|nine|ten|\d+))\b[^.!?;\n]*"
    r"|\(the ones? [^()]*\)",
    re.I | re.M,
)
_ORDINALS = {"first": "1st", "second": "2nd", "third": "3rd", "fourth": "4th", "fifth": "5th"}
_PLACE = re.compile(rf"\b({'|'.join([*_ORDINALS, *_ORDINALS.values(), 'last'])})\b", re.I)
_OF_PLACE = re.compile(  # "The first one is at 8:50", if the second is asked for
    rf"(?:^|(?<=[.!?;\n]))\s*(?:(?:and|but|while) )?the {_PLACE.pattern}(?:[^.!?;\n]|\.(?=\d))*"
    rf"|(?<=,)\s*(?:(?:and|but|while) )?the {_PLACE.pattern}(?:[^.!?;,\n]|[.,](?=\d))*",
    re.I,
)
_REASON = pattern("reason")
_GIVEN_REASON = re.compile(r", (?:as|since|because|now that)\b[^.;\n]*", re.IGNORECASE)
_THEREFORE = re.compile(r",? (?:so|therefore|hence|thus|which means) ")
_NO_NAME = re.compile(r"(?<!\w)[a-z]+(?!\w)")
_CHOICE = re.compile(r"\b(?:can|may) ([^.;\n]*)")  # "They can pay by A, B or C"
_BRACKETED = re.compile(r" \(((?:[^()\s]+ )+[^()\s]+)\)")
_REMARKED = re.compile(r" \(([^()]+)\)|; ([^;.\n]+)")
_ASIDE = re.compile(
    r"(?:,\s+(?:and |but )?|\s(?=while|whereas))(?:while|whereas|after|before|which|who|though|although"
    r"|unlike|compared|(?:\w+ ){0,4}(?:against|ahead|followed)|because|with|as)\b((?:[^.;\n]|\.(?=\d))*)"
)
_COUNTED_ITEMS = re.compile(
    r":[ \t]*\n{1,2}([ \t]*(?:[-*•]|\d+[.)])[ \t].*(?:\n[ \t]*(?:[-*•]|\d+[.)])[ \t].*)*)"
)
_COMPARISON = re.compile(
    r"(?:,\s+(?:unlike|(?:well )?within|(?:\w+ ){0,4}(?:more|less|(?!oth|aft|ev|nev)\w+er)(?: \w+)? than)"
    r"|(?:, \d[\d.]*(?: \w+)?)?\s(?:compared (?:with|to)|against|ahead of|behind|followed by|vs\.?"
    r"|versus(?![^()\n]*\))))(?=\s)"
    r"((?:[^,.;\n]|[.,](?=\d))*)"
)


def as_facts(value: Any) -> list[Any]:
    """Return the facts of a check's value: those of a list, the things and values of pairs, or itself."""
    if is_json_object(value):
        return [item for pair in value.items() for item in pair]
    return [*cast("list[Any] | tuple[Any, ...]", value)] if isinstance(value, list | tuple) else [value]


def text_holds(check: AnswerCheck, value: Any, answer: str, context: AnswerContext) -> bool:
    """Return whether a free text says the value, and is an answer."""
    facts, answer = as_facts(value), read_tables(unwrapped(answer, check), context.said)
    if check.type != "pairs" and not _OF_OTHERS.search(context.said):
        answer = _OF_OTHERS.sub("", answer)
    asked = {_ordinal(match[1]) for match in _PLACE.finditer(context.said)}
    if asked and check.type in _SCALAR:
        answer = _OF_PLACE.sub(lambda m: m[0] if _ordinal(m[1] or m[2]) in asked else "", answer)
    if check.type == "number":
        answer = _COUNTED_ITEMS.sub(lambda m: m[0] if m[1].count("\n") + 1 != value else ".", answer)
    if check.type == "set":
        answer = _GIVEN_REASON.sub("", answer)
        answer = _CHOICE.sub(lambda m: re.sub(r"\bor\b", "and", m[0]) if "," in m[1] else m[0], answer)
    texts = [format_value(fact) for fact in facts]
    return (
        is_short(check, answer, texts, context)
        and not (check.type in _SCALAR and exchanges(value, answer, context))
        and _states(check, value, read_answer(answer, check), context)
        and not is_taken_back(check, value, read_answer(answer, check), context)
        and is_answer(check, answer, texts, context)
    )


def _ordinal(word: str) -> str:
    return _ORDINALS.get(word.lower(), word.lower())


def is_answer(check: AnswerCheck, answer: str, facts: Sequence[str], context: AnswerContext) -> bool:
    """Return whether a text that says the facts is no dump of what was seen."""
    facts = [_as_written(fact, answer) for fact in facts] if len(facts) > 1 else facts
    is_typed = check.type not in ("must_include", "regex")  # of which the whole answer has been read
    if not is_dump(answer, facts, context, is_typed=is_typed):
        return True
    if not is_typed or check.type == "number":
        return False
    # What is denied of others, or said of them, is no offer.
    parts = _SENTENCE.split(answer)
    remarks = _remarks(parts, facts, context)
    for part in parts:
        if HEDGE.search(part) or part in remarks or is_about_another(part, facts, context):
            answer = answer.replace(part, "")
    answer = _without_other_things(_without_aside(CHANGED_FROM.sub(" ", answer)), facts, context)
    if check.type == "name":  # "it has been partially picked" names no other value than PICKED_PARTIAL
        answer = blanked(canonical(answer), worded_spans(facts[0], canonical(answer)), " ")
    return not is_dump(answer, facts, context, is_typed=is_typed)


def _without_other_things(text: str, facts: Sequence[str], context: AnswerContext) -> str:
    """A text without brackets, and parts behind a semicolon, that are about another thing than the facts."""
    return _REMARKED.sub(lambda m: "" if is_about_another(m[1] or m[2], facts, context) else m[0], text)


def _remarks(parts: Sequence[str], facts: Sequence[str], context: AnswerContext) -> list[str]:
    """The sentences without any fact that are remarks, beside one with a fact that is none."""
    told = [part for part in parts if any(says(fact, part) for fact in facts)]
    if all(_is_remark(part, "", context) for part in told):
        return []
    others = (part for part in parts if part not in told and ": " not in part and not HEDGE.search(part))
    return [part for part in others if _is_remark(part, "", context)]


def _as_written(fact: str, answer: str) -> str:
    """Return a number with its thousands apart, if the answer writes it so."""
    grouped = f"{int(fact):,}" if re.fullmatch(r"-?\d{4,15}", fact) else fact
    return grouped if grouped in answer else fact


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
    sentences.append(_without_other_things(text, [*map(format_value, as_facts(value))], context))
    sentences.append(
        _COMPARISON.sub(lambda m: m[0] if HEDGE.search(m[1]) or not re.search(r"\d", m[1]) else "", text)
    )
    if is_json_object(value):  # without what is said of one of the things besides
        sentences.append(
            _BRACKETED.sub(lambda m: m[0] if CORRECTION.search(m[1]) or HEDGE.search(m[1]) else "", text)
        )
        parts = _SENTENCE.split(text)
        remarks = _remarks(parts, [*map(format_value, value.values())], context)
        told = "\n".join(part for part in parts if part not in remarks)
        sentences += [told, _THEREFORE.split(told)[0]]
        # A thing that the text names is not left unsaid: "A: 5, 7" is no "A: 5, B: 7" ahead of "B: 7, 5".
        named = [forms for forms in _forms([*value]) if any(says(form, text) for form in forms)]
        sentences = [p for p in sentences if all(any(says(form, p) for form in forms) for forms in named)]
    sentences = [part for part in sentences if part.strip()]
    in_order = [*dict.fromkeys(part for part in reversed(sentences) if part != text)][::-1]
    sentences = [*dict.fromkeys(sentences)]
    options = (True, False) if check.type == "yes_no" else check.options
    plainly = [replace(context, said="")] if check.type == "yes_no" else []
    is_plain = False
    for heard in (*plainly, context):
        told = [part for part in in_order if not _REASON.match(part)]
        parts = [(part, o) for part in told for o in options if is_given(check, [o], part, heard)]
        given: dict[bool, list[Any]] = {False: [], True: []}  # by whether it is a remark
        for part, o in parts:
            # After a plain "no" other words that hold may be of something else: "A is verified, B is not".
            is_remark = _is_remark(part, o, context) or (is_plain and o is True is not value)
            if o == value or not is_about_another(part, [str(value)], context):
                given[is_remark].append(o)
        if (given[False] or given[True] or [value])[-1] != value:
            return False  # corrected
        is_plain = bool(given[False])
    return any(
        is_given(check, [value], part, context) and not denied_after(text, text.find(part) + len(part))
        for part in (*sentences, _THEREFORE.split(text)[-1])
    )


def _forms(things: list[str]) -> list[tuple[str, str]]:
    """How each thing is called, and how next to the others."""
    return [(thing, str(short(thing, things))) for thing in things]


def _is_remark(part: str, option: Any, context: AnswerContext) -> bool:
    """Whether a sentence tells something that was shown and is not asked, in words of its own, instead of an
    answer: "the Red Room has the harmonium". What has not been shown may correct: "on second thought B"."""
    asked = stems(canonical(context.said))
    told = stems(NEGATED.sub(" ", canonical(part))) - stems(f"{' '.join(SAFE)} {format_value(option)}")
    results = (canonical(result.content.replace("_", " ")) for result in context.results)
    shown = {word for content in results for word in stems(content)}
    # Without an option a name may be another value that was shown.
    unasked = told if option != "" else stems(" ".join(_NO_NAME.findall(part))) & told
    is_shown = any(is_shown_beside(amount, [], context) for amount in amounts(canonical(part)))
    return (
        (is_shown or bool(unasked & shown - asked))
        and 2 * len(told & asked) < len(told)
        and not CORRECTION.search(part)
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
    if target is None or (target > 0 and any(amount.number == -target for amount in amounts(text))):
        return False  # the same with the other sign
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


def is_short(check: AnswerCheck, answer: str, facts: Sequence[str], context: AnswerContext) -> bool:
    """Return whether a text is not much longer than the reference, or than the facts."""
    limit = (check.model_extra or {}).get("max_words")
    if limit is None:
        reference = context.reference or " ".join(facts)
        expected = max(len(reference.split()), sum(len(fact.split()) for fact in facts))
        limit = max(SHORT_ANSWER_WORDS, WORDS_PER_REFERENCE_WORD * expected) if expected else MAX_WORDS
    return not is_longer(answer, limit, [*facts, context.reference or ""])
