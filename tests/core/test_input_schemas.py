"""Schemas as models are shown them: references written out, cut if they lead back, nothing else lost."""

from __future__ import annotations

import json
from typing import Any

import jsonschema
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.input_schemas import parameter_names, shown_schema

QUERY = {"type": "object", "properties": {"text": {"type": "string"}, "limit": {"type": "integer"}}}


def test_what_a_reference_leads_to_stands_in_its_place_under_its_own_description() -> None:
    schema = {
        "type": "object",
        "properties": {
            "one": {"$ref": "#/$defs/Query", "description": "What to look for."},
            "many": {"type": "array", "items": {"$ref": "#/$defs/Query"}},
            "maybe": {"anyOf": [{"$ref": "#/$defs/Query"}, {"type": "null"}], "title": "Maybe"},
            "again": {"$ref": "#/properties/many/items"},
        },
        "$defs": {"Query": {**QUERY, "title": "Query"}},
    }
    assert shown_schema(schema) == {
        "type": "object",
        "properties": {
            "one": {**QUERY, "description": "What to look for."},
            "many": {"type": "array", "items": QUERY},
            "maybe": {"anyOf": [QUERY, {"type": "null"}]},
            "again": QUERY,
        },
    }
    assert parameter_names(schema) == ["one", "text", "limit", "many", "maybe", "again"]


def test_parameters_and_values_that_are_called_as_a_keyword_stay() -> None:
    kept = {
        "properties": {
            name: {"type": "string"} for name in ("$ref", "$defs", "title", "definitions", "enum")
        },
        "required": ["$ref", "title"],
        "default": {"title": "x", "$ref": "#/nowhere"},
    }
    assert shown_schema({**kept, "title": "All"}) == kept


def test_a_reference_that_leads_back_is_cut_with_a_note_and_one_to_nowhere_stays() -> None:
    node = {"type": "object", "properties": {"kids": {"type": "array", "items": {"$ref": "#/$defs/Node"}}}}
    shown = shown_schema({"properties": {"tree": {"$ref": "#/$defs/Node"}}, "$defs": {"Node": node}})
    kids = shown["properties"]["tree"]["properties"]["kids"]
    assert kids["items"] == {"type": "object", "description": "(Node again, as above)"}
    assert shown_schema({"properties": {"a": {"$ref": "#"}}})["properties"]["a"]["properties"]["a"] == {
        "description": "(the whole schema again, as above)"
    }
    assert shown_schema({"$ref": "#"}) == {"description": "(the whole schema again, as above)"}
    assert shown_schema({"$ref": "#/nowhere"}) == {"$ref": "#/nowhere"}


def test_references_that_multiply_and_schemas_without_end_are_cut() -> None:
    twice = {
        f"a{n}": {"properties": {side: {"$ref": f"#/$defs/a{n + 1}"} for side in ("l", "r")}}
        for n in range(300)
    }
    assert len(json.dumps(shown_schema({"$ref": "#/$defs/a0", "$defs": twice}))) < 100_000  # of 2 ** 300
    deep: dict[str, Any] = {"type": "string"}
    for _ in range(400):
        deep = {"properties": {"below": deep}}
    assert "too deep to be shown" in json.dumps(shown_schema(deep))


_LEAVES = st.sampled_from(["string", "integer", "boolean", "null"]).map(lambda kind: {"type": kind})
_PLACES = st.sampled_from([f"#/$defs/d{n}" for n in range(3)]).map(lambda place: {"$ref": place})
_SCHEMAS = st.recursive(
    _LEAVES | _PLACES,
    lambda inner: (
        st.dictionaries(st.sampled_from("abc"), inner, max_size=3).map(
            lambda parts: {"type": "object", "properties": parts}
        )
        | inner.map(lambda item: {"type": "array", "items": item})
        | st.lists(inner, min_size=1, max_size=2).map(lambda parts: {"anyOf": parts})
    ),
    max_leaves=6,
)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(0, 9) | st.sampled_from("xy"),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from("abc"), inner, max_size=3),
    max_leaves=6,
)


@given(_SCHEMAS, st.lists(_SCHEMAS, min_size=3, max_size=3), _VALUES)
def test_what_is_shown_allows_the_same_values_if_nothing_leads_back(
    schema: dict[str, Any], parts: list[dict[str, Any]], value: Any
) -> None:
    """d0 may refer to d1 and d2, d1 to d2: no circles."""
    definitions = {f"d{n}": part for n, part in enumerate(parts)}
    for n, part in definitions.items():
        if any(f"#/$defs/d{m}" in json.dumps(part) for m in range(int(n[1:]) + 1)):
            definitions[n] = {"type": "string"}
    whole = {**schema, "$defs": definitions}
    shown = shown_schema(whole)
    assert "$ref" not in json.dumps(shown) and "$defs" not in shown
    assert jsonschema.Draft202012Validator(shown).is_valid(value) == jsonschema.Draft202012Validator(
        whole
    ).is_valid(value)
