"""Reading what people write as what it is: numbers, amounts with a unit, dates and times, names.

Everything here works on `canonical` text, in which numbers are in digits and marks that say nothing are gone.
Both an answer and the value that it is held against are read by the same functions.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterable, Iterator, Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from decimal import Decimal
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, cast

import yaml
from dateutil import parser as date_parser
from text_to_num import alpha2digit as _alpha2digit  # pyright: ignore

from mcpagent.core.placeholders import format_value
from mcpagent.core.values import as_number, located_numbers, numbers_equal

WORDS: dict[str, Any] = yaml.safe_load(Path(__file__).with_name("words.yaml").read_text("utf-8"))


def pattern(name: str) -> re.Pattern[str]:
    """Return a pattern of `words.yaml`."""
    return re.compile(WORDS["patterns"][name].replace("\n", ""), re.IGNORECASE)


_digits = cast("Callable[..., str]", _alpha2digit)  # it has no types
Span = tuple[int, int]

_LONG_SPACE = re.compile(r"(\s\s)\s+")  # patterns with spaces take time by the square of it, or more
_STRUCK = re.compile(r"~~.*?~~|<(del|s|strike)>.*?</\1>|(?:.\u0336)+", re.DOTALL | re.IGNORECASE)
_MARKS = re.compile(
    r"[*`]+|(?<!\w)_+|_+(?!\w)|^\s*>\s+|\bi\.e\.,?|</?(?:[biup]|em|strong|code|br|span|div|li|[uo]l)\s*/?>",
    re.MULTILINE | re.IGNORECASE,
)
_TEX = re.compile(r"\\(?:left|right|quad)\b|\\[,;:! ()\[\]]|\$+(?=[^$\n]+\$(?!\d))|(?<=[\w})])\$+(?!\d)")
_TEX_BOX = re.compile(r"\\(?:boxed|text\w*|math\w+)\s*\{([^{}]*)\}")
_TEX_MARKS = (("\\times", "×"), ("\\cdot", "×"), ("\\%", "%"), ("\\$", "$"), ("{,}", ","), ("\\_", "_"))
_LINK = re.compile(r"\[([^\]\n]+)\]\((?:mailto:)?([^()\s]+)\)|<((?:https?:|mailto:)?[^<>\s]*[@/][^<>\s]*)>")
_POWER = re.compile(r"(\d(?:\.\d+)?)\s?[×x*·]\s?10\s?(?:\^\s?\{?\s?([-+−]?\d+)\}?|([⁻⁺]?[⁰¹²³⁴-⁹]+))")
_RAISED = str.maketrans("⁰¹²³⁴⁵⁶⁷⁸⁹⁻⁺", "0123456789-+")
_VULGAR = re.compile(r"(\d*)\s?([¼½¾⅓⅔⅛])")
_QUOTES = str.maketrans(
    {
        "’": "'",
        "‘": "'",
        "“": '"',
        "”": '"',
        "♭": "-flat",
        "♯": "-sharp",
        "−": "-",
        "–": "-",
        "—": "-",
        "‑": "-",
    }
)
_SPELT = pattern("spelt")
_MORE_SPELT = [(re.compile(said, re.IGNORECASE), instead) for said, instead in WORDS["more_spelt"].items()]
_SCALED = re.compile(rf"(?<![\w.])(\d[\d,]*(?:\.\d+)?)[ -]({'|'.join(WORDS['scales'])})s?\b", re.IGNORECASE)
_DECIMAL_SCALED = re.compile(r"\b(\d+\.\d+) (1000(?:000)*)\b")  # four point five million
_FIRST_ONE = re.compile(
    r"(?<=\d(?:st|nd|rd|th) )1\b|(?<=\b(?:last|next|only|same) )1(?=\W*$| (?:on|in|at|is|was|of)\b|[,;])"
)
_LONG_UNIT = re.compile("|".join(f"({pattern})" for pattern in WORDS["long_units"].values()), re.IGNORECASE)
_LONG_UNIT_STARTS = tuple(WORDS["long_unit_starts"])  # one of them is in what has a long unit: quick to see
_HALVES = {"half": 0.5, "quarter": 0.25, "three quarter": 0.75, "3 quarter": 0.75}
_AND_A_HALF = re.compile(
    r"\b(an?|one|\d+)((?: [a-z]+)?) and (?:an? )?(half|(?:(?:three|3) )?quarter)s?\b", re.IGNORECASE
)
_COINS = re.compile(r"\b(\d+) (euros?|dollars?|pounds?|francs?) (\d\d)\b(?! ?[c¢p%])", re.IGNORECASE)
_CLOCK, _PART_OF_DAY = pattern("clock"), pattern("part_of_day")
_DOTTED = re.compile(r"\b[A-Za-z]\.(?: ?[A-Za-z]\.){1,2}")
UNSAID, LEGAL = frozenset(WORDS["titles"].split()), frozenset(WORDS["legal_forms"].split())
_AND = re.compile(r"\b(?:as well as|along with|together with|in addition to)\b", re.IGNORECASE)
_COORDINATE = re.compile(r"(\d+(?:\.\d+)?)\s?(?:°|degrees?)\s?([NSEW]|north|south|east|west)\b")
_NUMERO = re.compile(
    r"\bno\.? ?(?=#?\d)|\bno\. ?(?=[A-Z]+-\d)|(?<=[a-z] )no(?: is|:) (?=[A-Z]*[-/ ]?\d)|(?<!\w)#(?=\d)",
    re.IGNORECASE,
)
_MINUS = re.compile(r"\b(?:minus|negative)\s+(?=[$€£]?\d)|-(?=(?:[A-Z]{3}|[₹¥]) ?\d)", re.IGNORECASE)
_MINUS_OUTSIDE = re.compile(r"(?<![\w-])-([A-Z]{3} ?|[₹¥] ?)(?=\d)")
_GROUPS = re.compile(r"(?<![\w.,])\d{1,3}(?:[ ']\d{3})+(?!\d)")
_COMMA_DECIMALS = re.compile(r"(?<![\d.,])(\d{1,3}(?:\.\d{3})+|\d+),(\d{1,2}|\d{4,})(?!\d|,\d)")
_COMMA_GROUPS = re.compile(r"(?<![\w.,])\d{1,3}(?:,\d{2,3})*,\d{3}(?!\d|,\d)")
_POINT_GROUPS = re.compile(r"(?<![\w.,])\d{1,3}(?:\.\d{3}){2,}(?![\d.,])")


@lru_cache(maxsize=4096)
def canonical(text: str) -> str:
    """Return `text` without struck-out words, marks of Markdown and LaTeX and invisible characters, with
    straight quotes, the digits 0 to 9 and numbers in digits."""
    text = _STRUCK.sub(" ", _LONG_SPACE.sub(r"\1", text))
    if "\\" in text or "$" in text:
        for mark, instead in _TEX_MARKS:
            text = text.replace(mark, instead)
        text = _TEX.sub(" ", _TEX_BOX.sub(r"\1", _TEX_BOX.sub(r"\1", text)))
    if "10" in text:
        text = _POWER.sub(lambda m: f"{m[1]}e{(m[2] or m[3]).translate(_RAISED).replace('−', '-')}", text)
    if not text.isascii():
        text = _VULGAR.sub(lambda m: f"{float(m[1] or 0) + unicodedata.numeric(m[2]):.4g}", text)
        text = unicodedata.normalize("NFKC", text.translate(_QUOTES))
        text = "".join(map(_plain_character, text))
    text = _AND.sub("and", _LINK.sub(_link, _MARKS.sub("", text)))
    text = _DOTTED.sub(
        lambda m: w if (w := m[0].replace(".", "").replace(" ", "")).lower() in LEGAL else m[0], text
    )
    text = _COORDINATE.sub(lambda m: ("-" if m[2][0] in "SWsw" else "") + m[1], text)
    if any(map(text.lower().__contains__, _LONG_UNIT_STARTS)):
        text = _LONG_UNIT.sub(_long_unit, text)
    if _SPELT.search(text):
        text = _SCALED.sub(_scaled, text)
        for pattern, instead in _MORE_SPELT:
            text = pattern.sub(instead, text)
        # "one" stays a word: it is mostly a pronoun.
        text = "\n".join(_digits(line, "en", threshold=1) for line in text.split("\n"))
        text = _DECIMAL_SCALED.sub(lambda m: f"{Decimal(m[1]) * int(m[2]):f}", _FIRST_ONE.sub("one", text))
    if "pound" in text.lower():  # "nine pounds and eighty pence"
        text = _LONG_UNIT.sub(_long_unit, text)
    text = _SCALED.sub(_scaled, _AND_A_HALF.sub(_with_half, text))
    text = _COINS.sub(r"\1.\3 \2", text)
    text = _PART_OF_DAY.sub(_on_the_clock, _CLOCK.sub(_clock, text))
    if _DAYS_OF_MONTH.search(text):  # 24 and 25 April
        text = _DAYS_OF_MONTH.sub(
            lambda m: re.sub(r"(?<=\w)(?=,| and\b| or\b| &)", f" {m[2]}", m[1]) + m[2], text
        )
    text = _NUMERO.sub("number ", text)
    text = _MINUS_OUTSIDE.sub(r"\1-", text)
    text = _MINUS.sub("-", text)
    text = _GROUPS.sub(lambda m: re.sub(r"\D", "", m[0]), text)
    text = _COMMA_GROUPS.sub(lambda m: m[0].replace(",", ""), text)
    text = _POINT_GROUPS.sub(lambda m: m[0].replace(".", ""), text)
    return _COMMA_DECIMALS.sub(lambda m: f"{m[1].replace('.', '')}.{m[2]}", text)


@lru_cache(maxsize=4096)
def is_number_word(word: str) -> bool:
    """Return whether a word is a number in one of the languages that are known."""
    return any(
        _digits(word, language, threshold=0) != word for language in ("de", "fr", "es", "it", "pt", "nl")
    )


def _link(match: re.Match[str]) -> str:
    shown, target = match[1], match[2]
    if match[3]:
        return match[3]
    return shown if target.casefold() in shown.casefold() or "@" in target else f"{shown} ({target})"


def _scaled(match: re.Match[str]) -> str:
    number = Decimal(match[1].replace(",", "")).scaleb(WORDS["scales"][match[2].lower()])
    return f"{number:f}"


def _long_unit(match: re.Match[str]) -> str:
    is_before = match.string[match.end() : match.end() + 1].isdigit()
    return [*WORDS["long_units"]][(match.lastindex or 1) - 1] + " " * is_before


def _with_half(match: re.Match[str]) -> str:
    whole = int(match[1]) if match[1].isdigit() else 1
    return f"{whole + _HALVES[match[3].lower()]:g}{match[2]}"


def _clock(match: re.Match[str]) -> str:
    minutes = {"half": 30, "quarter": 15}.get(match[1].lower()) or int(match[1])
    hour = int(match[3])
    return f"{hour}:{minutes:02}" if match[2].lower() == "past" else f"{(hour - 1) or 12}:{60 - minutes:02}"


def _on_the_clock(match: re.Match[str]) -> str:
    half = "am" if (match[3] or "").lower() == "morning" or (match[4] and match[1] == "12") else "pm"
    return f"{match[1]}{match[2]} {half}"


def _plain_character(character: str) -> str:
    kind = unicodedata.category(character)
    if kind == "Cf":
        return ""
    return str(unicodedata.digit(character)) if kind == "Nd" else character


# Amounts ---------------------------------------------------------------------------------------------------

_SCALES = {"k": 1e3, "m": 1e6, "mn": 1e6, "mio": 1e6, "b": 1e9, "bn": 1e9, "t": 1e12, "tn": 1e12}
_SCALE = re.compile(r"\s?(k|mn|mio|m|bn|b|tn|t)\b(?![/²³23])", re.IGNORECASE)
_MONEY = frozenset(WORDS["money"])
_UNITS: dict[str, tuple[str, float]] = {  # name -> what it measures, and how many of the first one it is
    name: (kind, float(factor))
    for kind, names_by_factor in (WORDS["units"] | WORDS["money"]).items()
    for factor, names in names_by_factor.items()
    for name in names.split()
}
for _kind, _names in WORDS["prefixed"].items():
    for _prefix, _factor in WORDS["prefixes"].items():
        _short, _, _long = _prefix.partition(" ")
        for _name in _names.split():
            written = (_short + _name,) if len(_name) <= 2 else (_long + _name, f"{_long}{_name}s")
            if _kind != "data" or float(_factor) >= 1:
                _UNITS.update({name: (_kind, float(_factor)) for name in written if name not in _UNITS})
_UNITS.update(
    {name.lower(): u for name, u in reversed(_UNITS.items()) if len(name) > 1 and name.lower() not in _UNITS}
)
_CELSIUS = {"kelvin": (1.0, -273.15), "K": (1.0, -273.15), "fahrenheit": (5 / 9, -160 / 9)}
_PERCENT = re.compile(r"percent\b|pct\b|prozent\b")
_UNIT_BEFORE = re.compile(r"(?:([$€£¥₹])|\b([A-Z]{3}))\s?-?$|\b(inr|usd|chf|gbp|cad|aud) -?$")
_UNIT_AFTER = re.compile(r"[ -]?([A-Za-z]+/[a-z]+|[A-Za-złμ]+[23]?(?![^\W\d])|[€£$¥₹¢%])")
_POINT_GROUP = re.compile(r"-?[1-9]\d{0,2}\.\d{3}")
_DAY_RANGE = re.compile(r"\b\d{1,2}(?:st|nd|rd|th)?\s?(?:-|to|until|bis)\s?$")  # 21 to 25 August
_MORE_OF_IT = re.compile(r"(?:,| and|, and)?\s?")


@dataclass(frozen=True)
class Amount:
    """A number of a text with what follows from how it is written: `decimals` shown, `unit` named. "7 m" may
    also be seven million, and "12.450 euros" 12450: `also` has such numbers with their units."""

    number: float
    start: int
    end: int
    decimals: int = 0
    unit: str | None = None
    also: tuple[tuple[float, str | None], ...] = ()

    @property
    def span(self) -> Span:
        """Where it stands, with its unit."""
        return self.start, self.end


@lru_cache(maxsize=2048)
def amounts(text: str) -> tuple[Amount, ...]:
    """Return the numbers of canonical `text` outside of dates and times; those of dates if there is nothing
    else. "2.9 million" is one number, and so is "2 h 5 min"."""
    amounts_read: list[Amount] = []
    told = list(text)
    for moment in moments(text):
        start = match.start() if (match := _DAY_RANGE.search(text[: moment.start])) else moment.start
        told[start : moment.end] = " " * (moment.end - start)
    for number, start, end in [*located_numbers("".join(told))] or located_numbers(text):
        last = amounts_read[-1] if amounts_read else None
        amount = _amount(text, number, start, end, last.end if last else 0)
        if last is not None and _MORE_OF_IT.fullmatch(text[last.end : start]) and _is_part(amount, last):
            more = _base(amount.number, amount.unit) * (-1 if last.number < 0 else 1)
            together = (_base(last.number, last.unit) + more) / _UNITS[amount.unit or ""][1]
            in_first = round(_in_unit(together, amount.unit or "", last.unit or ""), 9), last.unit
            amount = Amount(
                round(together, 9), last.start, amount.end, amount.decimals, amount.unit, (in_first,)
            )
            amounts_read.pop()
        amounts_read.append(amount)
    return tuple(amounts_read)


def _amount(text: str, number: float, start: int, end: int, begin: int) -> Amount:
    written = text[start:end]
    decimals = len(written.partition(".")[2]) if "e" not in written.lower() else 9
    before = _UNIT_BEFORE.search(text[max(begin, start - 5) : start])
    unit = (before[1] or before[3] or before[2].lower()) if before else None
    unit = unit if unit in _UNITS else None
    unit = next((mark for mark in written[:2] if mark in "$€£"), unit)
    also: list[tuple[float, str | None]] = []
    if scale := _SCALE.match(text, end):
        scaled = number * _SCALES[scale[1].lower()]
        if scale[1] in _UNITS and unit is None:
            also.append((scaled, unit))
        else:
            number, end, decimals = scaled, scale.end(), 0
    if (after := _UNIT_AFTER.match(text, end)) and unit is None:
        unit = unit_named(after[1])
        end = after.end() if unit else end
        if unit in ("pound", "pounds"):
            also.append((number, "gbp"))
    if unit in ("$", "dollar", "dollars"):
        also += [(number, "cad"), (number, "aud")]
    if unit in ("degree", "degrees"):
        also += [(number, "celsius"), (number, "fahrenheit")]
    if _POINT_GROUP.fullmatch(written):
        also.append((float(written.replace(".", "")), unit))  # as Germans write it
    return Amount(number, start, end, decimals, unit, tuple(also))


def unit_named(word: str) -> str | None:
    """Return the unit that a word is, if any."""
    if word in _UNITS:
        return word
    lowered = _PERCENT.sub("%", word.lower())
    return lowered if len(word) != 1 and lowered in _UNITS else None


def _is_part(amount: Amount, of: Amount) -> bool:
    """Whether an amount goes on with another one: the minutes of hours, the cents of euros."""
    if amount.unit is None or of.unit is None or of.decimals or amount.number < 0:
        return False
    (kind, factor), (other_kind, other) = _UNITS[amount.unit], _UNITS[of.unit]
    return _is_comparable(kind, other_kind) and kind != "percent" and amount.number * factor < other


def units_of(text: str) -> set[str]:
    """Return the units that a text names: what an amount in it may be counted in."""
    named = re.findall(r"(?<![\w-])[A-Za-złμ]+(?:/[a-z]+|[23])?(?![\w-])|[€£$¥₹%]", _PERCENT.sub("%", text))
    units = map(unit_named, named)
    return {unit for unit in units if unit is not None}


@dataclass(frozen=True)
class Units:
    """What a number may be counted in: one of `names` (none: nobody said), and nothing else if `is_exact`.
    What `may_be_percent` is called a rate, a share and the like."""

    names: frozenset[str] = frozenset()
    is_exact: bool = False
    may_be_percent: bool = False


ANY_UNITS = Units()


def amount_is(amount: Amount, value: float, *, tolerance: float, units: Units) -> bool:
    """Whether `amount` says `value`, which is counted in `units`."""
    readings = ((amount.number, amount.unit), *amount.also)
    return any(_reads(amount, number, unit, value, tolerance, units) for number, unit in readings)


def _reads(
    amount: Amount, number: float, unit: str | None, value: float, tolerance: float, units: Units
) -> bool:
    if unit == "%" and "%" not in units.names:
        is_fraction = not units.may_be_percent or abs(value) < 1  # 5% is 0.05
        if not is_fraction:
            return numbers_equal(value, number)
        shown = replace(amount, decimals=amount.decimals + 2)
        return _number_is(shown, round(number / 100, shown.decimals), value, tolerance)
    if unit is None or not units.names or unit in units.names:
        return _number_is(amount, number, value, tolerance)
    if any(name not in _UNITS and name.startswith(unit) for name in units.names):
        return _number_is(amount, number, value, tolerance)  # 184m of millicores
    kind = _UNITS[unit][0]
    kinds = {name: _UNITS[name][0] for name in units.names if name in _UNITS}
    same = [name for name, other in kinds.items() if _is_comparable(kind, other)]
    if not same:
        # An amount of money is one of money; other units may go unsaid in the question.
        is_other = units.is_exact or not _MONEY.isdisjoint(kinds.values())
        return not is_other and _number_is(amount, number, value, tolerance)
    return any(_number_is(amount, _in_unit(number, unit, other), value, tolerance) for other in same)


def _base(number: float, unit: str | None) -> float:
    """A number of a unit in the first one of its kind."""
    factor, offset = _CELSIUS.get(unit or "", (_UNITS[unit][1] if unit else 1.0, 0.0))
    return number * factor + offset


def _in_unit(number: float, unit: str, other: str) -> float:
    factor, offset = _CELSIUS.get(other, (_UNITS[other][1], 0.0))
    return (_base(number, unit) - offset) / factor


def is_same_unit(word: str, other: str) -> bool:
    """Return whether two words are names of one unit: km and kilometre."""
    units = [_UNITS.get(unit_named(name) or "") for name in (word, other)]
    return units[0] is not None and units[0] == units[1]


def are_comparable(unit: str, other: str) -> bool:
    """Whether two units measure the same kind of thing."""
    return _is_comparable(_UNITS[unit][0], _UNITS[other][0])


def _is_comparable(kind: str, other: str) -> bool:
    return kind == other or ("cent" in (kind, other) and kind in _MONEY and other in _MONEY)


def _number_is(amount: Amount, number: float, value: float, tolerance: float) -> bool:
    if numbers_equal(value, number, tolerance=tolerance):
        return True
    if isinstance(value, int) or float(value).is_integer():
        return False
    # Rounded as it is shown: 1858.03 and 1858.0 for 1858.025, but not 1858.
    is_precise = (
        amount.decimals >= 2 and len(f"{abs(number):.{amount.decimals}f}".strip("0.").replace(".", "")) >= 3
    )
    return is_precise and abs(number - value) <= 0.5 * 10.0**-amount.decimals * (1 + 1e-6)


def is_conversion(amount: Amount, of: Amount) -> bool:
    """Whether `amount` says what `of` says in another unit: 1 km and 1000 m, 3155 cents and €31.55."""
    if {amount.unit, of.unit} == {"%", None}:
        share, plain = (amount, of) if amount.unit else (of, amount)
        return numbers_equal(plain.number, share.number / 100)
    if amount.unit is None or of.unit is None or amount.unit == of.unit:
        return False
    kind, other_kind = _UNITS[amount.unit][0], _UNITS[of.unit][0]
    if not _is_comparable(kind, other_kind):
        return False
    left, right = _base(amount.number, amount.unit), _base(of.number, of.unit)
    if kind == "temperature":
        return abs(left - right) <= 1
    shown = max(0.5 * 10.0**-a.decimals * _UNITS[a.unit or ""][1] for a in (amount, of))
    return abs(left - right) <= shown * (1 + 1e-6)


_HOURS = pattern("hours")


def as_durations(text: str, *, is_short: bool = False) -> str:
    """Return a text with what may be a clock as hours, minutes and seconds: 2h05, 3:27:08; if `is_short`,
    what has two parts as minutes and seconds."""

    def duration(match: re.Match[str]) -> str:
        first, second, third = match[1], match[2], match[3] or match[4]
        if is_short and third is None:
            return f"{first} min {second} s"
        return f"{first} h {second} min" + (f" {third} s" if third else "")

    return _HOURS.sub(duration, text)


# Dates and times -------------------------------------------------------------------------------------------

_MONTHS = [tuple(names.split()) for names in WORDS["months"]]
_PARSER = date_parser.parser(type("_Names", (date_parser.parserinfo,), {"MONTHS": _MONTHS})())
_MONTH = rf"(?:{'|'.join(name for names in _MONTHS for name in names)})\b\.?"
_DAY = r"\d{1,2}(?:st|nd|rd|th|er)?"
_DAYS_OF_MONTH = re.compile(
    rf"(?<![,&\d] )(?<!and )(?<!or )\b({_DAY}(?:(?:,| and| or| &|, and) {_DAY})+ (?:of )?)({_MONTH})",
    re.IGNORECASE,
)
_DATE = (
    r"\d{4}-\d{1,2}-\d{1,2}|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}/\d{1,2}/\d{4}|\d{1,2}-\d{1,2}-\d{4}|\d{1,2}\.\s?\d{1,2}\.\s?\d{4}"
    rf"|\b{_DAY}\.?[\s-]+(?:(?:of|de)\s+)?{_MONTH}(?:,?[\s-]+(?:(?:of|de)\s+)?\d{{4}}\b|[\s-]'?\d\d\b(?![:.]\d))?"
    rf"|\b{_MONTH}[\s-]+(?:the\s+)?{_DAY}\b(?:,?[\s-]+\d{{4}}\b)?"
    rf"|\b{_MONTH},?\s+(?:of\s+)?\d{{4}}\b|\b\d{{4}}-\d{{2}}\b(?!-)"
    r"|\b(?:0?[1-9]|1[0-2])/\d{4}\b|\b\d{1,2}([./])\d{1,2}\1\d\d\b(?![.,/\d])"
)
_TIME = (
    r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?| Uhr\b)?|\b\d{1,2}(?:\.\d{2})?\s?[ap]\.?m\b\.?"
    r"|\b\d{1,2}\.\d{2} Uhr\b|\bnoon\b|\bmidnight\b|\b\d{1,2} (?:o'clock|Uhr(?: \d\d)?)\b"
    r"|\b\d{1,2}\s?h\s?\d{2}\b(?!\s?m)"
)
_ZONES = {name: int(hours * 3600) for name, hours in WORDS["zones"].items()}
_ZONE_NAME = re.compile(rf"\b({'|'.join(_ZONES)})\b")
_ZONE = (
    r"(?:(?: (?:local )?time)?\s?\(?(?:(?:UTC|GMT)?\s?[+-]\d{2}:?\d{2}\b|(?:UTC|GMT)[+-]\d{1,2}\b|Z\b"
    rf"|(?:{'|'.join(sorted(_ZONES, key=len, reverse=True))})\b))?"
)
_JOINT = r"(?:at|um|à|on|by|from|the|of|around|about|approximately|starting)"
_DAYS = "|".join(WORDS["weekdays"].split())
_WEEKDAY = rf"(?:\b(?:(?:mon|tue|wed|thu|fri|sat|sun)[a-z]*|{_DAYS})\.?,?\s+(?:the\s+)?)?"
_BETWEEN = rf"(?:T|\s*(?:,| -)?\s*(?:{_JOINT}\s+){{0,2}}\s*|\s*\()"
_MOMENT = re.compile(
    rf"{_WEEKDAY}(?:{_DATE})(?:{_BETWEEN}(?:{_TIME}|(?:[01]?\d|2[0-3])\.[0-5]\d\b(?![.,]\d)){_ZONE})?"
    rf"|(?:{_TIME}){_ZONE}(?:\)?{_BETWEEN}{_WEEKDAY}(?:the\s+)?(?:{_DATE}){_ZONE})?",
    re.IGNORECASE,
)
_ZONE_SIGN = re.compile(r"(?:UTC|GMT)\s?([+-])(\d{1,2}):?(\d{2})?", re.IGNORECASE)
_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_UNREAD = re.compile(rf"\b(?:{_JOINT}|de|(?:local )?time|Uhr)\b|[()]| - |(?<=\d)er\b", re.IGNORECASE)
_DEFAULTS = (datetime(1904, 1, 1), datetime(1908, 12, 28, 23, 59, 58))


@dataclass(frozen=True)
class Moment:
    """A date, a time or both: the fields that were said. `readings` are several if days and months may be
    exchanged (4/3/2025)."""

    said: frozenset[str]
    readings: tuple[datetime, ...]
    start: int = 0
    end: int = 0


@lru_cache(maxsize=4096)
def moments(text: str) -> tuple[Moment, ...]:
    """Return the dates and times of canonical `text`."""
    moments_read: list[Moment] = []
    for match in _MOMENT.finditer(text):
        if moment := _moment(match[0]):
            moments_read.append(Moment(*moment, match.start(), match.end()))
    apart = set(_ZONE_NAME.findall(text))
    if len(apart) == 1 and not any("zone" in moment.said for moment in moments_read):
        zone = timezone(timedelta(seconds=_ZONES[apart.pop()]))
        return tuple(_in_zone(moment, zone) if "hour" in moment.said else moment for moment in moments_read)
    return tuple(moments_read)


def _in_zone(moment: Moment, zone: timezone) -> Moment:
    readings = tuple(reading.replace(tzinfo=zone) for reading in moment.readings)
    return replace(moment, said=moment.said | {"zone"}, readings=readings)


@lru_cache(maxsize=4096)
def _moment(written: str) -> tuple[frozenset[str], tuple[datetime, ...]] | None:
    written = re.sub(_WEEKDAY, "", written, count=1, flags=re.IGNORECASE)
    written = re.sub(r"\bnoon\b", "12:00", re.sub(r"\bmidnight\b", "00:00", written, flags=re.I), flags=re.I)
    written = re.sub(
        r"(\d)\s+(?:o'clock|Uhr)(?! \d)|(\d)(?:\.(?=\d\d\s?[ap]\.?m)|\s?h\s?(?=\d\d)| Uhr (?=\d\d))(\d\d)",
        lambda m: f"{m[1]}:00" if m[1] else f"{m[2]}:{m[3]}",
        written,
    )
    written = re.sub(r"(?<![\d.])(\d{1,2})\.(\d\d)$", r"\1:\2", written)
    written = _ZONE_SIGN.sub(lambda m: f"{m[1]}{int(m[2]):02}:{m[3] or '00'}", written)
    written = _UNREAD.sub(" ", written)
    dayfirst = [False, True] if re.search(r"\d/\d{1,2}/\d", written) else ["." in written]
    readings: list[datetime] = []
    said: set[str] = set()
    for order in dayfirst:
        try:
            first, second = (
                _PARSER.parse(written, dayfirst=order, default=d, tzinfos=_ZONES) for d in _DEFAULTS
            )
        except (ValueError, OverflowError):
            return None
        said = {name for name in _FIELDS if getattr(first, name) == getattr(second, name)}
        if "hour" in said:
            said.add("minute")  # "8 am" says it
        if first.tzinfo is not None:
            said.add("zone")
        readings.append(first)
    return frozenset(said), tuple(readings)


def clocks(text: str) -> tuple[Amount, ...]:
    """Return the times of canonical `text` as amounts, which times may be read as."""
    times = [m.readings[0] for m in moments(text) if "hour" in m.said]
    return tuple(Amount(t.hour * 3600 + t.minute * 60 + t.second, 0, 0, unit="s") for t in times)


def moment_is(
    given: Moment, value: Moment, *, precision: str | None, unasked: Set[str] = frozenset()
) -> bool:
    """Whether `given` says `value`, as precisely as is asked (None: to the minute, if it has a time); the
    fields that are `unasked` may go unsaid."""
    needed = value.said - {"second", "zone"} - unasked
    if precision is not None:
        needed &= set(_FIELDS[: _FIELDS.index(precision) + 1])
    target = value.readings[0]
    if precision is None and target.hour == target.minute == 0:
        needed -= {"hour", "minute"}  # what a date is stored as
    if needed >= {"month", "day"}:
        needed -= {"year"}
    if not needed <= given.said:
        return False
    shared = [name for name in _FIELDS if name in given.said & value.said]
    return any(_same_moment(reading, target, given, value, shared) for reading in given.readings)


def agree(moment: Moment, target: Moment) -> bool:
    """Whether all that both say of a date is the same."""
    told, meant = moment.readings[0], target.readings[0]
    shared = moment.said & target.said - {"zone"}
    if "hour" in shared and "zone" in moment.said & target.said:
        if "day" not in shared:
            told = told.replace(year=meant.year, month=meant.month, day=meant.day)
            return ((told - meant).total_seconds() + 60) % 86400 <= 120
        return abs(told - meant).total_seconds() < 60
    return bool(shared) and all(getattr(told, name) == getattr(meant, name) for name in shared)


def moment_spans(
    text: str, value: Moment, *, precision: str | None, unasked: Set[str] = frozenset()
) -> list[Span]:
    """Return where canonical `text` says a date or a time, as `moment_is` has it; a sentence may say its day
    and its hour apart."""
    told = moments(text)
    spans = [(m.start, m.end) for m in told if moment_is(m, value, precision=precision, unasked=unasked)]
    if spans or "hour" not in value.said:
        return spans
    for left, right in pairwise(told):
        date, time = (left, right) if "day" in left.said else (right, left)
        is_apart = "day" in date.said and "hour" in time.said and not date.said & time.said
        if is_apart and not re.search(r"[.;!?]\s|\n", text[left.end : right.start]):
            readings = tuple(
                day.replace(hour=time.readings[0].hour, minute=time.readings[0].minute)
                for day in date.readings
            )
            whole = replace(date, said=date.said | {"hour", "minute"}, readings=readings)
            if moment_is(whole, value, precision=precision):
                spans += [(date.start, date.end), (time.start, time.end)]
    return spans


def _same_moment(left: datetime, right: datetime, given: Moment, value: Moment, shared: list[str]) -> bool:
    if "zone" in given.said & value.said and {"hour", "day"} <= given.said & value.said:
        apart = abs(left - right)
        return apart < timedelta(minutes=1) if "second" not in given.said else apart < timedelta(seconds=1)
    if shared == ["hour", "minute"] and len(given.said) == 1:
        return left.hour == right.hour
    return all(getattr(left, name) == getattr(right, name) for name in shared)


# Names -----------------------------------------------------------------------------------------------------

_TOKEN = re.compile(r"[^\W_]+(?:\+{1,2}(?!\w)|#)?")
_LETTERS = str.maketrans({"ø": "o", "æ": "ae", "œ": "oe", "ł": "l", "đ": "d", "ð": "d", "þ": "th", "ı": "i"})
_UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue", "å": "aa", "ø": "oe"})
_WEEKDAY_NAME = re.compile(r"(mon|tue|wed|thu|fri|sat|sun)(?:s|nes|rs?|ur)?(?:days?)?")
_VERSION = re.compile(r"v\d+")
_TITLES = re.compile(r"(?:[^\W\d_]{2,5}\.(?:\s+|(?=[A-Z])))+(?=[^\W\d_])")  # no part of a host's name
_HOUSE_LAST = re.compile(r"([A-ZÀ-Þ]\D+) (\d+[a-z]?),(.+)")  # Rue Vautier 27, Carouge
_EMAIL = re.compile(r"[^\s@]+@[^\s@]+\.\w+")
_LEADING_MARKS = re.compile(r"[^\w\s]+(?=\w)")
_BETWEEN_WORDS = frozenset(("and", "on", "in", "at", "of", "the", "with", "number"))


def words(text: str) -> list[str]:
    """The words and numbers of canonical `text`, without letter case and diacritics."""
    return [word for word, _, _ in _tokens(text)]


@lru_cache(maxsize=4096)
def _tokens(text: str, umlauts: bool = False) -> tuple[tuple[str, int, int], ...]:
    return tuple((_folded(m[0], umlauts), m.start(), m.end()) for m in _TOKEN.finditer(text))


def _folded(word: str, umlauts: bool = False) -> str:
    word = word.casefold()
    if word.isascii():
        return word[1:] if _VERSION.fullmatch(word) else word
    if umlauts:
        word = word.translate(_UMLAUTS)
    bare = "".join(c for c in unicodedata.normalize("NFKD", word) if not unicodedata.combining(c))
    return bare.translate(_LETTERS)


def name_spans(value: str, text: str) -> list[Span]:
    """Return where canonical `text` has a name: its words in order, whatever stands between them, letter case
    and diacritics apart. "Tom Weiss" is tom.weiss, "Fire and Flying" is "Fire, Flying", and a title, a legal
    form or the order of a person's names is not a part of it."""
    if not _tokens(value) or _EMAIL.fullmatch(value):  # a path such as "/"
        exact = rf"(?<![\w/.\0-]){re.escape(value)}(?![\w/\0-]|\.\w)"
        return [m.span() for m in re.finditer(exact, text, re.IGNORECASE)]
    spans: list[Span] = []
    read = {_tokens(text, umlauts) for umlauts in (False, not text.isascii())}  # "Åsen" is Aasen too
    for form, is_rotated in _spellings(value):
        if is_rotated and spans:
            continue  # "Ramon Rossi, Ingrid Rossi" has no "Rossi, Ingrid"
        apart = r"[/;&|\n\0]|\band\b" if is_rotated else r"\0"
        runs = [run for tokens in read for run in _runs(form, tokens)]
        spans += [(a, b) for a, b in runs if not re.search(apart, text[a:b])]
    if lead := _LEADING_MARKS.match(value):  # ">=0.9", "/etc"
        spans = [(a - len(lead[0]) * text[:a].endswith(lead[0]), b) for a, b in spans]
    return _outermost(spans)


@lru_cache(maxsize=4096)
def _spellings(value: str) -> tuple[tuple[str, bool], ...]:
    """The ways to say a name, each as its words put together, and whether the last ones come first in it."""
    spellings: dict[tuple[str, bool], None] = {}
    for umlauts in (False, True) if not value.isascii() else (False,):
        tokens = [american(word) for word, _, _ in _tokens(canonical(value), umlauts)]
        spellings |= {(form, False): None for form in _forms(tokens, value) if form}
        spellings |= {(form, True): None for form in _rotations(tokens, value)}
    return tuple(spellings)


def _forms(tokens: list[str], value: str) -> Iterator[str]:
    """The ways to say a name, each as its words put together: all of it, and without titles and the like."""
    for some in (tokens, _bare_name(tokens, value)):
        yield _put_together(word for word in some if word not in _BETWEEN_WORDS) or _put_together(some)
    if (
        len(tokens) > 1
        and re.fullmatch(r"(?:[A-Z][^\W\d_]*\.?[ -]?)+", value)
        and not re.match("[A-Z]{2}", value)
    ):
        yield "".join(word[0] for word in tokens[:-1]) + tokens[-1]  # J. S. Bach
        yield "".join(word for word in tokens if len(word) > 1 and word not in UNSAID)
    if address := _HOUSE_LAST.fullmatch(value):
        street, house, place = map(words, address.groups())
        yield _put_together(map(american, [*house, *street, *place]))
    if len(tokens) > 1 and value.islower() and value.replace(" ", "").isalpha():
        yield "".join(tokens) + "s"  # leopard sharks
    if len(tokens) == 1 and len(value) > 2 and value.isalpha() and not value.istitle():
        yield from (tokens[0] + ending for ending in ("ed", "d", "s"))  # "pass": it passed


def _put_together(some: Iterable[str]) -> str:
    """Words without what stands between them, but for numbers: 3.11.2 is not 3.1.12."""
    return re.sub(r"(?<=\d) (?=\d)", ".", " ".join(some)).replace(" ", "")


def _bare_name(tokens: list[str], value: str) -> list[str]:
    abbreviated = len(re.findall(r"\w+", match[0])) if (match := _TITLES.match(value)) else 0
    tokens = tokens[min(abbreviated, len(tokens) - 1) :]
    while len(tokens) > 1 and tokens[0] in UNSAID:
        tokens = tokens[1:]
    if len(tokens) > 1 and re.match(r"[A-Z]\. ?[^\W\d]{2}", value):
        tokens = tokens[1:]
    while len(tokens) > 1 and tokens[-1] in LEGAL and value[:1].isupper():
        tokens = tokens[:-1]
    return tokens


def _rotations(tokens: list[str], value: str) -> Iterator[str]:
    """A person's names with the last ones first, and a thing with its measure first."""
    bare = _bare_name(tokens, value)
    is_person = 2 <= len(bare) <= 4 and value[:1].isupper() and all(word.isalpha() for word in bare)
    if is_person or (3 <= len(bare) <= 5 and value.islower() and amounts(canonical(value))):  # hex key 5 mm
        for at in range(1, len(bare)):
            yield "".join(bare[at:] + bare[:at])


def _outermost(spans: list[Span]) -> list[Span]:
    """Spans that are not within others, in order."""
    return sorted(
        span
        for span in set(spans)
        if not any(a <= span[0] and span[1] <= b and (a, b) != span for a, b in spans)
    )


def _runs(joined: str, tokens: tuple[tuple[str, int, int], ...]) -> Iterator[Span]:
    """Runs of tokens that are `joined` put together, in British or American spelling; small words between
    them are read over."""
    for first, (word, start, _) in enumerate(tokens):
        if not joined.startswith(american(word)) or (word in _BETWEEN_WORDS and joined != word):
            continue
        rest, last = joined, ""
        for other, _, end in tokens[first:]:
            part = "." * (rest[:1] == ".") + american(other)
            # "load1: 5" is no load15.
            is_split = last[-1:].isdigit() and not last.isdigit() and part[0].isdigit()
            last = part
            if rest.startswith(part) and not is_split and not (other in _BETWEEN_WORDS and rest != joined):
                rest = rest[len(part) :]
            elif other not in _BETWEEN_WORDS:
                break
            if not rest:
                yield start, end
                break


@lru_cache(maxsize=4096)
def american(word: str) -> str:
    """Return a word in a spelling that is the same for all; a weekday as its first three letters."""
    if weekday := _WEEKDAY_NAME.fullmatch(word):
        return weekday[1]
    for british, american in WORDS["american"].items():
        word = word.replace(british, american)
    return word


# Values of any kind ----------------------------------------------------------------------------------------


def spans_of(value: Any, text: str, *, tolerance: float = 0.0, units: Units = ANY_UNITS) -> list[Span]:
    """Return where canonical `text` says `value`: a number, a date or a name, as what it is."""
    target = as_number(value)
    if target is not None and (not isinstance(value, str) or not re.match(r"\s*(?:0\d|\+)", value)):
        exact = (
            int(target) if isinstance(value, str) and value.strip().isdigit() and len(value) < 16 else value
        )
        exact = target if isinstance(exact, str) else exact
        places = [a.span for a in amounts(text) if amount_is(a, exact, tolerance=tolerance, units=units)]
        return places or (name_spans(value, text) if isinstance(value, str) else _small_numbers(target, text))
    written = format_value(value)
    if (moment := whole_moment(written)) is not None:
        spans = moment_spans(text, moment, precision=None)
    else:
        spans = name_spans(written, text)
    if not spans and (short := re.fullmatch(r"0?0:(\d\d:\d\d)", written)):
        spans = [m.span() for m in re.finditer(rf"(?<![\d:])0?{short[1].lstrip('0')}(?![\d:])", text)]
    if (not spans or moment is None) and (quantity := _quantity(written)):
        units = Units(frozenset((quantity.unit or "",)), is_exact=True)
        same = [a for a in amounts(text) if amount_is(a, quantity.number, tolerance=0.0, units=units)]
        return [a.span for a in same if a.unit or moment is None] or (spans if ":" in written else [])
    if moment is not None:
        return spans
    if not spans and len(digits := _digits_of(written)) > 6 and re.fullmatch(r"[\d\s()+./-]+", written):
        spans = [m.span() for m in re.finditer(r"\(?\+?\d[\d\s()./-]*\d", text) if _digits_of(m[0]) == digits]
    return spans


def _quantity(written: str) -> Amount | None:
    """The amount that a text is as a whole, with its unit; 3:07 and 0:03:07 are 187 seconds."""
    if clock := re.fullmatch(r"(?:(\d+):)?(\d+):(\d\d(?:\.\d+)?)", written):
        return Amount(int(clock[1] or 0) * 3600 + int(clock[2]) * 60 + float(clock[3]), 0, 0, unit="s")
    value = canonical(written).strip()
    told = amounts(value)
    is_whole = len(told) == 1 and told[0].end == len(value)
    if not is_whole or told[0].unit is None:
        return None
    before = value[: told[0].start].strip()  # "CHF 20", but not "HR 20 B"
    return told[0] if _UNITS.get(before.lower(), (before,))[0] in {"", *_MONEY} else None


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


def whole_moment(written: str) -> Moment | None:
    """The date or time that a text is as a whole; None if it is anything else."""
    if not any(mark in written for mark in "-:/ ") or len(written) > 60:
        return None
    text = canonical(written).strip()
    read = moments(text)
    return read[0] if len(read) == 1 and (read[0].start, read[0].end) == (0, len(text)) else None


def says(fact: Any, text: str) -> bool:
    """Whether a fact stands in a text, however it is written."""
    return bool(spans_of(fact, canonical(text)))
