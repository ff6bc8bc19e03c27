"""Where a text says a value, read as what it is: a number (`amounts`), a date or a time (`moments`), a name
(`names`).

Everything works on `canonical` text. Both an answer and the value that it is held against are read by the
same functions.
"""

from __future__ import annotations

import re
from typing import Any

from mcpagent.core.placeholders import format_value
from mcpagent.core.values import as_number
from mcpagent.reward.text.amounts import ANY_UNITS, Amount, Units, amount_is, amounts, is_money
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.moments import Span, moment_spans, range_spans, whole_moment
from mcpagent.reward.text.names import name_spans

_ACCOUNT = re.compile(r"[A-Z]{2}\d\d(?:\s?[\dA-Z]{2,4}){3,}")  # an IBAN, in groups or not
_KEY = re.compile(r"(?=.*\d)(?=.*[a-z])(?=.*[A-Z])\S{4,}")
_SIGNED = re.compile(r"[+-]\d\d?:\d\d")
_SIZE = re.compile(r"(?<=\d)([KMGT])$")  # 378G, as df and kubectl say


def spans_of(value: Any, text: str, *, tolerance: float = 0.0, units: Units = ANY_UNITS) -> list[Span]:
    """Return where canonical `text` says `value`: a number, a date or a name, as what it is."""
    target = as_number(value)
    if target is not None and (not isinstance(value, str) or not re.match(r"\s*(?:0\d|\+\d{6})", value)):
        exact = (
            int(target) if isinstance(value, str) and value.strip().isdigit() and len(value) < 16 else value
        )
        exact = target if isinstance(exact, str) else exact
        places = [a.span for a in amounts(text) if amount_is(a, exact, tolerance=tolerance, units=units)]
        if places or (isinstance(value, str) and value.strip()[:1] in "+-"):  # as a name -9 is 9
            return places
        return name_spans(value, text) if isinstance(value, str) else _small_numbers(target, text)
    written = format_value(value)
    if (times := range_spans(written, text)) is not None:
        return times
    if (moment := whole_moment(written)) is not None:
        spans = moment_spans(text, moment, precision=None)
    else:
        spans = [span for span in name_spans(written, text) if not _is_other_key(text[slice(*span)], written)]
    if _SIGNED.match(written):  # an offset of a time zone
        return [(a, b) for a, b in spans if ("-" in text[max(a - 1, 0) : a + 1]) is (written[0] == "-")]
    if not spans and (short := re.fullmatch(r"0?0:(\d\d:\d\d)", written)):
        spans = [m.span() for m in re.finditer(rf"(?<![\d:])0?{short[1].lstrip('0')}(?![\d:])", text)]
    if spans and _SIZE.search(written):
        return spans
    if (not spans or moment is None) and (quantity := _quantity(written)):
        units = Units(frozenset((quantity.unit or "",)), is_exact=True)
        same = [a for a in amounts(text) if amount_is(a, quantity.number, tolerance=0.0, units=units)]
        with_unit = [a.span for a in same if a.unit]  # "line 6 every 15 min, line 4 every 6 min"
        return with_unit or [a.span for a in same if moment is None] or (spans if ":" in written else [])
    if moment is not None:
        return spans
    if not spans and _ACCOUNT.fullmatch(written):
        spans = [m.span() for m in re.finditer(r"\s?".join(re.sub(r"\s", "", written)), text)]
    if not spans and len(digits := _digits_of(written)) > 6 and re.fullmatch(r"[\d\s()+./-]+", written):
        spans = [m.span() for m in re.finditer(r"\(?\+?\d[\d\s()./-]*\d", text) if _digits_of(m[0]) == digits]
    return spans


def _is_other_key(said: str, written: str) -> bool:
    """Whether a key differs by the case of its letters, where both cases stand with digits: aB3x, aB3X."""
    if said.casefold() != written.casefold():
        return False
    pairs = zip(said.split(), written.split(), strict=True)
    return any(a != b and all(map(_KEY.fullmatch, (a, b))) for a, b in pairs)


def _quantity(written: str) -> Amount | None:
    """The amount that a text is as a whole, with its unit; 3:07 and 0:03:07 are 187 seconds."""
    if clock := re.fullmatch(r"(?:(\d+):)?(\d+):(\d\d(?:\.\d+)?)", written):
        return Amount(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3]), 0, 0, unit="s")
    value = _SIZE.sub(r"\1B", canonical(written).strip())
    told = amounts(value)
    is_whole = (
        len(told) == 1 and re.fullmatch("(?: [a-z]{1,5})?", value[told[0].end :]) is not None
    )  # "% vol"
    if not is_whole or told[0].unit is None:
        return None
    before = value[: told[0].start].strip()  # "CHF 20", but not "HR 20 B"
    return told[0] if not before or is_money(before.lower()) else None


def _digits_of(number: str) -> str:
    return re.sub(r"\D", "", number).lstrip("0")


def _small_numbers(target: float, text: str) -> list[Span]:
    """Where 1 and 0 are said in words: "one comment", "no comments", "none"."""
    said = {
        2: r"\btwice\b",
        1: r"\b(?:one|once|a single)\b",
        0: r"\b(?:none|zero|no|nobody|nothing|never)\b",
    }.get(int(target))
    if said is None or target not in (0, 1, 2):
        return []
    return [match.span() for match in re.finditer(said, text, re.IGNORECASE)]


def says(fact: Any, text: str) -> bool:
    """Whether a fact stands in a text, however it is written."""
    return bool(spans_of(fact, canonical(text)))
