"""Harmless arguments that satisfy a tool's input schema, for calls whose only purpose is to look."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.values import referenced
from mcpagent.tools.schemas import SchemaCheck, schema_problem

_MOST_ITEMS, _MOST_CHARS = 100, 10_000  # a schema that asks for more gets no value
_DEEPEST = 12  # a recursive schema ends here
_REFERENCES = 6  # that are followed, one in the other
_FORMATS = {
    "date": "2025-01-02",
    "date-time": "2025-01-02T00:00:00Z",
    "time": "00:00:00Z",
    "duration": "P1D",
    "uuid": "00000000-0000-4000-8000-000000000000",
    "ipv4": "192.0.2.1",  # RFC 5737: for documentation, never answered
    "ipv6": "2001:db8::1",
    "hostname": "example.com",
}


def harmless_arguments(
    schema: JsonObject, *, text: str, values: Mapping[str, Any] | None = None
) -> JsonObject | None:
    """Return the smallest valid arguments: required properties only, each the schema's own constant, enum
    value, default or example if it has one, else one of `values` under the property's name, else a small
    value of its type, `text` for a string. None if none can be made (a pattern, a condition)."""
    if schema_problem(schema) is not None:
        return None
    arguments = _Maker(schema, text, values or {}).value(schema, "", 0)
    if not isinstance(arguments, dict) or SchemaCheck(schema).fault(arguments) is not None:
        return None
    return arguments


def known_values(answer: Any) -> dict[str, Any]:
    """Return what an answer says about its things, by the names that parameters use for them.

    `{"channels": [{"id": "C1", "name": "general"}]}` gives `channel_id`, `channel_name` and `channel` (the
    id). The first thing of a kind wins.
    """
    values: dict[str, Any] = {}
    pending = [answer]
    while pending:
        node = pending.pop(0)
        if isinstance(node, list):
            pending += node
        if not isinstance(node, dict):
            continue
        for name, below in node.items():
            pending.append(below)
            thing = below[0] if isinstance(below, list) and below else below
            if isinstance(thing, dict):
                for key, value in _of_thing(name.removesuffix("s"), thing).items():
                    values.setdefault(key, value)
    return values


def _of_thing(kind: str, thing: JsonObject) -> dict[str, Any]:
    scalars = {key: value for key, value in thing.items() if isinstance(value, (str, int, float))}
    named = {f"{kind}_{key}": value for key, value in scalars.items()}
    identity = scalars.get("id", scalars.get("name"))
    return named if identity is None else {kind: identity, **named}


class _Maker:
    def __init__(self, root: JsonObject, text: str, values: Mapping[str, Any]) -> None:
        self._root = root
        self._text = text
        self._values = values

    def value(self, schema: Any, name: str, depth: int) -> Any:
        if not isinstance(schema, dict) or depth > _DEEPEST:
            return None
        for said in (schema, schema := resolved(schema, self._root)):
            if "const" in said:
                return said["const"]
            for key in ("enum", "examples"):
                if isinstance(said.get(key), list) and said[key]:
                    return said[key][0]
            if "default" in said:
                return said["default"]
        return self._of_type(schema, name, depth)

    def _of_type(self, schema: JsonObject, name: str, depth: int) -> Any:
        match schema.get("type", "object" if "properties" in schema else "string"):
            case "object":
                properties = schema.get("properties", {})
                return {
                    key: self.value(properties.get(key, {}), key, depth + 1)
                    for key in schema.get("required", ())
                }
            case "array":
                # One item although none would do: an empty list asks a tool to do nothing.
                length = min(max(1, schema.get("minItems", 1)), schema.get("maxItems", 1), _MOST_ITEMS)
                items = schema.get("items", {})
                return [self.value(items, name.removesuffix("s"), depth + 1) for _ in range(length)]
            case "string":
                return self._string(schema, name)
            case "integer" | "number":
                return _number(schema)
            case "boolean":
                return False
            case _:
                return None

    def _string(self, schema: JsonObject, name: str) -> str:
        form = schema.get("format")
        if form in _FORMATS:
            return _FORMATS[form]
        if form in ("uri", "url"):
            return f"https://example.com/{self._text}"
        if form == "email":
            return f"{self._text}@example.com"
        if isinstance(self._values.get(name), str):
            return self._values[name]
        return self._text[: schema.get("maxLength")].ljust(min(schema.get("minLength", 0), _MOST_CHARS), "x")


def _number(schema: JsonObject) -> int | float:
    """Return the number nearest to 1 within the bounds."""
    high = schema.get("maximum", schema.get("exclusiveMaximum", 3) - 1)
    low = schema.get("minimum", schema.get("exclusiveMinimum", min(0, high) - 1) + 1)
    value = max(low, min(high, 1))
    step = schema.get("multipleOf")
    return value if step is None else -(-value // step) * step


def resolved(schema: Any, root: JsonObject, depth: int = 0) -> JsonObject:
    """Return a schema with its `$ref` followed, `allOf` merged and the first of `anyOf` or `oneOf` that is
    not null taken; alternatives that are single values become an `enum`."""
    if not isinstance(schema, dict) or depth > _REFERENCES:
        return {}
    if "$ref" in schema:
        node = referenced(schema["$ref"], root)
        rest = {key: value for key, value in schema.items() if key != "$ref"}
        return resolved({**(node if isinstance(node, dict) else {}), **rest}, root, depth + 1)
    for part in schema.get("allOf", ()):
        schema = {**resolved(part, root, depth + 1), **{k: v for k, v in schema.items() if k != "allOf"}}
    for word in ("anyOf", "oneOf"):
        if parts := schema.get(word):
            usable = [resolved(part, root, depth + 1) for part in parts]
            usable = [part for part in usable if part.get("type") != "null"]
            constants = [part["const"] for part in usable if "const" in part]
            first = (
                {"type": "string", "enum": constants}
                if len(constants) > 1
                else (usable or [{"type": "null"}])[0]
            )
            schema = {**first, **{k: v for k, v in schema.items() if k not in (word, "default")}}
    kind = schema.get("type")
    if isinstance(kind, list):
        schema = {**schema, "type": next((k for k in kind if k != "null"), "null")}
    return schema
