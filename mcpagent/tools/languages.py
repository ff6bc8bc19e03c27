"""Which arguments of a tool are a language that its server executes; of SQL, only what reads is sent."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import is_json_array, is_json_object

_LANGUAGES = frozenset(
    {"cypher", "gremlin", "python", "javascript", "typescript", "bash", "shell", "powershell", "lua", "ruby"}
)
_PROGRAMS = frozenset({"code", "script", "command"})  # as the whole name of a parameter of any length
_OF_A_SCHEMA = ("description", "title", "format", "contentMediaType")
_WORD = re.compile(r"[A-Za-z]+")
_NAME_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")  # of camelCase too


def takes_language(spec: ToolSpec) -> bool:
    """Return whether a tool may execute what it is told: a parameter is a program, or a text of any kind
    while the tool speaks of a language (SQL, GraphQL, Python, a shell ...)."""
    free = [(name, schema) for name, schema in _properties(spec.input_schema) if _is_free(schema)]
    if not free:
        return False
    if any(
        name.lower() in _PROGRAMS and not {"pattern", "maxLength"} & schema.keys() for name, schema in free
    ):
        return True
    names = [word for name in (spec.name, *(name for name, _ in free)) for word in _NAME_WORD.findall(name)]
    told = " ".join((spec.description, *_texts(spec.input_schema, inside=True)))
    return any(map(_is_language, (*names, *_WORD.findall(told))))


@dataclass(frozen=True)
class SqlGuard:
    """A guard that holds back every call of a tool whose SQL can do more than read.

    A parameter is SQL if its name or schema says so. If none does, but the tool speaks of SQL, each text may
    be it; only names pass then too.
    """

    spec: ToolSpec

    def refusal(self, arguments: JsonObject) -> str | None:
        """Return why the call is not sent; None if it is."""
        for names, text in _strings(arguments):
            is_sql = any("sql" in name.lower() or name in self.declared for name in names)
            if not (is_sql or self._is_doubtful):
                continue
            from mcpagent.tools.plain_select import is_name, why_not_plain  # sqlglot takes a while to import

            if not is_sql and is_name(text):
                continue
            if why := why_not_plain(text):
                return f"{'.'.join(names)} may only be one plain SELECT: {why}"
        return None

    @property
    def is_needed(self) -> bool:
        """True if the tool takes SQL, or may."""
        return bool(self.declared) or self._is_doubtful

    @cached_property
    def declared(self) -> frozenset[str]:
        """The parameters that are SQL by their names or schemas."""
        free = ((name, schema) for name, schema in _properties(self.spec.input_schema) if _is_free(schema))
        return frozenset(
            name for name, schema in free if "sql" in name.lower() or _speaks_of_sql(_texts(schema))
        )

    @cached_property
    def _is_doubtful(self) -> bool:
        told = (self.spec.description, *_texts(self.spec.input_schema, inside=True))
        return not self.declared and ("sql" in self.spec.name.lower() or _speaks_of_sql(told))


def _speaks_of_sql(texts: Iterable[str]) -> bool:
    words = {word for text in texts for word in _WORD.findall(text)}
    return "SELECT" in words or "sql" in map(str.lower, words)


def _is_language(word: str) -> bool:
    """Return True if a word is the name of a query language, or SQL itself; MySQL and PostgreSQL are not."""
    low = word.lower()
    return word == "SELECT" or low in {"sql", *_LANGUAGES} or (low.endswith("ql") and not low.endswith("sql"))


def _is_free(schema: JsonObject) -> bool:
    """Return True if any text fits the schema."""
    return not {"enum", "const"} & schema.keys() and schema.get("type") not in (
        "integer",
        "number",
        "boolean",
    )


def _properties(schema: Any) -> Iterator[tuple[str, JsonObject]]:
    """Yield every parameter with its schema, at any depth."""
    if is_json_object(schema):
        for key, value in schema.items():
            if key == "properties" and is_json_object(value):
                yield from ((name, dict(inner)) for name, inner in value.items() if is_json_object(inner))
            yield from _properties(value)
    elif is_json_array(schema):
        for item in schema:
            yield from _properties(item)


def _texts(schema: Any, *, inside: bool = False) -> Iterator[str]:
    """Yield what a schema says of its own value; with `inside` also of what that holds by name."""
    if is_json_object(schema):
        for key, value in schema.items():
            if key in _OF_A_SCHEMA and isinstance(value, str):
                yield value
            elif inside or key != "properties":
                yield from _texts(value, inside=inside)
    elif is_json_array(schema):
        for item in schema:
            yield from _texts(item, inside=inside)


def _strings(value: Any, *names: str) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield every text with the names that lead to it."""
    if isinstance(value, str):
        yield names, value
    elif is_json_object(value):
        for key, inner in value.items():
            yield from _strings(inner, *names, key)
    elif is_json_array(value):
        for item in value:
            yield from _strings(item, *names)
