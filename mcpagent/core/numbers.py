"""Numbers inside text, as people and models write them."""

from __future__ import annotations

import re

# Dates carry no quantity: "187.2 on 2025-03-04" ends with the number 187.2.
_ISO_DATE = re.compile(r"(?<![0-9A-Za-z])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
_NUMBER = re.compile(
    r"(?<![\w.])"  # not inside a word ("Q3", "step1") and not the tail of another number ("1.2.3")
    r"(?P<sign>[-+−])?[$€£¥]?(?P<inner>[-−])?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?P<exponent>[eE][-+]?[0-9]{1,3}(?![\w]))?"
)
_PLAIN = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?\s*")
_MAX_INT_DIGITS = 15  # past this a float would not tell neighbours apart, and int() is slow by design


def numbers_in(text: str) -> list[int | float]:
    """Every number of `text` in order: thousands separators, currency signs and % are read over, a minus
    after a digit or letter is a dash ("10-20" is 10 and 20), ISO dates are skipped."""
    found: list[int | float] = []
    for match in _NUMBER.finditer(_ISO_DATE.sub(" ", text)):
        negative = match["sign"] in ("-", "−") or match["inner"] is not None
        digits = match["digits"].replace(",", "")
        plain = digits.isdigit() and match["exponent"] is None and len(digits) <= _MAX_INT_DIGITS
        value = int(digits) if plain else float(digits + (match["exponent"] or ""))
        found.append(-value if negative else value)
    return found


def as_number(value: object) -> float | None:
    """The number that `value` is: an int, a float, or a string that is a plain number; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return float(value)
    return None
