"""Numbers of canonical text with their units, and times as lengths of time."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from functools import lru_cache

from mcpagent.core.values import located_numbers, numbers_equal
from mcpagent.reward.text.moments import Moment, Span, moments
from mcpagent.reward.text.words import WORDS, pattern

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
            written = [_short + _name] * (len(_name) <= 3) + [_long + _name, f"{_long}{_name}s"] * (
                len(_name) > 2
            )
            if not _kind.startswith("data") or float(_factor) >= 1:
                one = _UNITS[_name][1] if _name in _UNITS else 1.0
                _UNITS.update({name: (_kind, float(_factor) * one) for name in written if name not in _UNITS})
_UNITS.update(
    {name.lower(): u for name, u in reversed(_UNITS.items()) if len(name) > 1 and name.lower() not in _UNITS}
)
_CELSIUS = {"kelvin": (1.0, -273.15), "K": (1.0, -273.15), "fahrenheit": (5 / 9, -160 / 9)}
_PERCENT = re.compile(r"percent\b|pct\b|prozent\b")
# Currencies as `canonical` writes their long names.
_CODES = "|".join(name for name in WORDS["long_units"] if _UNITS.get(name, ("",))[0] in _MONEY)
_UNIT_BEFORE = re.compile(rf"(?:([$€£¥₹])|\b([A-Z]{{3}}))\s?-?$|\b({_CODES}) -?$")
_UNIT = r"(?:[A-Za-złμ]+[23]?(?![^\W\d])|[€£$¥₹¢%])"
_UNIT_AFTER = re.compile(rf"[ -]?({_UNIT})(/[a-z]+)?")
_IN_CODE = re.compile(r"-\d")  # 1018 HR-3301
_RATE_AFTER = re.compile(rf"(?:\s?/\s?|\s(?:per|an?|each|every)\s)((?:\d+ ?)?{_UNIT})")
_RATE = re.compile(rf"({_UNIT})/(?:(\d+) ?)?({_UNIT})")
_RATE_NAMED = re.compile(rf"(?<![\w/-]){_RATE.pattern}(?![\w/-])")
_RATES = {("length", "time"): "speed", ("energy", "time"): "power"}
_POINT_GROUP = re.compile(r"-?[1-9]\d{0,2}\.\d{3}")
_DAY_RANGE = re.compile(r"\b\d{1,2}(?:st|nd|rd|th)?\s?(?:-|to|until|bis)\s?$")  # 21 to 25 August
_MORE_OF_IT = re.compile(r"(?:,| and|, and)?\s?")


@dataclass(frozen=True)
class Amount:
    """A number of a text with what follows from how it is written: `decimals` shown, `unit` named, and what
    the unit is counted `per`: h of L/h. "7 m" may also be seven million, and "12.450 euros" 12450: `also` has
    such numbers with their units."""

    number: float
    start: int
    end: int
    decimals: int = 0
    unit: str | None = None
    also: tuple[tuple[float, str | None], ...] = ()
    per: str | None = None

    @property
    def rate(self) -> str | None:
        """The unit with what it is counted per."""
        return f"{self.unit}/{self.per}" if self.unit and self.per else self.unit

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
        start, end = with_first_day(text, moment)
        told[start:end] = " " * (end - start)
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


def with_first_day(text: str, moment: Moment) -> Span:
    """Return where a text says a date with the first day of a range that it ends: "21 to 25 August"."""
    match = _DAY_RANGE.search(text[: moment.start])
    return (match.start() if match else moment.start), moment.end


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
        unit = after[2] and unit_named(after[1] + after[2])  # km/h
        end = after.end() if unit else end
        is_code = after[1].isupper() and after[1] not in _UNITS and _IN_CODE.match(text, after.end(1))
        if unit is None and not is_code and (unit := unit_named(after[1])):
            end = after.end(1)
        if unit in ("pound", "pounds"):
            also.append((number, "gbp"))
    if unit == "nmi":
        also.append((number, "nm"))  # as charts write it
    if unit in ("$", "dollar", "dollars"):
        also += [(number, "cad"), (number, "aud")]
    if unit in ("degree", "degrees"):
        also += [(number, "celsius"), (number, "fahrenheit")]
    if _POINT_GROUP.fullmatch(written):
        also.append((float(written.replace(".", "")), unit))  # as Germans write it
    per = _RATE_AFTER.match(text, end) if unit else None
    per = per[1] if per and measure(f"{unit}/{per[1]}") else None
    return Amount(number, start, end, decimals, unit, tuple(also), per)


@lru_cache(maxsize=1024)
def measure(unit: str) -> tuple[str, float] | None:
    """Return what a unit measures, and how many of the first one of its kind it is; of a rate such as mg/L or
    L/100 km too. None if it is no unit."""
    if unit in _UNITS or not (rate := _RATE.fullmatch(unit)):
        return _UNITS.get(unit)
    of = re.sub("^([kKMGT]?)b$", r"\1bit", rate[1])  # Mb/s are megabits
    counted, per = (_UNITS.get(unit_named(part) or "") for part in (of, rate[3]))
    if counted is None or per is None:
        return None
    kind = _RATES.get((counted[0], per[0]), f"{counted[0]}/{per[0]}")
    return kind, counted[1] / (per[1] * int(rate[2] or 1))


def _measured(unit: str) -> tuple[str, float]:
    return measure(unit) or ("", 1.0)


def is_money(unit: str) -> bool:
    """Return whether a unit is a currency."""
    return _UNITS.get(unit, ("",))[0] in _MONEY


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
    text = _PERCENT.sub("%", text)
    rates = {rate[0] for rate in _RATE_NAMED.finditer(text) if measure(rate[0]) and not unit_named(rate[0])}
    text = _RATE_NAMED.sub(lambda m: " " if m[0] in rates else m[0], text)
    named = re.findall(r"(?<![\w-])[A-Za-złμ]+(?:/[a-z]+|[23])?(?![\w-])|[€£$¥₹%]", text)
    units = map(unit_named, named)
    return rates | {unit for unit in units if unit is not None}


@dataclass(frozen=True)
class Units:
    """What a number may be counted in: one of `names` (none: nobody said), and nothing else if `is_exact`.
    What `may_be_percent` is called a rate, a share and the like. Money is in one of `currencies`, if the
    results name any."""

    names: frozenset[str] = frozenset()
    is_exact: bool = False
    may_be_percent: bool = False
    currencies: frozenset[str] = frozenset()


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
    if (
        unit
        and is_money(unit)
        and units.currencies
        and not any(are_comparable(unit, other) for other in units.currencies)
    ):
        return False
    if unit is None or not units.names or unit in units.names:
        return _number_is(amount, number, value, tolerance)
    if any(measure(name) is None and name.startswith(unit) for name in units.names):
        return _number_is(amount, number, value, tolerance)  # 184m of millicores
    # What is asked for as a rate is said as one; of money that goes without saying.
    names = {
        money if not amount.per and (money := unit_named(name.split("/")[0])) and is_money(money) else name
        for name in units.names
    }
    kinds = {name: one[0] for name in names if (one := measure(name))}
    is_rate = amount.per and any("/" in name or kind == "speed" for name, kind in kinds.items())
    rate = f"{unit}/{amount.per}" if is_rate else unit
    same = [name for name, other in kinds.items() if _is_comparable(_measured(rate)[0], other)]
    if not same:
        # An amount of money is one of money; other units may go unsaid in the question.
        is_other = units.is_exact or any(map(is_money, kinds))
        return not is_other and _number_is(amount, number, value, tolerance)
    return any(_number_is(amount, _in_unit(number, rate, other), value, tolerance) for other in same)


def _base(number: float, unit: str | None) -> float:
    """A number of a unit in the first one of its kind."""
    factor, offset = _CELSIUS.get(unit or "", (_measured(unit)[1] if unit else 1.0, 0.0))
    return number * factor + offset


def _in_unit(number: float, unit: str, other: str) -> float:
    factor, offset = _CELSIUS.get(other, (_measured(other)[1], 0.0))
    return (_base(number, unit) - offset) / factor


def is_same_unit(word: str, other: str) -> bool:
    """Return whether two words are names of one unit: km and kilometre."""
    units = [_UNITS.get(unit_named(name) or "") for name in (word, other)]
    return units[0] is not None and units[0] == units[1]


def are_comparable(unit: str, other: str) -> bool:
    """Whether two units measure the same kind of thing."""
    return _is_comparable(_UNITS[unit][0], _UNITS[other][0])


def _is_comparable(kind: str, other: str) -> bool:
    (of, per), (other_of, other_per) = (str(each).partition("/")[::2] for each in (kind, other))
    is_money = "cent" in (of, other_of) and of in _MONEY and other_of in _MONEY
    return per == other_per and (of == other_of or is_money)


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
    if amount.rate is None or of.rate is None or amount.rate == of.rate:
        return False
    kind, other_kind = _measured(amount.rate)[0], _measured(of.rate)[0]
    if not _is_comparable(kind, other_kind):
        return False
    left, right = _base(amount.number, amount.rate), _base(of.number, of.rate)
    if kind == "temperature":
        return abs(left - right) <= 1
    shown = max(0.5 * _last_digit(a) * _measured(a.rate or "")[1] for a in (amount, of))
    if kind == "data" and abs(_binary(amount) - _binary(of)) <= shown * 1.1:
        return True
    return abs(left - right) <= shown * (1 + 1e-6)


def _last_digit(amount: Amount) -> float:
    """What one of the last digit of a number is that is not a round zero, of four digits or more."""
    digits = f"{abs(amount.number):.0f}"
    zeros = 0 if amount.decimals else min(len(digits) - len(digits.rstrip("0")), max(0, len(digits) - 4))
    return 10.0 ** (zeros - amount.decimals)


def _binary(amount: Amount) -> float:
    """How many bytes an amount of data is if 1024 kB are 1 MB, as many tools count."""
    factor = _measured(amount.unit or "")[1]
    return amount.number * next((1024.0**n for n in range(1, 5) if factor == 1000.0**n), factor)


def is_rounded(amount: Amount, of: Amount) -> bool:
    """Whether `amount` says `of` with fewer digits: 594 and 594.34, 48.2 million and 48,206,913."""
    digits = len(f"{abs(amount.number):.15g}".replace(".", "").strip("0"))
    is_same_unit = amount.unit in (None, of.unit)
    return (
        is_same_unit and digits > 1 and of.number != 0 and float(f"{of.number:.{digits}g}") == amount.number
    )


_HOURS = pattern("hours")


def as_durations(text: str, *, is_short: bool = False) -> str:
    """Return a text with what may be a clock as hours, minutes and seconds: 2h05, 3:27:08; if `is_short`,
    what has two parts as minutes and seconds."""

    def duration(match: re.Match[str]) -> str:
        first, second, third = match[1], match[2], match[3] or match[4]
        if is_short and third is None and ":" in match[0]:
            return f"{first} min {second} s"
        return f"{first} h {second} min" + (f" {third} s" if third else "")

    return _HOURS.sub(duration, text)


def clocks(text: str) -> tuple[Amount, ...]:
    """Return the times of canonical `text` as amounts, which times may be read as."""
    times = [m.readings[0] for m in moments(text) if "hour" in m.said]
    return tuple(Amount(t.hour * 3600 + t.minute * 60 + t.second, 0, 0, unit="s") for t in times)
