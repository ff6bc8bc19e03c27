"""Every tool of the servers in use: by the name that the model sees, and by server and tool."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from jsonschema import SchemaError
from jsonschema.protocols import Validator
from jsonschema.validators import validator_for
from mcp.types import Tool
from referencing import Registry
from referencing.exceptions import Unresolvable

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolAnnotations, ToolSpec, catalog_hash, model_names
from mcpagent.errors import UserError


class Catalog:
    """The offered tools, and what the allow-list left out."""

    def __init__(self, offered: Sequence[ToolSpec], *, denied: Sequence[ToolSpec] = ()) -> None:
        self.tools: Mapping[str, ToolSpec] = model_names(offered)
        self.hash = catalog_hash(offered)
        self._by_place = {(spec.server, spec.name): spec for spec in offered}
        self._denied = {(spec.server, spec.name) for spec in denied}

    @classmethod
    def of(cls, specs: Sequence[ToolSpec], *, allow: Sequence[str] | None) -> Catalog:
        """An entry of `allow` is `server.tool`, a tool or a whole server; None offers every tool.

        Raises UserError for an entry that names nothing.
        """
        if allow is None:
            return cls(specs)
        known = {name for s in specs for name in (s.dotted, s.name, s.server)}
        for entry in allow:
            if entry not in known:
                raise UserError(
                    f"the allow-list names {entry!r}, which no server offers", remedy=near_match(entry, known)
                )
        wanted = set(allow)
        offered = [s for s in specs if wanted & {s.dotted, s.name, s.server}]
        return cls(offered, denied=[s for s in specs if s not in offered])

    def find(self, server: str, tool: str) -> ToolSpec | None:
        """The tool of a server; with an empty `server`, the tool by the name that the model sees."""
        return self._by_place.get((server, tool)) if server else self.tools.get(tool)

    def denies(self, server: str, tool: str) -> bool:
        """True where the tool exists and the allow-list forbids it."""
        return any(name == tool and server in ("", owner) for owner, name in self._denied)


def to_spec(server: str, tool: Tool) -> ToolSpec:
    """The tool as mcpagent records it; hints that the server does not give have the defaults of the spec."""
    hints = tool.annotations
    given = {
        "read_only": hints.read_only_hint if hints else None,
        "destructive": hints.destructive_hint if hints else None,
        "idempotent": hints.idempotent_hint if hints else None,
        "open_world": hints.open_world_hint if hints else None,
    }
    return ToolSpec(
        server=server,
        name=tool.name,
        description=tool.description or "",
        input_schema=tool.input_schema,
        output_schema=tool.output_schema,
        annotations=ToolAnnotations(**{k: v for k, v in given.items() if v is not None}),
    )


def declared(specs: Iterable[ToolSpec], *, read_only: Sequence[str]) -> list[ToolSpec]:
    """The tools as they would be if those that `read_only` names (`server.tool`, or a server) said of
    themselves that they only read. Raises UserError for a name that no tool has."""
    listed = list(specs)
    known = {name for spec in listed for name in (spec.server, spec.dotted)}
    for name in read_only:
        if name not in known:
            raise UserError(
                f"tools.read_only names {name!r}, which no server offers", remedy=near_match(name, known)
            )
    return [_reading(s) if {s.server, s.dotted} & set(read_only) else s for s in listed]


def _reading(spec: ToolSpec) -> ToolSpec:
    annotations = spec.annotations.model_copy(update={"read_only": True})
    return spec.model_copy(update={"annotations": annotations})


def near_match(name: str, known: Iterable[str]) -> str | None:
    """`Did you mean ...?` for the nearest known name; None if nothing is near."""
    names = sorted(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    near = near or [n for n in names if name in n or n in name]
    return f"Did you mean {near[0]}?" if near else None


class SchemaCheck:
    """One JSON schema, compiled at its first use: compiling costs about sixty validations."""

    def __init__(self, schema: JsonObject) -> None:
        self._schema = schema
        self._validator: Validator | None = None

    def fault(self, value: Any) -> str | None:
        """Where and why `value` breaks the schema; None when it holds."""
        try:
            if self._validator is None:
                kind = validator_for(self._schema)
                kind.check_schema(self._schema)
                # An empty registry: a `$ref` resolves within the schema, never over the network.
                self._validator = kind(self._schema, registry=Registry())
            error = next(iter(self._validator.iter_errors(value)), None)
        except (SchemaError, Unresolvable) as broken:
            return f"the schema itself is invalid: {broken}".partition("\n")[0]
        return None if error is None else f"{error.json_path}: {error.message}"
