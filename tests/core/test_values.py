from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.values import as_number, numbers_in, referenced

SCHEMA = {
    "anyOf": [{"$ref": "#/$defs/a~1b"}, {"type": "string"}],
    "$defs": {"a/b": {"type": "integer"}, "m~n": {"type": "boolean"}, "two words": {"type": "null"}},
}


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("The answer is 187.2.", [187.2]),
        ("$1,234,567.50 in total", [1234567.5]),
        ("up 12.5% from -3", [12.5, -3]),
        ("-$7 and $-8 and \u22124", [-7, -8, -4]),
        ("10-20, then 5 - 3", [10, 20, 5, 3]),
        ("1,2,3 and 100,200", [1, 2, 3, 100200]),
        ("on 2025-03-04 it closed at .5", [0.5]),
        ("version 1.2.3 of Q3 in step1", [1.2]),
        ("**42** or 1e3", [42, 1000.0]),
        ("nothing here", []),
    ],
)
def test_numbers_are_read_as_people_write_them(text: str, numbers: list[float]) -> None:
    assert numbers_in(text) == numbers


@given(st.integers(-(10**14), 10**14))
def test_a_written_integer_is_read_back(number: int) -> None:
    assert numbers_in(f"it is {number}.") == [number]
    assert numbers_in(f"it is {number:,}.") == [number]


@given(st.text(max_size=200))
def test_no_text_makes_it_fail(text: str) -> None:
    assert all(isinstance(number, int | float) for number in numbers_in(text))


def test_only_numbers_and_plain_numeric_strings_are_numbers() -> None:
    assert as_number(" 5.50 ") == 5.5
    assert as_number(5) == 5.0
    assert [as_number(value) for value in (True, "five", "5 apples", "", None, [5])] == [None] * 6


@pytest.mark.parametrize(
    ("reference", "schema"),
    [
        ("#", SCHEMA),
        ("#/$defs/a~1b", {"type": "integer"}),
        ("#/$defs/m~0n", {"type": "boolean"}),
        ("#/$defs/two%20words", {"type": "null"}),
        ("#/anyOf/1", {"type": "string"}),
        ("#/anyOf/2", None),
        ("#/anyOf/type", None),
        ("#/$defs/absent/more", None),
        ("https://example.com/other.json#/$defs/a~1b", None),
        (7, None),
    ],
)
def test_a_reference_of_a_schema_into_itself_is_followed_as_rfc_6901_says(
    reference: object, schema: Any
) -> None:
    assert referenced(reference, SCHEMA) == schema
