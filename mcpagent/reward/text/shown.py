"""What a result shows: its records, as the model sees them."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import format_value, nested_value, text_value
from mcpagent.core.text_records import text_fields
from mcpagent.core.values import is_json_array, is_json_object
from mcpagent.reward.text.canonical import canonical
from mcpagent.reward.text.phrasing import AnswerContext

_FIELD = re.compile(r"[^:|,;<>]{1,40}(?:(?<!\d)[:=]\s*|[:=]\s+)\S")  # but no clock of a log
_HEAD_END = re.compile(r"\s[-–—|→(]|\s{2,}|:\s|[,;]")
_TIMED = re.compile(r"\W?\d[\d:T./-]{3,}\S* +\S+ +\S")


@dataclass(frozen=True)
class ShownRecord:
    """A record of a result: the texts of its values, and the names of its fields."""

    leaves: tuple[str, ...] = ()
    names: tuple[str, ...] = ()

    def __add__(self, other: ShownRecord) -> ShownRecord:
        return ShownRecord(self.leaves + other.leaves, self.names + other.names)

    @property
    def texts(self) -> tuple[str, ...]:
        """Everything that it says."""
        return self.leaves + self.names


@lru_cache(maxsize=512)
def shown_records(content: str) -> tuple[ShownRecord, ...]:
    """Return the records of a shown result: the objects of lists with what stands around them, the rows of a
    table, the lines and the blocks of lines of any other text."""
    value = text_value(content)
    if [*value] == ["text"]:
        nested = nested_value(content)
        if isinstance(nested, str) and "|" in nested:
            nested = text_fields(nested) or nested  # of a table with a row for each field
        if isinstance(nested, str) or _is_log(nested):
            return tuple(_of_prose(content))
        value = nested
    return tuple(dict.fromkeys(_records(value, ShownRecord())))


def _is_log(items: Any) -> bool:
    """Whether lines are no names but begin with a time each, and tell something of their own."""
    return is_json_array(items) and all(isinstance(item, str) and _TIMED.match(item) for item in items)


def _of_prose(content: str) -> Iterator[ShownRecord]:
    for block in content.split("\n\n"):
        lines = tuple(canonical(line.strip()) for line in block.splitlines() if line.strip())
        if all(map(_FIELD.match, lines[1:])):  # a title, and fields below it
            yield ShownRecord(lines)
    yield from (ShownRecord((canonical(line),)) for line in content.splitlines() if line.strip())


def _records(value: Any, around: ShownRecord) -> Iterator[ShownRecord]:
    """The records of a JSON value. One of a list has what stands around the list, not the other items."""
    if isinstance(value, str):
        nested = nested_value(value)
        if not isinstance(nested, str):
            yield from _records(nested, around)
            return
    flat = around + _flat(value)
    lists = list(_lists(value))
    if not lists or flat != around:
        yield flat
    for items in lists:
        for name, item in items:
            yield from _records(item, flat + ShownRecord((name,) if name else ()))


def _flat(value: Any) -> ShownRecord:
    """The values that are not in a list of objects, and the names of their fields."""
    if is_json_object(value):
        if _is_keyed(value):
            return ShownRecord()
        names = ShownRecord(names=tuple(canonical(str(name).replace("_", " ")) for name in value))
        return sum(map(_flat, value.values()), names)
    if is_json_array(value):
        return ShownRecord() if any(map(is_json_object, value)) else sum(map(_flat, value), ShownRecord())
    return ShownRecord((canonical(format_value(value)),))


def _lists(value: Any) -> Iterator[list[tuple[str, Any]]]:
    """The lists of objects, and the objects by name, that are in a value but not in one another."""
    if is_json_object(value):
        if _is_keyed(value):
            yield list(value.items())
        else:
            for item in value.values():
                yield from _lists(item)
    elif is_json_array(value) and any(is_json_object(item) for item in value):
        yield [("", item) for item in value]


def _is_keyed(value: Mapping[str, Any]) -> bool:
    """An object of objects by name or identifier, rather than fields."""
    return len(value) > 1 and all(is_json_object(item) for item in value.values())


@lru_cache(maxsize=256)
def line_heads(content: str) -> frozenset[str]:
    """Return what each line of a text begins with, before what it tells of that, without letter case."""
    return frozenset(
        _HEAD_END.split(line, maxsplit=1)[0].strip(" *-").casefold() for line in content.splitlines()
    )


def shown_leaves(context: AnswerContext) -> frozenset[str]:
    """Return the values of the records that were shown."""
    return frozenset(leaf for result in context.results for leaf in _leaves(result.content))


@lru_cache(maxsize=256)
def _leaves(content: str) -> frozenset[str]:
    return frozenset(leaf for record in shown_records(content) for leaf in record.leaves)
