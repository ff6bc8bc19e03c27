"""The tools that an episode offers: their names, schemas and argument checks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from jsonschema import Draft202012Validator, SchemaError
from jsonschema.exceptions import best_match
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from referencing import Registry
from referencing.exceptions import Unresolvable

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec, chat_schema
from mcpagent.errors import UserError

_MAX_PROBLEM_CHARS = 200


@dataclass(frozen=True, kw_only=True)
class OfferedTool:
    """One tool under the name that the model sees. `validator` is None where the server's schema is not a
    valid JSON schema: then only the server can judge the arguments."""

    name: str
    spec: ToolSpec
    schema: JsonObject  # as chat templates take it
    validator: Validator | None

    def argument_problem(self, arguments: JsonObject) -> str | None:
        """What is wrong with `arguments`, short enough for the model's context; None where they fit."""
        if self.validator is None or self.validator.is_valid(arguments):
            return None
        error = best_match(self.validator.iter_errors(arguments))
        where = ".".join(str(part) for part in error.absolute_path)
        return (f"{where}: {error.message}" if where else error.message)[:_MAX_PROBLEM_CHARS]


class OfferedTools:
    """Offered tools by any name that a model may use: the one shown, `server.tool` or `server__tool`."""

    def __init__(self, tools: Sequence[OfferedTool]) -> None:
        self._by_name: dict[str, OfferedTool] = {}
        for tool in tools:
            self._by_name[tool.spec.dotted] = tool
            self._by_name[tool.spec.qualified_name] = tool
        self._by_name |= {tool.name: tool for tool in tools}
        self.schemas: tuple[JsonObject, ...] = tuple(tool.schema for tool in tools)

    def find(self, name: str) -> OfferedTool | None:
        """The tool by any of its names; None where it is not offered."""
        return self._by_name.get(name)

    def schema_of(self, name: str) -> JsonObject | None:
        """The input schema of a tool by any of its names; None where it is not offered."""
        tool = self._by_name.get(name)
        return None if tool is None else tool.spec.input_schema


def offer(catalog: Mapping[str, ToolSpec], names: Sequence[str] | None, *, task_id: str) -> OfferedTools:
    """The tools `names` (`server.tool`; None is the whole catalog) of the live catalog, in that order.

    Raises UserError that lists the tools which the catalog lacks.
    """
    if names is None:
        return OfferedTools([_compiled(name, spec) for name, spec in catalog.items()])
    by_dotted = {spec.dotted: (name, spec) for name, spec in catalog.items()}
    missing = [name for name in names if name not in by_dotted]
    if missing:
        raise UserError(
            f"the task offers {', '.join(missing)}, which no running server has; "
            f"the servers have {', '.join(sorted(by_dotted)) or 'no tools'}",
            where=f"task {task_id}, extra_info.tools",
            remedy="start the server that has it (--servers mcp.json), or make the data for these servers",
        )
    return OfferedTools([_compiled(*by_dotted[name]) for name in names])


_cache: dict[tuple[str, str], OfferedTool] = {}


def _compiled(name: str, spec: ToolSpec) -> OfferedTool:
    """Schemas are compiled once for each tool, not once an episode; a changed tool replaces its entry."""
    key = (name, spec.dotted)
    cached = _cache.get(key)
    if cached is not None and (cached.spec is spec or cached.spec == spec):
        return cached
    tool = OfferedTool(
        name=name, spec=spec, schema=chat_schema(name, spec), validator=_validator(spec.input_schema)
    )
    _cache[key] = tool
    return tool


def _validator(schema: JsonObject) -> Validator | None:
    kind = validator_for(schema, default=Draft202012Validator)
    try:
        kind.check_schema(schema)
        # An empty registry: a schema of an untrusted server must not make us fetch an address.
        validator = kind(schema, registry=Registry())
        validator.is_valid({})
    except (SchemaError, Unresolvable):
        return None
    return validator
