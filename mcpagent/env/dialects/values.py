"""Arguments that a dialect writes as bare text: `5` is a number or a string, as the tool's schema says."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.found import NotACall, decode_json

_MAX_REFERENCES = 8  # of a schema that refers to itself
# Templates write values that are no containers as Python does.
_PYTHON_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}


def typed_values(values: Mapping[str, str], schema: JsonObject | None) -> JsonObject:
    """Each value as the type that the schema gives its key.

    A text that the type does not allow stays what it reads as, so that the schema check names it. Where the
    schema says nothing, what reads as JSON is JSON. Never raises.
    """
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        properties = {}
    return {key: _typed(text, _types(properties.get(key), schema or {})) for key, text in values.items()}


def text_of(value: Any) -> str:
    """How such a dialect writes a value."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _typed(text: str, types: frozenset[str]) -> Any:
    value = _read(text)
    if _type_of(value) & types or not types:
        return value
    return text if "string" in types else value


def _read(text: str) -> Any:
    """What the text reads as; itself where that is nothing else."""
    stripped = text.strip()
    if stripped in _PYTHON_WORDS:
        return _PYTHON_WORDS[stripped]
    try:
        value, end = decode_json(stripped, 0)
    except NotACall:
        return text
    return value if end == len(stripped) else text


def _type_of(value: Any) -> frozenset[str]:
    match value:
        case None:
            return frozenset({"null"})
        case bool():
            return frozenset({"boolean"})
        case int():
            return frozenset({"integer", "number"})
        case float():
            return frozenset({"number", "integer"} if value.is_integer() else {"number"})
        case str():
            return frozenset({"string"})
        case list():
            return frozenset({"array"})
        case _:
            return frozenset({"object"})


def _types(schema: Any, root: JsonObject, depth: int = 0) -> frozenset[str]:
    """The JSON types that a schema allows; empty where it does not say."""
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    if isinstance(reference := schema.get("$ref"), str):
        return _types(_referred(reference, root), root, depth + 1)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        return frozenset().union(*(_type_of(choice) for choice in choices))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(key), list):
            return frozenset().union(*(_types(part, root, depth + 1) for part in parts))
    return frozenset()


def _referred(reference: str, root: JsonObject) -> Any:
    """What `#/$defs/Name` points to; None for anything that is not in this schema."""
    place: Any = root
    for part in reference.removeprefix("#/").split("/"):
        place = place.get(part) if isinstance(place, dict) else None
    return place
