"""The functions that an expression over results may call (`core.placeholders`), each over JSON values.

None loops but over a list of at most `_MOST_ITEMS` items, and what it gives is a value or such a list again:
an expression of bounded length ends after a bounded number of steps.
"""

from __future__ import annotations

import json
import math
import operator
import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date
from typing import Any

from mcpagent.core.moments import Moment
from mcpagent.core.shown_values import opened_value, text_value
from mcpagent.core.values import is_json_array, is_json_object, numbers_in

_WORD = re.compile(r"\S+")
_DECIMALS = 10  # binary noise such as 0.1 + 0.2 lies far below the tenth decimal
_MOST_ITEMS = 10_000  # of a list
_MOST_CHARS = 1_000_000  # of a text


class PlaceholderError(ValueError):
    """A reference that cannot be parsed or resolved; the message quotes it."""


def unwrapped(shown: Mapping[str, Any]) -> Any:
    """Return what a typed tool returned, of which the text shows no `result` around it: a list of one item
    is shown as that item, a text as it is."""
    return _Returned(shown["text"]) if [*shown] == ["text"] else [shown]


class _Returned(str):
    """The text of a result of which a reference reads `result`."""


def lookup(container: Any, key: str | int) -> Any:
    """Return what a field or an index of a value holds. Raises PlaceholderError."""
    if isinstance(container, str):  # many servers give an object, a list or a table as a text
        container = _opened(container)
    elif isinstance(container, int | float) and isinstance(key, int):
        container = [container]  # a list of one number is shown as that number
    if is_json_object(container) and isinstance(key, str) and key in container:
        return container[key]
    if is_json_array(container) and isinstance(key, int):
        if -len(container) <= key < len(container):
            return container[key]
        raise PlaceholderError(f"index {key} of a list of {len(container)}")
    kind = f"fields {sorted(map(str, container))}" if is_json_object(container) else repr(container)[:80]
    if is_json_object(container) and [*container] == ["text"]:
        kind = f"a text: {container['text']!r:.200}"
    raise PlaceholderError(f"no {key!r} in {kind}")


def format_value(value: Any) -> str:
    """`value` as text: strings as they are, floats by shortest repr without binary noise, else JSON."""
    if isinstance(value, str):
        return value
    if isinstance(value, float):
        return repr(without_noise(value))
    return json.dumps(value, ensure_ascii=False)


def number_of(value: Any) -> int | float:
    """Return a value that is a finite number. Raises PlaceholderError."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise PlaceholderError(f"{value!r} is not a number; number(text, i) reads one out of a text")
    try:
        is_finite = math.isfinite(value)
    except OverflowError:  # a whole number above what floats hold
        is_finite = False
    if not is_finite:
        raise PlaceholderError(f"{value!r:.80} is not finite")
    return value


def without_noise(value: float) -> float:
    """Return a number without what binary fractions add to it."""
    rounded = round(value, _DECIMALS)
    return rounded if abs(value) > 1e-6 else float(f"{value:.{_DECIMALS}g}")


def _round(value: Any, digits: Any = 0) -> int | float:
    places = _index(digits)
    if not 0 <= places <= _DECIMALS:
        raise PlaceholderError(f"round(x, n) takes n from 0 to {_DECIMALS}")
    return round(number_of(value), places) if places > 0 else int(round(number_of(value), places))


def _arguments(values: tuple[Any, ...]) -> list[Any]:
    """Return the arguments of a function, or the list that is the only one."""
    items: Any = values[0] if len(values) == 1 and is_json_array(values[0]) else values
    return _check_size(list(items))


def _ordered(left: Any, right: Any) -> tuple[Any, Any]:
    """Return two values as they are compared: two numbers, or two dates or times of one form."""
    if isinstance(left, str) and isinstance(right, str):
        one, other = Moment.read(left), Moment.read(right)
        if one is None or other is None or (one.shape, one.offset) != (other.shape, other.offset):
            raise PlaceholderError(f"{left!r:.80} and {right!r:.80} are not numbers, nor dates of one form")
        return _clock(one), _clock(other)
    return number_of(left), number_of(right)


def _clock(moment: Moment) -> tuple[str, float]:
    return moment.year + moment.date + moment.time, float(moment.seconds[1:] or 0)


def _extreme(values: tuple[Any, ...], *, least: bool) -> Any:
    items = _arguments(values)
    if not items:
        raise PlaceholderError("min, max and their places need at least one number or date")
    best = items[0]
    for item in items:
        one, other = _ordered(item, best)
        best = item if (one < other if least else one > other) else best
    return best


def _place(value: Any, items: list[Any]) -> int:
    if (count := items.count(value)) != 1:
        raise PlaceholderError(f"{value!r} occurs {count} times, but one place is asked for")
    return items.index(value)


def _sum(*values: Any) -> int | float:
    total = sum(number_of(item) for item in _arguments(values))
    return without_noise(total) if isinstance(total, float) else total


def _list(value: Any) -> list[Any]:
    if isinstance(value, str):
        value = _opened(value)
    if not is_json_array(value):
        raise PlaceholderError(f"{repr(value)[:80]} is not a list")
    return _check_size(list(value))


def _check_size(items: list[Any]) -> list[Any]:
    if len(items) > _MOST_ITEMS:
        raise PlaceholderError(f"a list of over {_MOST_ITEMS} items")
    return items


def _opened(text: str) -> Any:
    """Return the list or object that a text is; of what a typed tool returned, else its lines, since a list
    is shown as a line for each item."""
    nested = opened_value(text)
    if is_json_array(nested) or not isinstance(text, _Returned):
        return nested
    return [text_value(line).get("result", line) for line in text.splitlines()]


def _at(index: Any, *values: Any) -> Any:
    return lookup(_arguments(values), _index(index))


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise PlaceholderError(f"{value!r} is not a text")
    return value


def _rest_of_line(value: Any, index: Any) -> str:
    text = _text(value)
    starts = [match.start() for match in _WORD.finditer(text)]
    return text[lookup(starts, _index(index)) :].split("\n", 1)[0].strip()


def _index(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise PlaceholderError(f"{value!r} is not a whole number")
    return value


def compared(left: Any, sign: str, right: Any) -> bool:
    """Return whether two values stand in a relation (`=`, `!=`, `<`, `<=`, `>`, `>=`): numbers, dates, or for
    the first two any values. Raises PlaceholderError."""
    if sign in ("=", "!="):
        return (_key_of(left) == _key_of(right)) is (sign == "=")
    if sign not in _SIGNS:
        raise PlaceholderError(f"{sign!r} is not one of =, !=, <, <=, >, >=, in, between")
    return _SIGNS[sign](*_ordered(left, right))


def _key_of(value: Any) -> str:
    """Return a value as it is compared: a number and its text are the same, as ids are in two servers."""
    whole = isinstance(value, float) and value.is_integer()
    return format_value(int(value) if whole else value)


def _where(rows: Any, field: Any, sign: Any, *values: Any) -> list[Any]:
    if len(values) != (2 if sign == "between" else 1):
        raise PlaceholderError('where(list, "f", "<", x), or where(list, "f", "between", x, y)')
    keys = {_key_of(item) for item in _list(values[0])} if sign == "in" else set[str]()

    def holds(value: Any) -> bool:
        if sign == "in":
            return _key_of(value) in keys
        if value is None and sign not in ("=", "!="):
            return False
        if sign == "between":
            return compared(values[0], "<=", value) and compared(value, "<=", values[1])
        return compared(value, sign, values[0])

    return [row for row in _list(rows) if holds(lookup(row, field))]


def _row(value: Any) -> Mapping[str, Any]:
    row = _opened(value) if isinstance(value, str) else value
    if not is_json_object(row):
        raise PlaceholderError(f"{repr(value)[:80]} has no fields")
    return row


def _joined_rows(rows: Any, field: Any, others: Any, other_field: Any) -> list[Any]:
    """Return the rows with the fields of those of the others that agree in a field; one that both have is
    named `f_2`."""
    by_key: dict[str, list[Mapping[str, Any]]] = {}
    for other in _list(others):
        by_key.setdefault(_key_of(lookup(other, other_field)), []).append(_row(other))
    made = list[Any]()
    for row in map(_row, _list(rows)):
        for other in by_key.get(_key_of(lookup(row, field)), ()):
            made.append({**{f"{name}_2" if name in row else name: v for name, v in other.items()}, **row})
            _check_size(made)
    return made


def _counts(values: Any) -> Counter[str]:
    return Counter(map(format_value, _list(values)))


def _most_common(values: Any) -> Any:
    items = _list(values)
    ranked = _counts(items).most_common(2)
    if not ranked or (len(ranked) == 2 and ranked[0][1] == ranked[1][1]):
        raise PlaceholderError(f"no one value is the most common: {ranked}")
    return next(item for item in items if format_value(item) == ranked[0][0])


def _best_row(rows: Any, field: Any, *, least: bool) -> Any:
    items = _list(rows)
    values = [lookup(row, field) for row in items]
    return items[_place(_extreme((values,), least=least), values)]


def _sum_products(left: Any, right: Any) -> int | float:
    ones, others = _list(left), _list(right)
    if len(ones) != len(others):
        raise PlaceholderError(f"sum_products of lists of {len(ones)} and {len(others)}")
    return _sum([number_of(a) * number_of(b) for a, b in zip(ones, others, strict=True)])


def _mean(*values: Any) -> int | float:
    items = _arguments(values)
    if not items:
        raise PlaceholderError("mean needs at least one number")
    return without_noise(_sum(items) / len(items))


def _days(first: Any, last: Any) -> int:
    moments = [Moment.read(_text(value)) for value in (first, last)]
    dates = [date.fromisoformat(each.date) for each in moments if each and each.date]
    if len(dates) != 2:
        raise PlaceholderError(f"days({first!r}, {last!r}) needs two dates in ISO form")
    return (dates[1] - dates[0]).days


def _after(text: Any, name: Any) -> str:
    if (count := _text(text).count(_text(name))) != 1:
        raise PlaceholderError(f"{name!r} occurs {count} times in the text, but one place is asked for")
    return text.partition(name)[2].split("\n", 1)[0].strip()


def _in_one_text(items: Any, between: Any) -> str:
    text = _text(between).join(map(format_value, _list(items)))
    if len(text) > _MOST_CHARS:
        raise PlaceholderError(f"a text of {len(text)} characters, at most {_MOST_CHARS}")
    return text


def _quoted(items: Any) -> str:
    return ", ".join("'" + format_value(item).replace("'", "''") + "'" for item in _list(items))


_SIGNS: dict[str, Callable[[Any, Any], bool]] = {
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}
_OF_ONE: dict[str, Callable[[Any], Any]] = {
    "abs": lambda value: abs(number_of(value)),
    "count": lambda items: len(_list(items)),
    "group_count": lambda items: dict(_counts(items)),
}
_OF_TWO: dict[str, Callable[[Any, Any], Any]] = {
    "count_over": lambda items, least: sum(number_of(item) > number_of(least) for item in _list(items)),
    "count_under": lambda items, most: sum(number_of(item) < number_of(most) for item in _list(items)),
    "find": lambda items, value: _place(value, _list(items)),
    "has": lambda items, value: _key_of(value) in map(_key_of, _list(items)),
    "max_by": lambda rows, field: _best_row(rows, field, least=False),
    "min_by": lambda rows, field: _best_row(rows, field, least=True),
    "number": lambda text, index: lookup(numbers_in(_text(text)), _index(index)),
    "pluck": lambda items, name: [lookup(item, name) for item in _list(items)],
    "word": lambda text, index: lookup(_text(text).split(), _index(index)),
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    **_OF_ONE,
    **_OF_TWO,
    "after": _after,
    "argmax": lambda *values: _place(_extreme(values, least=False), _arguments(values)),
    "argmin": lambda *values: _place(_extreme(values, least=True), _arguments(values)),
    "at": _at,
    "days": _days,
    "in_one_text": _in_one_text,
    "join": _joined_rows,
    "max": lambda *values: _extreme(values, least=False),
    "mean": _mean,
    "min": lambda *values: _extreme(values, least=True),
    "most_common": _most_common,
    "quoted": _quoted,
    "rest": _rest_of_line,
    "round": _round,
    "sum": _sum,
    "sum_products": _sum_products,
    "text": format_value,
    "where": _where,
}
