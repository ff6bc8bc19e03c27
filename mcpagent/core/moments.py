"""Dates and times in ISO form (RFC 3339 and its parts), compared as the clock on the wall shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime

_DATE = r"(?P<date>[0-9]{4}-[0-9]{2}-[0-9]{2})"
_TIME = r"(?P<time>[0-9]{2}:[0-9]{2})(?P<seconds>:[0-9]{2}(?:\.[0-9]+)?)?"
_OFFSET = r" ?\(?(?:UTC)?(?P<offset>Z|UTC|[-+][0-9]{2}:?[0-9]{2})\)?"
# Not inside a longer number or word: "2026-05-05" is no part of "2026-05-055".
MOMENT = re.compile(
    rf"(?<![\w.:-])(?:{_DATE}(?:[T ]{_TIME}(?:{_OFFSET})?)?|{_TIME.replace('P<', 'P<only_')})(?![\w:])",
    re.ASCII | re.IGNORECASE,
)
YEAR = re.compile(r"[0-9]{4}")


@dataclass(frozen=True, kw_only=True)
class Moment:
    """A year, a date, a time of day, or a date with a time; "" for a part that it lacks. `time` is HH:MM,
    `seconds` is empty or `:SS[.f]`, `offset` is empty or +HH:MM."""

    year: str = ""
    date: str = ""
    time: str = ""
    seconds: str = ""
    offset: str = ""

    @classmethod
    def read(cls, text: str) -> Moment | None:
        """Return what the whole of `text` says; None if it is not in ISO form, or no such moment exists."""
        if YEAR.fullmatch(text):
            return cls(year=text)
        match = MOMENT.fullmatch(text)
        return None if match is None else cls.of(match)

    @classmethod
    def of(cls, match: re.Match[str]) -> Moment | None:
        """Return what a match of `MOMENT` says; None for a 30th of February and the like."""
        parts = {name: match[name] or "" for name in ("date", "time", "seconds", "offset")}
        parts["time"] = parts["time"] or match["only_time"] or ""
        parts["seconds"] = parts["seconds"] or match["only_seconds"] or ""
        try:
            datetime.fromisoformat(f"{parts['date'] or '2000-01-01'} {parts['time'] or '00:00'}")
        except ValueError:
            return None
        if float(parts["seconds"][1:] or 0) >= 60:
            return None
        offset = parts["offset"].upper()
        if offset in ("Z", "UTC", "-00:00", "-0000"):
            offset = "+00:00"
        elif offset and ":" not in offset:
            offset = f"{offset[:3]}:{offset[3:]}"
        return cls(**{**parts, "offset": offset})

    @property
    def shape(self) -> tuple[bool, bool, bool]:
        """Return which of year, date and time it has."""
        return bool(self.year), bool(self.date), bool(self.time)

    def cut(self, precision: str | None) -> Moment:
        """Return what is left of it at a precision: `year`, `day`, or all of it."""
        if precision == "year":
            return Moment(year=self.year or self.date[:4])
        return Moment(date=self.date) if precision == "day" and self.date else self

    def agrees_with(self, said: Moment) -> bool:
        """Return whether `said` is this moment; it may leave out seconds and an offset."""
        same = (self.year, self.date, self.time) == (said.year, said.date, said.time)
        same &= not said.seconds or float(said.seconds[1:]) == float(self.seconds[1:] or 0)
        return same and (not said.offset or not self.offset or said.offset == self.offset)
