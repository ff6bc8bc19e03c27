"""Numbers, JSON and waiting times as people, models and HTTP servers write them."""

from __future__ import annotations

import email.utils
import json
import math
import random
import re
import time
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn, TypeGuard
from urllib.parse import unquote

# Dates carry no quantity: "187.2 on 2025-03-04" ends with the number 187.2.
_ISO_DATE = re.compile(r"(?<![0-9A-Za-z])[0-9]{4}-[0-9]{2}-[0-9]{2}(?![0-9])")
_NUMBER = re.compile(
    r"(?<![\w.])"  # not inside a word ("Q3", "step1") and not the tail of another number ("1.2.3")
    r"(?P<sign>[-+−])?[$€£¥]?(?P<inner>[-−])?"
    r"(?P<digits>(?:[0-9]{1,3}(?:,[0-9]{3})+(?![0-9])|[0-9]+)(?:\.[0-9]+)?|\.[0-9]+)"
    r"(?P<exponent>[eE][-+]?[0-9]{1,3}(?![\w]))?"
)
_PLAIN = re.compile(r"\s*[-+]?(?:[0-9]+\.?[0-9]*|\.[0-9]+)(?:[eE][-+]?[0-9]{1,3})?\s*")
_FLOAT_NOISE = 1e-9
_WHOLE_NOISE = 1e-15  # four times the distance of neighbouring floats, past 2 ** 53
_MAX_INT_DIGITS = 15  # past this a float would not tell neighbours apart, and int() is slow by design


def numbers_in(text: str) -> list[int | float]:
    """Return every number of `text` in order: thousands separators, currency signs and % are read over, a
    minus after a digit or letter is a dash ("10-20" is 10 and 20), ISO dates are skipped."""
    return [value for value, _, _ in located_numbers(text)]


def located_numbers(text: str) -> Iterator[tuple[int | float, int, int]]:
    """Yield (number, start, end) for what `numbers_in` finds."""
    for match in _NUMBER.finditer(_ISO_DATE.sub(_blank, text)):
        negative = match["sign"] in ("-", "−") or match["inner"] is not None
        digits = match["digits"].replace(",", "")
        plain = digits.isdigit() and match["exponent"] is None and len(digits) <= _MAX_INT_DIGITS
        value = int(digits) if plain else float(digits + (match["exponent"] or ""))
        yield (-value if negative else value), match.start(), match.end()


def _blank(match: re.Match[str]) -> str:
    return " " * len(match[0])


def is_json_object(value: object) -> TypeGuard[Mapping[str, Any]]:
    """Return whether a JSON value is an object; its names are strings then."""
    return isinstance(value, Mapping)


def is_json_array(value: object) -> TypeGuard[list[Any] | tuple[Any, ...]]:
    """Return whether a JSON value is an array; frozen records hold arrays as tuples."""
    return isinstance(value, list | tuple)


def scalars(value: Any) -> Iterator[Any]:
    """Yield the values in the objects and arrays of a JSON value; itself if it is neither."""
    if is_json_object(value):
        value = [*value.values()]
    if not is_json_array(value):
        yield value
        return
    for item in value:
        yield from scalars(item)


def referenced(reference: object, root: Any) -> Any:
    """Return what a reference of a JSON schema into itself points to (`#/$defs/Name`, RFC 6901); None for
    any other, and if nothing is there."""
    if not isinstance(reference, str) or not reference.startswith("#"):
        return None
    place: Any = root
    for part in unquote(reference).split("/")[1:]:
        key = part.replace("~1", "/").replace("~0", "~")
        if is_json_array(place):
            place = place[int(key)] if key.isdecimal() and int(key) < len(place) else None
        else:
            place = place.get(key) if is_json_object(place) else None
    return place


def as_number(value: object) -> float | None:
    """Return the number that `value` is: an int, a float, or a string that is a plain number; else None."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int | float):
        return float(value) if abs(value) < 1e300 else None
    if isinstance(value, str) and _PLAIN.fullmatch(value):
        return float(value)
    return None


def numbers_equal(gold: float, given: float, *, tolerance: float = 0.0) -> bool:
    """Return whether two numbers differ by no more than `tolerance` and the noise of floating-point
    arithmetic.

    Whole numbers carry none: identifiers and times in milliseconds are large, and one more is another one.
    Noise is relative, so that small constants are told apart, but what should be 0 may come out as 1e-17.
    """
    if isinstance(gold, int) and isinstance(given, int):
        return abs(gold - given) <= tolerance
    gold, given = float(gold), float(given)
    if abs(gold - given) <= tolerance * (1 + _FLOAT_NOISE):
        return True
    is_whole = gold.is_integer() and given.is_integer()
    noise = _WHOLE_NOISE if is_whole else _FLOAT_NOISE
    return math.isclose(gold, given, rel_tol=noise, abs_tol=0.0 if gold or is_whole else _FLOAT_NOISE)


MAX_JSON_DEPTH = 50  # serialisers and servers fail on deep nesting; no tool asks for it


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not a JSON value")


def refuse_repeated(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return a JSON object (as `object_pairs_hook`). Raises ValueError if it gives a name twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        names = [name for name, _ in pairs]
        raise ValueError(f"{next(n for n in value if names.count(n) > 1)!r} is given twice")
    return value


JSON_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)  # RFC 8259: neither NaN nor Infinity
_MODEL_DECODER = json.JSONDecoder(parse_constant=_refuse_constant, object_pairs_hook=refuse_repeated)


def decode_model_json(text: str, position: int = 0, *, max_depth: int = MAX_JSON_DEPTH) -> tuple[Any, int]:
    """Return the JSON value that begins at `position` and where it ends. Raises ValueError, which says
    what is wrong with it; a name that an object gives twice is wrong, since one of the two would be lost."""
    try:
        value, end = _MODEL_DECODER.raw_decode(text, position)
        # An escaped lone surrogate cannot be stored or sent, and 1e999 decodes to infinity.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        is_deep = _is_deeper(value, max_depth)
    except RecursionError:
        is_deep, value, end = True, None, position
    except json.JSONDecodeError as error:
        raise ValueError(f"invalid JSON: {error.msg} at character {error.pos - position}") from None
    except ValueError as error:
        raise ValueError(f"invalid JSON: {error}") from None
    if is_deep:
        raise ValueError(f"the JSON is nested deeper than {max_depth}")
    return value, end


# What begins or ends a thought or a call in a dialect whose calls are JSON.
_MARK = re.compile(r"<(?=/?(?:tool_call|tool|think)>|\|python_tag\|>)")


def encode_model_json(value: Any) -> str:
    """Return the value as JSON in which no text spells a mark."""
    return escape_marks(json.dumps(value, ensure_ascii=False))


def escape_marks(text: str) -> str:
    """Return JSON or Python with an escape in each mark that a text in it spells: a parser would take it for
    the beginning of a thought or a call."""
    return _MARK.sub(r"\\u003c", text)


def _is_deeper(value: object, limit: int) -> bool:
    items = value.values() if is_json_object(value) else value if is_json_array(value) else None
    return items is not None and (limit == 0 or any(_is_deeper(item, limit - 1) for item in items))


def backoff_s(failures: int, *, first_s: float, max_s: float, asked_s: float | None = None) -> float:
    """Return seconds to wait before the next try, after `failures` in a row: what the server asked for
    (`asked_s`), else `first_s`, doubled each time up to `max_s`, less up to a quarter at random so that many
    clients of one service do not return at once."""
    if asked_s is not None:
        return asked_s
    return min(max_s, first_s * 2.0 ** min(failures - 1, 64)) * random.uniform(0.75, 1.0)


def retry_after_s(headers: Mapping[str, str]) -> float | None:
    """Return seconds that a response asks to wait: `Retry-After-Ms`, as language model APIs have it, else
    what RFC 9110 section 10.2.3 allows, a number or a date. `headers` are looked up without regard to
    case."""
    for name, divisor in (("Retry-After-Ms", 1000.0), ("Retry-After", 1.0)):
        text = headers.get(name, "").strip()
        try:
            seconds = float(text) / divisor
        except ValueError:
            try:
                seconds = email.utils.parsedate_to_datetime(text).timestamp() - time.time()
            except ValueError:
                continue
        if math.isfinite(seconds):
            return max(0.0, seconds)
    return None
