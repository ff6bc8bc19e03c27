"""Answers if no tool is right: they say so, or ask for what is missing, and invent nothing.

`AnswerCheck.value` says what a right one does:

    cannot   says that it cannot be done, or which tool or access is missing
    asks     asks for what the question lacks; `about` holds words that name it
    replies  answers what needs no tool: thanks, small talk, a poem

None of them may hold a number or a name that neither the conversation, the offered tools nor a result gave, a
value of `without`, or the claim that something was done.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence, Set
from math import isclose
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import numbers_in
from mcpagent.reward.text.amounts import Amount, amounts, measure, with_first_day
from mcpagent.reward.text.canonical import MONTHS, canonical
from mcpagent.reward.text.grammar import blanked
from mcpagent.reward.text.moments import agree, moments
from mcpagent.reward.text.phrasing import (
    AnswerContext,
    has_words,
    is_longer,
    plain,
    tokens,
    without_markup,
)
from mcpagent.reward.text.vocabulary import FUNCTION_WORDS
from mcpagent.reward.text.words import WORDS, pattern

ABSTENTIONS = ("cannot", "asks", "replies")
MAX_ABSTENTION_WORDS = 120

_SENTENCE = re.compile(  # an initial ends none, nor does a colon in a question
    r"(?<=[!?;])\s+|(?<=\.)(?<!\b[A-Z]\.)\s+|(?<=:)\s+(?!(?:[^.!;\n]|(?<=\b[A-Z])\.)*\?)|\n+"
)
_CLAUSE = pattern("clause")
_CANNOT = pattern("cannot")
_NONE = pattern("none")
_DENIED = pattern("denied")
_REQUEST = pattern("request")
# A clause that speaks of the tools, of what one did to find out, or is polite tells nothing that was asked.
_HELP = pattern("help")
_HARMLESS = pattern("harmless")
_TELLING = pattern("telling")  # "the sheet says"
_DONE = pattern("done")
_TO_DO = re.compile(
    r"\b(?:(?:has|have|needs?) to|must|should|can|could|would) be \w+"
    r"|\bto (?:have|get) (?:[^\s.,;]+ ){1,8}\w+ed\b"
)
_NAME = re.compile(r"(?<![.!?:;\s])[ \t]+[\"'“‘(*•-]*([A-Z][\w.&'-]*)")  # begins no sentence
_CODE = re.compile(
    r"\b(?:[A-Z]{2,}[\w-]*|(?=\w*\d)(?=\w*[A-Za-z])\w{2,})\b|\b(?:https?://|www\.)\S+|\S+@\S+\.\w+"
)
_ACRONYM = re.compile(r"\b[A-Z]{2,5}\b")  # "no ABO group is listed": of what is said to be missing
_ENUMERATOR = re.compile(r"^\s*(?:[-*•]\s*)?[0-9]{1,2}[.)]\s", re.MULTILINE)
# Capitalised words that name nothing.
_COMMON = pattern("common")
# Where one is told to look, or asked, names are examples.
_ADVICE = pattern("advice")
# What one is asked whether it is so; not what one is asked to do.
_POLAR = re.compile(
    r"(?:^|[.,;:!?]\s)\W*(?:is|are|was|were|will|does|do|did|has|have|had)\b(?! you\b)", re.IGNORECASE
)
_NO = re.compile(r"^\W*no\b(?=\W*$|[,.;!])", re.IGNORECASE)
_BY_ME = re.compile(r"\b(?:i|we)\b")
_BECAUSE = re.compile(r"\bbecause\b")
_SEVERAL = re.compile(
    r"\W*(?:there are|(?:you|we|i) (?:have|see|found)) "
    r"(?:several|many|multiple|more than one|two|three|four|five|six|seven|eight|nine|ten|\d+)\b"
)
_FEW = 3
_LARGE = 10_000
_SMALL = 10  # "I have two tools" tells nothing


def abstention_holds(
    check: AnswerCheck,
    answer: str,
    without: Sequence[Any],
    context: AnswerContext,
    *,
    line: str | None = None,
) -> bool:
    """Return whether `answer` abstains as the check asks. `without` are its values, resolved. With an answer
    `line`, which is a part of `answer`, that line says so: "none", or what is asked for."""
    limit = (check.model_extra or {}).get("max_words", MAX_ABSTENTION_WORDS)
    if is_longer(answer, limit, ()):
        return False
    text = without_markup(answer).replace("’", "'").replace("e.g.", "such as")
    text = _without_shown_dates(text, context)
    if _POLAR.search(context.said) and check.value != "replies":
        text, line = _NO.sub("", text), None if line is None else _NO.sub("", line)  # "No" is an answer
    if line is not None and not _gives_none(line, check):
        return False
    if re.search(r"[^\W\d_]{2,}", text) is None:
        return False
    if "{" in text or any(has_words(plain(format_value(fact)), plain(text)) for fact in without):
        return False
    if _invents(text, check, context):
        return False
    said = plain(context.said)  # sentences of which may be said again
    sentences = [part for part in _SENTENCE.split(text) if tokens(part) and plain(part) not in said]
    if check.value == "replies":
        return bool(sentences) and not set(tokens(text)) <= set(tokens(context.said))
    if line is not None:
        sentences = [part for part in sentences if part.strip() != without_markup(line).strip()]
    asking = [*sentences, *([] if line is None else [line])]
    is_asked = check.value == "asks" and any(_asks(part, check.about) for part in asking)
    if any(_claims(clause, context, is_asked=is_asked) for clause in _clauses(sentences)):
        return False
    if check.value == "asks":
        return is_asked
    return line is not None or any(_refuses(part) for part in sentences)


def _sources(context: AnswerContext) -> str:
    return "\n".join([context.said, context.offered, *(result.content for result in context.results)])


def _without_shown_dates(text: str, context: AnswerContext) -> str:
    """A text without the dates that agree with one that was said or shown."""
    shown = moments(canonical(_sources(context)))
    for moment in reversed(moments(text)):
        if any(agree(moment, other) for other in shown):
            start, end = with_first_day(text, moment)
            text = text[:start] + text[end:]
    return text


def _gives_none(line: str, check: AnswerCheck) -> bool:
    """Whether an answer line says that there is no answer; one that is to ask may ask there, and a reply
    needs no such word."""
    if check.value == "replies":
        return True
    return _NONE.match(_spelt_out(line)) is not None or (check.value == "asks" and _asks(line, ()))


def _invents(text: str, check: AnswerCheck, context: AnswerContext) -> bool:
    """A number, a name or a deed that comes from nowhere."""
    sources = _sources(context)
    shown = canonical(sources)
    dates = moments(shown)  # parts of which are no numbers
    undated = blanked(shown, [(moment.start, moment.end) for moment in dates], " ")
    numbers = numbers_in(undated)  # of which the sign may be said in words: "fell by 6,600"
    given = {*numbers, *map(abs, numbers), *(moment.readings[0].year for moment in dates)}

    def is_given(amount: Amount) -> bool:
        return amount.number in given or _is_converted(amount, given)

    told = canonical(_ENUMERATOR.sub(" ", _without_advice(text)))
    if any(
        not is_given(a) and (a.number > _SMALL or a.unit or re.search(rf"\b{a.number}\b", text))
        for a in amounts(told)
    ):
        return True
    if any(a.number > _LARGE and not is_given(a) for a in amounts(canonical(text))):
        return True
    sourced, said = _words(sources), set(tokens(context.said))
    shown = {word for result in context.results for word in tokens(result.content)}
    for clause in _clauses(re.split(rf"{_SENTENCE.pattern}|, so ", text)):
        seen = said if _BY_ME.search(clause) else said | shown
        if (
            set(_DONE.findall(_TO_DO.sub(" ", clause))) - seen
            and not _refuses(clause)
            and " not " not in f" {clause} "
        ):
            return True
    text = _without_advice(text)
    names = _CODE.findall(text)
    if check.value != "replies" or _refuses(text):
        names += [name.rstrip(".'-&") for name in _NAME.findall(text)]
    names = [name.removesuffix("'s") for name in names]
    parts = re.split(rf"{_SENTENCE.pattern}|{_CLAUSE.pattern}|, ", text)
    refused = {word for part in parts if part and _refuses(part) for word in _ACRONYM.findall(part)}
    names = [name for name in names if not _COMMON.fullmatch(name.casefold()) and name not in refused]
    return any(not {_singular(word) for word in tokens(name)} <= sourced for name in names)


def _is_converted(amount: Amount, given: Set[float]) -> bool:
    """Whether an amount with a unit is a given number in another unit of its kind: 38 cm of 0.38."""
    factor = None if amount.unit is None else measure(amount.unit)
    return factor is not None and any(
        isclose(amount.number * factor[1] ** sign, number) for number in given for sign in (1, -1)
    )


def _words(text: str) -> set[str]:
    """Return the words of what was shown, with every name of a month that is named or dated there."""
    shown = {_singular(word) for word in tokens(text)}
    dated = {moment.readings[0].month for moment in moments(canonical(text)) if "month" in moment.said}
    months = (names for number, names in enumerate(MONTHS, 1) if number in dated or shown & {*names})
    return shown.union(*months)


def _without_advice(text: str) -> str:
    return " ".join(part for part in _SENTENCE.split(text) if not _ADVICE.search(part.rstrip().casefold()))


def _singular(word: str) -> str:
    return word[:-1] if word.endswith("s") and (len(word) > 3 or word[-2:-1].isdigit()) else word


def _refuses(sentence: str) -> bool:
    """Whether a sentence says no; "because it is not there" gives a reason, if it does not speak of tools."""
    told = _DENIED.split(_spelt_out(sentence))[0]
    claim, *reasons = _BECAUSE.split(told, maxsplit=1)
    is_of_tools = _HARMLESS.search(claim) or any(
        _HELP.search(p) or _BY_ME.search(p) for p in (claim, *reasons)
    )
    if tokens(claim) and reasons and not is_of_tools:
        told = claim
    return _CANNOT.search(told) is not None


def _asks(sentence: str, about: Sequence[str]) -> bool:
    """A question, or a request, that names what is missing."""
    lowered = _spelt_out(sentence)
    asked = {_singular(word) for word in tokens(lowered)}
    names = not about or any({_singular(word) for word in tokens(name)} <= asked for name in about)
    return names and (sentence.rstrip().endswith("?") or _REQUEST.search(lowered) is not None)


def _clauses(sentences: Sequence[str]) -> Iterator[str]:
    for sentence in sentences:
        if not sentence.rstrip().endswith("?"):
            yield from (_spelt_out(clause) for clause in _CLAUSE.split(sentence) if tokens(clause))


def _claims(clause: str, context: AnswerContext, *, is_asked: bool) -> bool:
    """Whether a clause tells something that nothing has shown: it neither refuses nor asks, nor speaks of the
    tools or oneself. A few words of it may be its own."""
    harmless = (_REQUEST, _HELP, _HARMLESS, _ADVICE)
    if _refuses(clause) or any(pattern.search(clause) for pattern in harmless):
        return False
    claim, *reasons = _BECAUSE.split(clause, maxsplit=1)
    clause = claim if any(map(_refuses, reasons)) else clause
    said = {_singular(word) for word in tokens(context.said)}
    filler = {_singular(word) for word in WORDS["filler"].split()}
    if is_asked and (several := _SEVERAL.match(clause)):  # "there are three warehouses"
        clause, filler = clause[several.end() :], filler | said
    seen = " ".join(f"{result.content} {result.tool.replace('_', ' ')}" for result in context.results)
    shown = _words(seen)
    unseen = (
        {_singular(word) for word in tokens(_TELLING.sub("", clause))} - filler - shown - {*FUNCTION_WORDS}
    )
    if shown and not unseen & said:
        return len(unseen) > _FEW
    return not shown or bool(unseen)


def _spelt_out(text: str) -> str:
    text = re.sub(r"\b(?:ca|sha)n't\b", "can not", text.casefold()).replace("won't", "will not")
    for short, whole in (("'d", " would"), ("'m", " am"), ("'ll", " will")):
        text = re.sub(rf"{short}\b", whole, text)
    return re.sub(r"n't\b", " not", re.sub(r"\bcannot\b", "can not", text))
