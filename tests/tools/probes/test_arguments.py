"""Arguments made from schemas: valid, small, and carrying the text of whoever looks."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest

from mcpagent.tools.probes.arguments import harmless_arguments, known_values

TEXT = "mcpagent-probe-0123abcd"


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "string"}, TEXT),
        ({"type": "string", "maxLength": 8}, "mcpagent"),
        ({"type": "string", "minLength": 25}, TEXT + "xx"),
        ({"type": "string", "enum": ["UTC", "CET"]}, "UTC"),
        ({"type": "string", "format": "date"}, "2025-01-02"),
        ({"type": "string", "format": "uri"}, f"https://example.com/{TEXT}"),
        ({"type": "string", "default": "main", "examples": ["dev"]}, "dev"),
        ({"const": 7}, 7),
        ({"type": "integer", "minimum": 5, "maximum": 9}, 5),
        ({"type": "integer", "maximum": -3}, -3),
        ({"type": "number", "exclusiveMinimum": 10}, 11),
        ({"type": "integer", "minimum": 5, "multipleOf": 4}, 8),
        ({"type": ["null", "boolean"]}, False),
        ({"anyOf": [{"type": "null"}, {"type": "integer"}]}, 1),
        ({"type": "array", "items": {"$ref": "#/$defs/Pair"}}, [{"left": TEXT}]),
        ({"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 4}, [1, 1]),
        ({"allOf": [{"type": "string"}, {"maxLength": 3}]}, "mcp"),
    ],
)
def test_a_value_fits_its_schema(schema: dict[str, Any], value: object) -> None:
    whole = {
        "type": "object",
        "properties": {"x": schema, "optional": {"type": "string"}},
        "required": ["x"],
        "$defs": {
            "Pair": {
                "type": "object",
                "properties": {"left": {"type": "string"}, "right": {"type": "string"}},
                "required": ["left"],
            }
        },
    }
    arguments = harmless_arguments(whole, text=TEXT)
    assert arguments == {"x": value}
    jsonschema.validate(arguments, whole)


@pytest.mark.parametrize(
    "schema",
    [
        {"type": "string", "pattern": "^[A-Z]{3}$"},
        {"$ref": "https://example.com/elsewhere.json"},
        {"type": "integer", "minimum": 3, "maximum": 2},
    ],
)
def test_none_where_no_valid_value_can_be_made(schema: dict[str, Any]) -> None:
    assert (
        harmless_arguments({"type": "object", "properties": {"x": schema}, "required": ["x"]}, text="t")
        is None
    )


def test_a_recursive_schema_ends() -> None:
    node = {"type": "object", "properties": {"child": {"$ref": "#"}}, "required": ["child"]}
    assert harmless_arguments(node, text="t") is None


def test_names_found_in_an_answer_fill_the_parameters_that_ask_for_them() -> None:
    answer = {"channels": [{"id": "C1", "name": "general"}, {"id": "C2"}], "user": {"name": "ann"}}
    known = known_values(answer)
    assert known == {
        "channel": "C1", "channel_id": "C1", "channel_name": "general", "user": "ann", "user_name": "ann"
    }  # fmt: skip
    wanted = {"type": "object", "properties": {}, "required": ["channel_id", "message"]}
    assert harmless_arguments(wanted, text="hello", values=known) == {"channel_id": "C1", "message": "hello"}
