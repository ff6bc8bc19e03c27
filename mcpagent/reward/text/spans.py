"""Where a text says the value of a number, a date or a name, and counts it in what was asked for."""

from __future__ import annotations

import re
from collections.abc import Set
from datetime import UTC, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number, is_json_object
from mcpagent.reward.text.amounts import Units, amounts, is_money, measure, unit_named, units_of
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.fields import fields_of_others, units_of_field
from mcpagent.reward.text.moments import Moment, Span, agree, moment_spans, moments, whole_moment
from mcpagent.reward.text.naming import named_spans
from mcpagent.reward.text.phrasing import AnswerContext, tokens
from mcpagent.reward.text.rates import is_other_rate, with_rate
from mcpagent.reward.text.reading import spans_of
from mcpagent.reward.text.vocabulary import FUNCTION_WORDS, stem, stems
from mcpagent.reward.text.words import WORDS, pattern

_DAY_FIELDS = frozenset(("year", "month", "day"))
_TIME_OF_DAY = re.compile(r"\b(?:what|which) (?:time|hour)\b", re.IGNORECASE)
_SCALED_UNIT = re.compile(rf"({'|'.join(WORDS['scales'])})s? ?(.*)")
_FALLING = pattern("falling")
_CHANGE = re.compile(r"\bchanged?\b", re.IGNORECASE)
_RATE = pattern("rate")
_OTHER_MONEY = re.compile(r"(?<=\d)\s?([A-Z]{3})\b")
_SYMBOL = re.compile(r" ?([b-df-hj-np-tv-xz]{2,3}|[a-z]?[A-Z]{1,2}[a-z]?)\b")  # of another unit: hp, dB
_COUNTED = re.compile(r" (?:([a-z]+) )?([a-z]{2,}[^\Ws]s)\b")
_FIRST, _LAST = 10**9, 4 * 10**9  # seconds since 1970 that are a time between 2001 and 2096
_ASKS_MORE = re.compile(r"\b(?:what|which|how (?!many))\b", re.IGNORECASE)  # than how many


def value_spans(
    check: AnswerCheck, value: Any, text: str, context: AnswerContext, *, is_strict: bool = True
) -> list[Span]:
    """Return where canonical `text` says the value of a number, a date or a name. `is_strict`: what has
    decimals is no per cent, unless the question or a result counts in it; what has none never is."""
    if check.type == "date" and (moment := whole_moment(format_value(value))) is not None:
        spans = moment_spans(
            text, moment, precision=check.precision, unasked=_unasked_of(moment, context.said)
        )
        if spans or check.precision != "year":
            return spans
        return [m.span() for m in re.finditer(rf"\b{moment.readings[0].year}\b", text)]
    if check.type in ("name", "string"):
        return named_spans(format_value(value), text, context)
    if scaled := _SCALED_UNIT.fullmatch(check.unit or ""):  # 3.2 of "million NOK"
        whole = check.model_copy(update={"unit": scaled[2] or None})
        number = float(Decimal(str(value)).scaleb(WORDS["scales"][scaled[1]]))
        bare = [a.span for a in amounts(text) if a.unit is None and a.number == value]
        return value_spans(whole, number, text, context, is_strict=is_strict) or bare
    is_whole = (as_number(value) or 0.0).is_integer()
    units = units_for(check, context, may_be_percent=not (is_strict or is_whole))
    spans = spans_of(value, text, tolerance=check.tolerance, units=units)
    target = as_number(value)
    if not spans and target is not None and _FIRST <= target < _LAST:
        time = whole_moment(datetime.fromtimestamp(target, UTC).isoformat())
        spans = [] if time is None else moment_spans(text, time, precision=None)
    if not spans and target is not None and target < 0 and (falling := _FALLING.search(text)):
        spans = spans_of(-target, text, tolerance=check.tolerance, units=units)
        told = falling.span()  # "down 4", "4 below zero"
        spans = [(told[0] if told[1] + 1 == a else a, told[1] if b + 1 == told[0] else b) for a, b in spans]
    if target and target > 0 and _CHANGE.search(context.said) and _FALLING.search(text):
        return []
    others = fields_of_others(target, context) | _counted_otherwise(target, context)
    is_measured = measure(canonical(check.unit or "")) is not None
    # An abbreviation of a unit may be said as what it means.
    is_named = len(check.unit or "") > 3 and not units_of(canonical(str(check.unit)))
    return [
        with_rate(text, span)
        for span in spans
        if not (target and is_other_rate(text, span, target, f"{context.said} {check.unit or ''}", context))
        and not (
            any(map(is_money, units.names))
            and (money := _OTHER_MONEY.match(text, span[1]))
            and unit_named(money[1]) is None
        )
        and not (is_measured and _has_other_symbol(text, span, context))
        and not (
            (thing := _COUNTED.match(text, span[1]))
            and thing[1] not in FUNCTION_WORDS
            and (stem(thing[2]) in others or (is_named and _is_unheard(thing, check, context)))
        )
    ]


def _counted_otherwise(number: float | None, context: AnswerContext) -> set[str]:
    """The things that results count, if they count another one with the number: the deletions of "231
    insertions(+), 47 deletions(-)"."""
    told = [pair for result in context.results for pair in _counts(result.content)]
    of_number = {thing for of, thing in told if of == number}
    is_count = of_number and number is not None and number.is_integer()
    return {thing for _, thing in told} - of_number - stems(context.said) if is_count else set()


@lru_cache(maxsize=512)
def _counts(content: str) -> tuple[tuple[float, str], ...]:
    text = canonical(content)
    things = [(amount.number, _COUNTED.match(text, amount.end)) for amount in amounts(text)]
    return tuple((number, stem(thing[2])) for number, thing in things if thing)


def _unasked_of(moment: Moment, said: str) -> Set[str]:
    """The fields of a time that a question has, or does not ask for: its day, if it asks at what time."""
    is_of_day = _TIME_OF_DAY.search(said) or any(
        "day" in asked.said and "hour" not in asked.said and agree(asked, moment)
        for asked in moments(canonical(said))
    )
    return _DAY_FIELDS if "hour" in moment.said and is_of_day else frozenset()


def _is_unheard(thing: re.Match[str], check: AnswerCheck, context: AnswerContext) -> bool:
    """Whether what is counted has no word of the unit, the question or a result."""
    told = " ".join(result.content for result in context.results).replace("_", " ")
    if re.match(".*".join(thing[0].split()[0]), str(check.unit)):
        return False  # "btls" of bottles
    head = str(check.unit).partition("/")[0]
    if head.isalpha() and re.match(".*".join(head), thing[0].strip()):
        return False  # messages of msg/s
    return stems(thing[0]).isdisjoint(stems(f"{check.unit} {context.said} {told}"))


def _has_other_symbol(text: str, span: Span, context: AnswerContext) -> bool:
    """Whether a mark of a unit that nothing has shown stands behind a bare number: hp, but not the dwt of a
    deadweight."""
    symbol = _SYMBOL.match(text, span[1]) if text[span[1] - 1].isdigit() else None
    if symbol is None:
        return False
    shown = (context.said, *(result.content for result in context.results))
    return not any(re.match(".*".join(symbol[1].casefold()), word) for said in shown for word in tokens(said))


def units_for(check: AnswerCheck, context: AnswerContext, *, may_be_percent: bool) -> Units:
    """Return what a number may be counted in: the unit of the check, else those that the question names."""
    if check.unit:
        names = units_of(canonical(check.unit))
        if not names and len(check.unit) == 1:  # C, F
            names = units_of(canonical(f"degrees {check.unit}"))
        names = names or units_of(canonical(check.unit.partition("/")[0]))  # EUR/person/night
        return Units(frozenset(names or {check.unit}), is_exact=True)
    names = units_of(canonical(context.said))
    values = [*check.value.values()] if is_json_object(check.value) else [check.value]
    of_fields = [units_of_field(as_number(value), context) for value in values]
    if not names and re.search(r"(?i)\b(?:how many|number of)\b", context.said):
        others = set[str]().union(*of_fields) if len(values) > 1 else set[str]()
        is_exact = len(values) == 1 or not _ASKS_MORE.search(context.said)
        return Units(frozenset(("pieces", *others)), is_exact=is_exact)
    names = names or (of_fields[0] if all(units == of_fields[0] for units in of_fields) else names)
    if any("%" in result.content for result in context.results):
        names = names | {"%"}
    shown = units_of(canonical(" ".join(result.content for result in context.results)))
    return Units(
        frozenset(names),
        may_be_percent=may_be_percent or bool(_RATE.search(context.said)),
        currencies=frozenset(filter(is_money, shown)),
    )
