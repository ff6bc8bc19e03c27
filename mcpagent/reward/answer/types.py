"""Read the value of an answer line by its type: True if it is right, False if wrong, None if out of form."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal
from functools import partial
from typing import Any

from mcpagent.core.answer_line import NO_ANSWER, as_decimal, folded, item_type, roundings
from mcpagent.core.moments import Moment
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck
from mcpagent.core.values import as_number, is_json_array, is_json_object, numbers_equal, refuse_repeated

# A number as JSON has it (RFC 8259, section 6), with a sign before it and thousands in groups of three.
_NUMBER = re.compile(
    r"([-+−]?)((?:[1-9][0-9]{0,2}(?:,[0-9]{3})+|0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][-+]?[0-9]{1,3})?)"
)
_PERCENT = ("%", "percent")
_JSON = ("[", "{")  # begins a line in JSON; no other line does
_YES_NO = {"yes": True, "true": True, "no": False, "false": False}


def read(check: AnswerCheck, value: Any, given: str) -> bool | None:
    """Return whether `given` is `value`, in the form that the type of `check` has."""
    if folded(given) == NO_ANSWER or value is None:
        return value is None and folded(given) == NO_ANSWER
    return _READERS[check.type](check, value, given)


def _number(check: AnswerCheck, value: Any, given: str) -> bool | None:
    if as_number(value) is None:
        return _name(check, value, given)
    match = _NUMBER.fullmatch(_without_unit(given, check.unit))
    if match is None:
        return None
    number = Decimal(match[2].replace(",", "")) * (-1 if match[1] in ("-", "−") else 1)
    gold = as_decimal(value)
    if check.tolerance and numbers_equal(float(gold), float(number), tolerance=check.tolerance):
        return True
    if check.decimals is None:
        return number == gold
    if number not in roundings(number, check.decimals):
        return None  # more decimals than were asked for
    return number in roundings(gold, check.decimals)


def _without_unit(given: str, unit: str | None) -> str:
    """Return an amount without the stated unit before or behind it."""
    for name in _PERCENT if unit in _PERCENT else (unit.strip(),) if unit else ():
        for bare in (given.removesuffix(name), given.removeprefix(name)):
            if bare != given:
                return bare.strip()
    return given


def _date(check: AnswerCheck, value: Any, given: str) -> bool | None:
    gold, said = Moment.read(str(value)), Moment.read(" ".join(given.split()))
    if gold is None or said is None:
        return None
    gold = gold.cut(check.precision)
    if said.shape != gold.shape or (said.offset and not gold.offset):
        return None
    return gold.agrees_with(said)


def _name(_check: AnswerCheck, value: Any, given: str) -> bool | None:
    return folded(format_value(value)) == folded(given)


def _yes_no(_check: AnswerCheck, value: Any, given: str) -> bool | None:
    said = _YES_NO.get(folded(given))
    return None if said is None else said is _YES_NO.get(folded(format_value(value)))


def _choice(check: AnswerCheck, value: Any, given: str) -> bool | None:
    if folded(given) not in {folded(format_value(option)) for option in check.options}:
        return None
    return _name(check, value, given)


def _pairs(check: AnswerCheck, value: Any, given: str) -> bool | None:
    if given[:1] in _JSON:
        told = _parsed(given)
        pairs = [(thing, _item(item)) for thing, item in told.items()] if is_json_object(told) else []
    else:
        parts = [part.partition(": ") for part in given.split(";")]
        pairs = [(thing, item.strip()) for thing, _, item in parts]
    by_name = {folded(thing): item for thing, item in pairs}
    gold = {folded(thing): item for thing, item in value.items()}
    if not pairs or len(by_name) < len(pairs) or not all(by_name.values()):
        return None
    one = _of_items(check, [*value.values()])
    verdicts = [read(one, gold[thing], item) for thing, item in by_name.items() if thing in gold]
    if None in verdicts:
        return None
    return by_name.keys() == gold.keys() and all(verdicts)


def _several(check: AnswerCheck, values: Sequence[Any], given: str, *, in_order: bool) -> bool | None:
    """Return True if a line's items are the values, each as often as it is there; None if it has no items."""
    items = _items(given)
    if items is None:
        return None
    one = _of_items(check, values)
    if any(read(one, values[0], item) is None for item in items):
        return None
    if len(items) != len(values):
        return False
    left = list(values)
    for item in items:
        reach = left[:1] if in_order else left
        place = next((at for at, value in enumerate(reach) if read(one, value, item)), None)
        if place is None:
            return False
        left.pop(place)
    return True


def _of_items(check: AnswerCheck, values: Sequence[Any]) -> AnswerCheck:
    """Return the check of one item; a list of several types, which no question states, is one of names."""
    return check.model_copy(update={"type": item_type(values) or "name"})


def _items(given: str) -> list[str] | None:
    """Return the items of a line: those of a JSON array, else what semicolons separate; None if one is
    empty."""
    told = _parsed(given) if given[:1] in _JSON else given.split(";")
    items = [_item(item) for item in told] if is_json_array(told) else []
    return items if items and all(items) else None


def _parsed(given: str) -> Any:
    try:
        return json.loads(given, object_pairs_hook=refuse_repeated, parse_float=str, parse_int=str)
    except (ValueError, RecursionError):
        return None


def _item(value: Any) -> str:
    return "" if is_json_object(value) or is_json_array(value) else format_value(value).strip()


_READERS: dict[str, Callable[[AnswerCheck, Any, str], bool | None]] = {
    "number": _number,
    "date": _date,
    "name": _name,
    "string": _name,
    "yes_no": _yes_no,
    "choice": _choice,
    "set": partial(_several, in_order=False),
    "list": partial(_several, in_order=True),
    "pairs": _pairs,
}
