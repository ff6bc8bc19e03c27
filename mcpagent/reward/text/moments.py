"""Dates and times of canonical text, as precisely as they are said."""

from __future__ import annotations

import re
from collections.abc import Set
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from functools import lru_cache
from itertools import pairwise

from dateutil import parser as date_parser

from mcpagent.reward.text.canonical import DAY, MONTH, MONTHS, canonical
from mcpagent.reward.text.words import WORDS

Span = tuple[int, int]
_PARSER = date_parser.parser(type("_Names", (date_parser.parserinfo,), {"MONTHS": MONTHS})())
_DATE = (
    r"\d{4}-\d{1,2}-\d{1,2}|\d{4}/\d{1,2}/\d{1,2}|\d{1,2}/\d{1,2}/\d{4}|\d{1,2}-\d{1,2}-\d{4}|\d{1,2}\.\s?\d{1,2}\.\s?\d{4}"
    rf"|\b{DAY}\.?[\s-]+(?:(?:of|de)\s+)?{MONTH}(?:,?[\s-]+(?:(?:of|de)\s+)?\d{{4}}\b|[\s-]'?\d\d\b(?![:.]\d))?"
    rf"|\b{MONTH}[\s-]+(?:the\s+)?{DAY}\b(?:,?[\s-]+\d{{4}}\b)?"
    rf"|\b{MONTH},?\s+(?:of\s+)?\d{{4}}\b|\b\d{{4}}-\d{{2}}\b(?!-)"
    r"|\b\d{1,2}/\d{1,2}(?=,? (?:at )?\d{1,2}:\d\d)"
    r"|\b(?:0?[1-9]|1[0-2])/\d{4}\b|\b\d{1,2}([./])\d{1,2}\1\d\d\b(?![.,/\d])"
)
_TIME = (
    r"\d{1,2}:\d{2}(?::\d{2}(?:[.,]\d+)?)?(?:\s?[ap]\.?m\b\.?| Uhr\b| o'clock\b)?"
    r"|\b\d{1,2}(?:\.\d{2})?\s?[ap]\.?m\b\.?"
    r"|\b\d{1,2}\.\d{2} Uhr\b|\bnoon\b|\bmidnight\b|\b\d{1,2} (?:o'clock|Uhr(?: \d\d)?)\b"
    r"|\b\d{1,2}\s?h\s?\d{2}\b(?!\s?m)"
)
_ZONES = {name: int(hours * 3600) for name, hours in WORDS["zones"].items()}
_ZONE_NAME = re.compile(rf"\b({'|'.join(_ZONES)})\b")
_ZONE = (
    r"(?:(?: (?:local )?time)?,?\s?\(?"
    r"(?:(?:(?:UTC|GMT)\s?[+-]|\+"
    r"|(?:(?<=T\d\d:\d\d)|(?<=:\d\d:\d\d)|(?<=\.\d{3})|(?<=[ap]m )|(?<=[ap]m \())-)\d{2}:?\d{2}\b"
    r"|(?:UTC|GMT)[+-]\d{1,2}\b|Z\b"
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
_RANGE = re.compile(r"(\d{1,2}:\d\d)\s?(?:[-–]|to)\s?(\d{1,2}:\d\d)")
_TO = re.compile(r"\s*(?:-|to|until|till|through|and)\s*", re.IGNORECASE)
_FIELDS = ("year", "month", "day", "hour", "minute", "second")
_UNREAD = re.compile(rf"\b(?:{_JOINT}|de|(?:local )?time|Uhr)\b|[()]| - |(?<=\d)er\b", re.IGNORECASE)
_DEFAULTS = (datetime(1904, 1, 1), datetime(1908, 12, 28, 23, 59, 58))


@dataclass(frozen=True)
class Moment:
    """A date, a time or both: the fields that were said. `readings` are several if days and months may be
    exchanged (4/3/2025), or a clock is spoken without its half of the day."""

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
    is_spoken = "o'clock" in written  # half past one is 1:30 or 13:30
    written = re.sub(_WEEKDAY, "", written, count=1, flags=re.IGNORECASE)
    written = re.sub(r"\bnoon\b", "12:00", re.sub(r"\bmidnight\b", "00:00", written, flags=re.I), flags=re.I)
    written = re.sub(
        r"(\d)\s+(?:o'clock|Uhr)(?! \d)|(\d)(?:\.(?=\d\d\s?[ap]\.?m)|\s?h\s?(?=\d\d)| Uhr (?=\d\d))(\d\d)",
        lambda m: f"{m[1]}:00" if m[1] else f"{m[2]}:{m[3]}",
        re.sub(r"(:\d\d) o'clock", r"\1", written),
    )
    written = re.sub(r"(?<![\d.])(\d{1,2})\.(\d\d)$", r"\1:\2", written)
    written = _ZONE_SIGN.sub(lambda m: f"{m[1]}{int(m[2]):02}:{m[3] or '00'}", written)
    written = _UNREAD.sub(" ", written)
    is_german = re.search(r"\d\.\s?\d", written) is not None and not re.search(r"\d{4}-\d", written)
    dayfirst = [False, True] if re.search(r"\b\d{1,2}/\d{1,2}(?:/\d| )", written) else [is_german]
    readings: list[datetime] = []
    said: set[str] = set()
    for order in dayfirst:
        try:
            first, second = (
                _PARSER.parse(written, dayfirst=order, default=d, tzinfos=_ZONES) for d in _DEFAULTS
            )
        except (ValueError, OverflowError):
            continue
        said = {name for name in _FIELDS if getattr(first, name) == getattr(second, name)}
        if "hour" in said:
            said.add("minute")  # "8 am" says it
        if first.tzinfo is not None:
            said.add("zone")
        readings.append(first)
        if is_spoken and first.hour <= 12:
            readings.append(first.replace(hour=(first.hour + 12) % 24))
    return (frozenset(said), tuple(readings)) if readings else None


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
        told = told if "year" in shared else _in_year_of(meant, told)
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


def range_spans(value: str, text: str) -> list[Span] | None:
    """Return where canonical text says a time of day to another: 08:30-09:45 as "8:30 to 9:45 AM". None if
    the value is no such range."""
    if (ends := _RANGE.fullmatch(value)) is None:
        return None
    target = [tuple(map(int, end.split(":"))) for end in ends.groups()]
    spans: list[Span] = []
    for first, last in pairwise(m for m in moments(text) if "hour" in m.said):
        start, end = ((m.readings[0].hour, m.readings[0].minute) for m in (first, last))
        starts = [start, (start[0] + 12, start[1])] if end[0] >= 12 > start[0] else [start]  # 1:00 to 2:30 PM
        if _TO.fullmatch(text[first.end : last.start]) and end == target[1] and target[0] in starts:
            spans.append((first.start, last.end))
    return spans


def _same_moment(left: datetime, right: datetime, given: Moment, value: Moment, shared: list[str]) -> bool:
    if "zone" in given.said & value.said and {"hour", "day"} <= given.said & value.said:
        apart = abs((left if "year" in given.said & value.said else _in_year_of(right, left)) - right)
        return apart < timedelta(minutes=1) if "second" not in given.said else apart < timedelta(seconds=1)
    if shared == ["hour", "minute"] and len(given.said) == 1:
        return left.hour == right.hour
    return all(getattr(left, name) == getattr(right, name) for name in shared)


def _in_year_of(other: datetime, moment: datetime) -> datetime:
    """Return a moment that was said without a year, in the year of another one."""
    is_leap_day = (moment.month, moment.day) == (2, 29) != (other.month, other.day)
    return moment if is_leap_day else moment.replace(year=other.year)


def whole_moment(written: str) -> Moment | None:
    """The date or time that a text is as a whole; None if it is anything else."""
    if not any(mark in written for mark in "-:/ ") or len(written) > 60:
        return None
    text = canonical(written).strip()
    read = moments(text)
    return read[0] if len(read) == 1 and (read[0].start, read[0].end) == (0, len(text)) else None
