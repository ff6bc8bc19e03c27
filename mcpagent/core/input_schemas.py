"""Input schemas of tools as models are shown them: with references written out, and what they name."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.values import is_json_array, is_json_object, referenced

BY_NAME = frozenset({"properties", "patternProperties", "dependentSchemas"})  # hold schemas by name
_DEFINITIONS = frozenset({"$defs", "definitions"})
_DATA = frozenset({"enum", "const", "default", "examples"})  # hold values, not schemas
_MAX_PARTS = 2_000  # of a schema that is written out: references to references multiply
_MAX_DEPTH = 60  # of parts within parts: past it no reference is followed, past twice of it nothing is shown


def shown_schema(schema: JsonObject) -> JsonObject:
    """Return a schema as models are shown it: without its titles, and with what its references lead to in
    their place, since chat templates know no references. One that leads back into itself, or too far, is
    cut with a note; one that leads nowhere stays."""
    return _Writer(schema).part(schema, ())


def parameter_names(schema: JsonObject) -> list[str]:
    """Return the names of all parameters of a schema, at any depth, each once."""
    return list(dict.fromkeys(path[-1] for path in parameter_paths(shown_schema(schema))))


def parameter_paths(schema: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield where each parameter of a schema without references is defined: keys and indices from its
    root."""
    if is_json_array(schema):
        for index, part in enumerate(schema):
            yield from parameter_paths(part, (*path, index))
    elif is_json_object(schema):
        for key, value in schema.items():
            if key in BY_NAME and is_json_object(value):
                for name, part in value.items():
                    if key == "properties":
                        yield (*path, key, name)
                    yield from parameter_paths(part, (*path, key, name))
            elif key not in _DATA:
                yield from parameter_paths(value, (*path, key))


class _Writer:
    def __init__(self, root: JsonObject) -> None:
        self._root, self._parts = root, 0

    def part(self, schema: Any, inside: tuple[str, ...], depth: int = 0) -> Any:
        """Return a part of the schema that the references `inside` have led to, `depth` parts below its
        root."""
        if is_json_array(schema):
            return [self.part(item, inside, depth + 1) for item in schema]
        if not is_json_object(schema):
            return schema
        self._parts += 1
        reference = str(schema.get("$ref"))
        target = referenced(schema.get("$ref"), self._root)
        if is_json_object(target):
            beside = {key: value for key, value in schema.items() if key != "$ref"}
            if reference in inside or depth > _MAX_DEPTH or self._parts > _MAX_PARTS:
                return self.part(_cut(target, reference, beside), inside, depth + 1)
            return self.part({**target, **beside}, (*inside, reference), depth + 1)
        if depth > 2 * _MAX_DEPTH:
            return {"description": "too deep to be shown"}
        return {
            key: self._keyword(key, value, inside, depth + 1)
            for key, value in schema.items()
            if key not in _DEFINITIONS and not (key == "title" and isinstance(value, str))
        }

    def _keyword(self, key: str, value: Any, inside: tuple[str, ...], depth: int) -> Any:
        if key in BY_NAME and is_json_object(value):
            return {name: self.part(part, inside, depth) for name, part in value.items()}
        return value if key in _DATA else self.part(value, inside, depth)


def _cut(target: Mapping[str, Any], reference: str, beside: JsonObject) -> JsonObject:
    """Return what stands for a reference that is not followed: the kind of its target, and a note."""
    kind = {"type": target["type"]} if isinstance(target.get("type"), str) else {}
    described = [text for text in [beside.get("description")] if isinstance(text, str)]
    note = f"({reference.rpartition('/')[2].strip('#') or 'the whole schema'} again, as above)"
    return {**kind, **beside, "description": " ".join([*described, note])}
