"""The fields of results that hold numbers: what they are called, and the units that their names end in."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from mcpagent.core.placeholders import nested_value
from mcpagent.core.text_records import text_records
from mcpagent.core.values import as_number, is_json_array, is_json_object
from mcpagent.reward.text.amounts import unit_named
from mcpagent.reward.text.phrasing import AnswerContext
from mcpagent.reward.text.vocabulary import field_labels, stem, stems

_FIELD = re.compile(r"([A-Za-z_][\w ]{0,40})[\"']?\s*[:=]\s*[\"']?(-?\d[\d.]*)")


def fields_of_others(number: float | None, context: AnswerContext) -> set[str]:
    """Return the fields of the results that do not have the number, nor does the question name them."""
    fields = [field for result in context.results for field in _number_fields(result.content)]
    of_value = {word for name, told in fields if told == number for word in name}
    labels = {*map(stem, field_labels(context))}
    return labels - of_value - stems(context.said) if of_value else set()


def units_of_field(number: float | None, context: AnswerContext) -> set[str]:
    """Return the unit that the name of the field with the number ends in: price_gbp, inclination_deg."""
    fields = [
        name
        for result in context.results
        for name, told in _named_values(result.content)
        if as_number(told) == number
    ]
    ends = {name.split("_")[-1] for name in fields if "_" in name}
    return {unit for end in ends if (unit := unit_named(end))} if len(ends) == 1 == len({*fields}) else set()


@lru_cache(maxsize=64)
def _named_values(content: str) -> list[tuple[str, Any]]:
    """The numbers of a text that have a name, and what the rows of a table tell by its columns."""
    rows = [record for record in text_records(content) or [] if is_json_object(record)]
    return [*_FIELD.findall(content), *(pair for row in rows for pair in row.items())]


@lru_cache(maxsize=512)
def _number_fields(content: str) -> tuple[tuple[frozenset[str], float | None], ...]:
    told = [(name, as_number(number)) for name, number in _FIELD.findall(content)]
    told += _lengths(nested_value(content))
    return tuple((stems(name.replace("_", " ")), number) for name, number in told)


def _lengths(value: Any) -> Iterator[tuple[str, float]]:
    """The lists of a value in JSON, by their fields, and of how many items they are."""
    if is_json_object(value):
        yield from ((name, float(len(items))) for name, items in value.items() if is_json_array(items))
    for item in value.values() if is_json_object(value) else value if is_json_array(value) else ():
        yield from _lengths(item)
