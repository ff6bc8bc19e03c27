"""Numbers of a period or of a thing: "5 a day", "per guest"."""

from __future__ import annotations

import re
from functools import lru_cache

from mcpagent.reward.text.amounts import amounts, is_same_unit, units_of
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.fields import fields_of_others
from mcpagent.reward.text.moments import Span
from mcpagent.reward.text.names import words
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.vocabulary import stem
from mcpagent.reward.text.words import WORDS

PERIODS = {name: period for period, names in WORDS["periods"].items() for name in (period, *names.split())}
_RATES = "|".join(sorted(PERIODS, key=len, reverse=True))
_PER = re.compile(
    rf"\s*(?:[a-z]+ )?(?:(?:per|an?|each|every|pro|par|je)\s+|/\s?)(\d+ )?({_RATES})\b|\s*()(\w+ly)\b",
    re.IGNORECASE,
)
_PER_OTHER = re.compile(r"\s*per ([a-z]+\d?)", re.IGNORECASE)
_CLAUSE_MARK = re.compile(r"[.;,\n]")
_COUNTED_TIME = re.compile(r"\d+[ _-]?[^\W\d_]+")  # "the last 30 days" is no rate
_PERIODIC = re.compile(r"\b(?:\w+ly|annual)\b", re.IGNORECASE)
EVERY = re.compile(r"(?:\b(?:once )?(?:every|each|per|an?|pro|par|je)\s+|/\s?)(\w+)", re.IGNORECASE)


def with_rate(text: str, span: Span) -> Span:
    """Return a span with the period that follows it: "5 a day"."""
    rate = _PER.match(text, span[1])
    return (span[0], rate.end()) if rate and (rate[2] or rate[4]).casefold() in PERIODS else span


def is_other_rate(text: str, span: Span, value: float, said: str, context: AnswerContext) -> bool:
    """Return whether a number is said of a period that neither the question (`said`) nor, if it names none,
    a result has. Interest is by the year."""
    shown = _periods("\n".join(result.content for result in context.results)) - fields_of_others(
        value, context
    )
    asked = {PERIODS.get(m[1].casefold()) for m in EVERY.finditer(said)}
    asked |= _periods(" ".join(_PERIODIC.findall(said)))
    shown |= {"year"} if "%" in units_of(text) else frozenset()
    results = " ".join(canonical(result.content.replace("_", " ")) for result in context.results)
    if (of := _PER_OTHER.match(text, span[1])) and of[1].casefold() not in PERIODS:
        has_basis = bool(shown or asked) or re.search(r"\bper\b", results) is not None
        lines = [line for result in context.results for line in canonical(result.content).splitlines()]
        of_others = [line for line in lines if of[0].strip() in line]
        if any(amount.number == value for line in of_others for amount in amounts(line)):
            of_others = []
        told = words(f"{said} {results}")
        is_told = not of_others and any(
            stem(word) == stem(of[1].casefold()) or is_same_unit(word, of[1]) for word in told
        )
        return has_basis and not is_told
    if rate := _PER.match(text, span[1]):
        period = PERIODS.get((rate[2] or rate[4]).casefold())
        is_asked = period in (asked or shown) or (period == "second" and not asked)
        return period is not None and (not is_asked or bool(rate[1] and rate[1] not in said))
    before, after = _CLAUSE_MARK.split(text[: span[0]])[-1], _CLAUSE_MARK.split(text[span[1] :])[0]
    told = _periods(" ".join(match[1] for match in EVERY.finditer(after)))
    return bool(told - (asked or shown) or _periods(" ".join(_PERIODIC.findall(before))) - asked - shown)


@lru_cache(maxsize=512)
def _periods(text: str) -> frozenset[str]:
    text = _COUNTED_TIME.sub(" ", canonical(text))
    return frozenset(PERIODS[word] for word in words(text) if len(word) > 1 and word in PERIODS)
