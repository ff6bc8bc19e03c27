"""What a dialect is made of, what its parser finds, and arguments that are written as bare text."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ParseFailure, ToolCall
from mcpagent.core.values import decode_model_json, referenced

_MAX_RAW_CHARS = 2000  # a failure is shown to the model and stored; a runaway text need not be
# Each failure is answered, and reading on after one may mean reading the same text again: this bounds both.
_MAX_FAILURES = 32
_SPACE = re.compile(r"\s*")
# The keys of a call that is a JSON object. By the others a text is not taken for one.
_NAME_KEYS = ("name", "tool")
ARGUMENT_KEYS = ("arguments", "parameters")
_OTHER_ARGUMENT_KEYS = ("args", "params", "input", "kwargs")
_CALL_FORM = '{"name": ..., "arguments": {...}}'


class NotACall(Exception):
    """The reason why something that begins like a call is not one."""


class ParsedCalls:
    """Calls and failures in the order of the text. `schema_of` gives the input schema of a tool by the name
    that the model uses, None if it is not offered."""

    def __init__(self, *, next_id: int, schema_of: Callable[[str], JsonObject | None]) -> None:
        self._next_id = next_id
        self.schema_of = schema_of
        self.calls: list[ToolCall] = []
        self.failures: list[ParseFailure] = []

    def __bool__(self) -> bool:
        return bool(self.calls or self.failures)

    @property
    def is_full(self) -> bool:
        """True at as many failures as one model step may have: reading on would not end soon enough."""
        return len(self.failures) >= _MAX_FAILURES

    def add(self, raw: str, name: object, arguments: object) -> None:
        """Add the call, or the failure that it is."""
        try:
            call = ToolCall(
                id=f"c{self._next_id}", tool=_checked_name(name), arguments=_checked_arguments(arguments)
            )
        except NotACall as problem:
            self.fail(raw, str(problem))
            return
        self._next_id += 1
        self.calls.append(call)

    def add_object(self, raw: str, value: object) -> None:
        """Add the call that a JSON object is: a name, its arguments and nothing else that is not used; or the
        failure that it is."""
        try:
            name, arguments = self._parts(value)
        except NotACall as problem:
            self.fail(raw, str(problem))
        else:
            self.add(raw, name, arguments)

    def _parts(self, value: object) -> tuple[object, object]:
        if not isinstance(value, dict):
            raise NotACall(f"expected {_CALL_FORM}")
        names = [key for key in _NAME_KEYS if key in value]
        name = value[names[0]] if names else None
        schema = (self.schema_of(name.strip()) if isinstance(name, str) else None) or {}
        properties = schema.get("properties")
        takes = properties.keys() if isinstance(properties, dict) else frozenset[str]()
        keys = [key for key in ARGUMENT_KEYS if key in value]
        keys += [key for key in _OTHER_ARGUMENT_KEYS if key in value and key not in takes]
        for given in (names, keys):
            if len(given) > 1:
                raise NotACall(f"the call has both {given[0]!r} and {given[1]!r}: expected {_CALL_FORM}")
        arguments = value[keys[0]] if keys else {}
        labels = {"type"} if value.get("type") == "function" else set[str]()
        # APIs give a call an id. Without arguments, or if they lack the tool's own `id`, it may be that.
        if keys and ("id" not in takes or (isinstance(arguments, dict) and "id" in arguments)):
            labels.add("id")
        if unused := value.keys() - {*names, *keys, *labels}:
            listed = ", ".join(map(repr, sorted(unused)))
            raise NotACall(f"the call has {listed} next to its name: expected {_CALL_FORM}")
        return name, arguments

    def fail(self, raw: str, reason: str) -> None:
        """Add a failure; of its text only the beginning is kept."""
        self.failures.append(ParseFailure(raw=raw[:_MAX_RAW_CHARS], reason=reason))

    def fail_block(self, body: str, start: int, position: int, tags: tuple[str, str], reason: str) -> int:
        """Fail the block between two tags that stands at `start`, up to where it is closed after `position`,
        which is returned. That it never is would be the reason."""
        opening, closing = tags
        end = end_of(body, position, closing)
        is_closed = body.endswith(closing, start, end)
        self.fail(body[start:end], reason if is_closed else f"{opening} is never closed")
        return end


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise NotACall('the call has no "name"')
    return name.strip()


def _checked_arguments(arguments: object) -> JsonObject:
    if isinstance(arguments, str):  # OpenAI-style: the arguments as a JSON string
        text = arguments.strip()
        arguments, end = decode_json(text, 0) if text else ({}, 0)
        if end < len(text):
            raise NotACall("text after the JSON of the arguments")
    if not isinstance(arguments, dict):
        raise NotACall("the arguments must be a JSON object")
    return arguments


def end_of(body: str, position: int, tag: str) -> int:
    """Return where `tag` ends that comes next; the end of the text if none does."""
    end = body.find(tag, position)
    return len(body) if end < 0 else end + len(tag)


def skip_space(body: str, position: int) -> int:
    """Return the first position from `position` on that is not white space."""
    return _SPACE.match(body, position).end()  # type: ignore[union-attr]  # it matches the empty string


def decode_json(text: str, position: int) -> tuple[Any, int]:
    """Return the JSON value at `position` (after white space) and where it ends. Raises NotACall."""
    try:
        return decode_model_json(text, skip_space(text, position))
    except ValueError as error:
        raise NotACall(str(error)) from None


# From the text, where a block starts, and where its opening tag ends, to where reading goes on.
BlockReader = Callable[[str, int, int, ParsedCalls], int]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One way of writing calls.

    `blocks` are read wherever their opening tag stands, `strays` are tags that mean a broken call if no
    block has taken them; around both there may be text. `read_text` is asked if neither was found, and
    gives what is left of the text once its calls are out. `write` is what the parser reads back as the same
    calls, given their names and arguments. `thinking` are the tags around a thought.

    If a turn is made of messages of its own, each with an addressee, `read_turn` reads it instead of all
    that, and gives the thought and the text; `frame` writes it, of a text and of calls as `write` writes
    them.
    """

    name: str
    write: Callable[[Sequence[tuple[str, JsonObject]]], str]
    blocks: Mapping[str, BlockReader] = field(default_factory=dict)
    strays: tuple[str, ...] = ()
    read_text: Callable[[str, ParsedCalls], str] | None = None
    thinking: tuple[str, str] = ("<think>", "</think>")
    read_turn: Callable[[str, ParsedCalls], tuple[str | None, str]] | None = None
    frame: Callable[[str, str], str] = lambda text, calls: "\n".join(part for part in (text, calls) if part)

    def turn(self, text: str, calls: Sequence[tuple[str, JsonObject]]) -> str:
        """Return a whole turn: the text, then the calls."""
        return self.frame(text, self.write(calls) if calls else "")

    @property
    def instruction(self) -> str:
        """Return what tells a model how to call: examples of the writer, so that the parser reads them."""
        one, two = (self.write([("TOOL_NAME", {"ARGUMENT_NAME": "VALUE"})] * count) for count in (1, 2))
        named = "with the name and the arguments of one of these tools"
        return f"To call a tool, write\n{one}\n{named}; several calls at once:\n{two}"


def each_call(
    write_call: Callable[[str, JsonObject], str], *, between: str = "\n"
) -> Callable[[Sequence[tuple[str, JsonObject]]], str]:
    """Return the `Dialect.write` of calls that stand one after the other, each by its name and arguments."""
    return lambda calls: between.join(write_call(name, arguments) for name, arguments in calls)


_MAX_REFERENCES = 8  # of a schema that refers to itself
# Templates write values that are not containers as Python does.
_PYTHON_WORDS: Mapping[str, Any] = {"True": True, "False": False, "None": None}


def typed_values(values: Mapping[str, str], schema: JsonObject | None) -> JsonObject:
    """Return each value as the type that the schema gives its key.

    A text that the type does not allow stays what it reads as, so that the schema check names it. If the
    schema says nothing, what reads as JSON is JSON. Never raises.
    """
    properties = (schema or {}).get("properties")
    if not isinstance(properties, dict):
        properties = {}
    return {key: _typed(text, _types(properties.get(key), schema or {})) for key, text in values.items()}


def text_of(value: Any) -> str:
    """Return how such a dialect writes a value."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _typed(text: str, types: frozenset[str]) -> Any:
    value = _read(text)
    if _type_of(value) & types or not types:
        return value
    return text if "string" in types else value


def _read(text: str) -> Any:
    """Return the value that the text reads as; the text itself if it is only text, which is written without
    quotes: those that it has are its own."""
    stripped = text.strip()
    if stripped in _PYTHON_WORDS:
        return _PYTHON_WORDS[stripped]
    try:
        value, end = decode_json(stripped, 0)
    except NotACall:
        return text
    return value if end == len(stripped) and not isinstance(value, str) else text


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
    """Return the JSON types that a schema allows; empty if it does not say."""
    if not isinstance(schema, dict) or depth > _MAX_REFERENCES:
        return frozenset()
    named = schema.get("type")
    if isinstance(named, str):
        return frozenset({named})
    if isinstance(named, list):
        return frozenset(name for name in named if isinstance(name, str))
    if "$ref" in schema:
        return _types(referenced(schema["$ref"], root), root, depth + 1)
    choices = schema.get("enum", [schema["const"]] if "const" in schema else None)
    if isinstance(choices, list):
        return frozenset().union(*(_type_of(choice) for choice in choices))
    for key in ("anyOf", "oneOf", "allOf"):
        if isinstance(parts := schema.get(key), list):
            return frozenset().union(*(_types(part, root, depth + 1) for part in parts))
    return frozenset()
