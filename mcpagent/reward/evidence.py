"""What an episode has seen: which call showed a fact about the thing that was asked for.

A fact is shown if its value stands in what the model was shown of an ordinary result, about the right
thing: each of its identifiers stands in the arguments of that call, or in the same record as the value.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import (
    PlaceholderError,
    format_value,
    nested_value,
    resolve_references,
    text_value,
)
from mcpagent.core.tasks import EvidenceFact
from mcpagent.core.values import is_json_array, is_json_object
from mcpagent.reward.canonical import canonical
from mcpagent.reward.reading import says
from mcpagent.reward.record import RecordedCall

_FIELD = re.compile(r"[^:|,;<>]{1,40}(?:(?<!\d)[:=]\s*|[:=]\s+)\S")  # but no clock of a log
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


def showing_calls(
    facts: Sequence[EvidenceFact], calls: Sequence[RecordedCall], results: Mapping[str, Any]
) -> list[int | None]:
    """Return for each fact the first of `calls` (by index) that shows it; None if none does. `results`
    resolves step references of the values."""
    return [_first_showing(fact, calls, results) for fact in facts]


def _first_showing(
    fact: EvidenceFact, calls: Sequence[RecordedCall], results: Mapping[str, Any]
) -> int | None:
    try:
        value = resolve_references(fact.value, results)
    except PlaceholderError:
        return None
    for index, made in enumerate(calls):
        if made.was_made and not made.result.is_error and shows(value, fact.about, made):
            return index
    return None


def shows(value: Any, about: Sequence[str | Sequence[str]], made: RecordedCall) -> bool:
    """Return whether the result of a call shows `value` about what `about` identifies."""
    told = " \n ".join(format_value(leaf) for leaf in _leaves(made.call.arguments))
    left = [[names] if isinstance(names, str) else list(names) for names in about]
    left = [names for names in left if not any(says(name, told) for name in names)]
    if value is None or value == "":
        return False
    return any(
        any(_is_said(value, leaf) for leaf in record.leaves)
        and all(any(says(name, text) for text in record.texts for name in names) for names in left)
        for record in shown_records(made.result.content)
    )


def _is_said(value: Any, leaf: str) -> bool:
    return leaf == format_value(value) if isinstance(value, bool) else says(value, leaf)


@lru_cache(maxsize=512)
def shown_records(content: str) -> tuple[ShownRecord, ...]:
    """Return the records of a shown result: the objects of lists with what stands around them, the rows of a
    table, the lines and the blocks of lines of any other text."""
    value = text_value(content)
    if [*value] == ["text"]:
        nested = nested_value(content)
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


def _leaves(value: Any) -> Iterator[Any]:
    if is_json_object(value):
        for item in value.values():
            yield from _leaves(item)
    elif is_json_array(value):
        for item in value:
            yield from _leaves(item)
    else:
        yield value
