"""Every tool of the servers in use: by the name that the model sees, and by server and tool."""

from __future__ import annotations

import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from mcp import Client
from mcp.shared.dispatcher import CallOptions
from mcp.types import ListToolsResult, Tool
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from mcpagent.core.hidden_text import illegible_name, is_legible, over_schema_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind, ToolAnnotations, ToolCall, ToolSpec, catalog_hash, model_names
from mcpagent.errors import UserError
from mcpagent.tools.faults import CallFailed
from mcpagent.tools.wire import cut_middle


class Catalog:
    """The offered tools, and what the allow-list left out."""

    def __init__(self, offered: Sequence[ToolSpec], *, denied: Sequence[ToolSpec] = ()) -> None:
        self.tools: Mapping[str, ToolSpec] = model_names(offered)
        self.hash = catalog_hash(offered)
        self._by_place = {(spec.server, spec.name): spec for spec in offered}
        self._denied = {(spec.server, spec.name) for spec in denied}

    @classmethod
    def of(cls, specs: Sequence[ToolSpec], *, allow: Sequence[str] | None) -> Catalog:
        """Offer what `allow` names: `server.tool`, a tool or a whole server; None offers every tool.

        Raises UserError for an entry that names nothing.
        """
        if allow is None:
            return cls(specs)
        names = {name for s in specs for name in (s.dotted, s.name, s.server)}
        for entry in allow:
            if entry not in names:
                raise UserError(
                    f"the allow-list names {entry!r}, which no server offers", remedy=near_match(entry, names)
                )
        allowed = set(allow)
        offered = [s for s in specs if allowed & {s.dotted, s.name, s.server}]
        return cls(offered, denied=[s for s in specs if s not in offered])

    def find(self, call: ToolCall) -> ToolSpec:
        """Return the tool of a call; without a server, that by the name that the model sees.

        Raises CallFailed if there is none, or if the allow-list forbids it.
        """
        server, tool = call.server, call.tool
        spec = self._by_place.get((server, tool)) if server else self.tools.get(tool)
        if spec is not None:
            return spec
        dotted = f"{server}.{tool}" if server else tool
        if any(name == tool and server in ("", owner) for owner, name in self._denied):
            raise CallFailed(FailureKind.DENIED, f"{dotted} is not allowed here")
        near = near_match(tool, self.tools)
        raise CallFailed(
            FailureKind.UNKNOWN_TOOL, f"there is no tool {dotted!r}" + (f". {near}" if near else "")
        )


def to_spec(server: str, tool: Tool) -> ToolSpec:
    """Return the tool as mcpagent records it; hints that the server does not give have the defaults of the
    spec."""
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
    """Return the tools as they would be if those that `read_only` names (`server.tool`, or a server) said of
    themselves that they only read. Raises UserError for a name that no tool has."""
    listed = list(specs)
    names = {name for spec in listed for name in (spec.server, spec.dotted)}
    for name in read_only:
        if name not in names:
            raise UserError(
                f"tools.read_only names {name!r}, which no server offers", remedy=near_match(name, names)
            )
    return [_reading(s) if {s.server, s.dotted} & set(read_only) else s for s in listed]


def _reading(spec: ToolSpec) -> ToolSpec:
    annotations = spec.annotations.model_copy(update={"read_only": True})
    return spec.model_copy(update={"annotations": annotations})


def near_match(name: str, candidates: Iterable[str]) -> str | None:
    """`Did you mean ...?` for the nearest known name; None if nothing is near."""
    names = sorted(candidates)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    near = near or [n for n in names if name in n or n in name]
    return f"Did you mean {near[0]}?" if near else None


_PAGES_MAX = 1000
_TOTAL_CHARS = 32 * 2**20  # of a list of several pages; one page is bounded as every message is
_NAME_CHARS = 256  # the specification has 128
DESCRIPTION_CHARS = 20_000  # of a description, that of a tool or one within a schema
SCHEMA_CHARS = 200_000  # of a schema as JSON
_METHOD = "tools/list"
_NAMED = 5  # tools of a kind that a note on a changed list names


@dataclass(frozen=True)
class ToolList:
    """The tools of one server; `notes` name those that were left out, and why. `version` is what the server
    says of itself; empty if it says nothing."""

    tools: tuple[Tool, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True)
class CatalogChange:
    """How a tool list differs from the one that the run began with: the names of tools that are gone, that
    take other arguments, and that are new."""

    gone: frozenset[str] = frozenset()
    altered: frozenset[str] = frozenset()
    new: frozenset[str] = frozenset()

    @classmethod
    def between(cls, first: Mapping[str, Tool], now: Mapping[str, Tool]) -> CatalogChange:
        """Compare two lists of tools by their names."""
        both = first.keys() & now.keys()
        return cls(
            gone=frozenset(first.keys() - now.keys()),
            altered=frozenset(n for n in both if first[n].input_schema != now[n].input_schema),
            new=frozenset(now.keys() - first.keys()),
        )

    @property
    def text(self) -> str:
        """What a person is told of it: a few names of each kind. Empty if only descriptions differ."""
        kinds = {"gone": self.gone, "with other arguments": self.altered, "new": self.new}
        return "; ".join(f"{kind}: {_few(sorted(names))}" for kind, names in kinds.items() if names)


def _few(names: Sequence[str]) -> str:
    more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return ", ".join(map(repr, names[:_NAMED])) + more


def cut_texts(spec: ToolSpec) -> tuple[ToolSpec, int]:
    """Return the tool with its longer descriptions cut in the middle, and how many characters that took."""
    shorten = partial(cut_middle, limit_chars=DESCRIPTION_CHARS)
    description, total = shorten(spec.description)
    schemas: dict[str, Any] = {}
    for name, schema in (("input_schema", spec.input_schema), ("output_schema", spec.output_schema)):
        if schema is not None and _size(schema) > DESCRIPTION_CHARS:
            schemas[name], cut = over_schema_texts(schema, shorten)
            total += cut
    return (spec.model_copy(update={"description": description, **schemas}), total) if total else (spec, 0)


def why_illegible(spec: ToolSpec) -> str | None:
    """Return why a person cannot see what the tool or one of its parameters is called; None if one can. To
    change the name would break its calls."""
    hidden = illegible_name(spec.input_schema) if is_legible(spec.name) else spec.name
    return None if hidden is None else f"the name {hidden!r} holds invisible characters or a line break"


def why_too_long(spec: ToolSpec) -> str | None:
    """Return why the tool is not offered: a name or a schema that is cut is another one. None if it is."""
    if len(spec.name) > _NAME_CHARS:
        return f"its name has {len(spec.name):,} characters; it may have {_NAME_CHARS}"
    for kind, schema in (("input", spec.input_schema), ("output", spec.output_schema)):
        if schema is not None and (size := _size(schema)) > SCHEMA_CHARS:
            return f"its {kind} schema has {size:,} characters; it may have {SCHEMA_CHARS:,}"
    return None


async def read_tool_list(client: Client) -> ToolList:
    """Every page of the list. Raises ValueError if it is malformed as a whole."""
    tools: dict[str, Tool] = {}
    notes: list[str] = []
    cursor: str | None = None
    total = 0
    for _ in range(_PAGES_MAX):
        try:
            page = await client.list_tools(cursor=cursor, cache_mode="refresh")
            offered, cursor = page.tools, page.next_cursor
        except ValidationError:
            # The SDK refuses a page for one bad tool; the good ones of it are still wanted.
            offered, faults, cursor = _sorted_out(client, await _raw_page(client, cursor))
            notes += faults
        for tool in offered:
            if tool.name in tools:
                notes.append(f"tool {tool.name!r} is listed twice; its first entry is used")
            else:
                tools[tool.name] = tool
        if cursor is None:
            version = client.server_info.version if client.server_info is not None else ""
            return ToolList(tuple(tools.values()), tuple(notes), version)
        total += sum(len(tool.model_dump_json()) for tool in offered)
        if total > _TOTAL_CHARS:
            raise ValueError(f"its tool list has more than {_TOTAL_CHARS:,} characters")
    raise ValueError(f"its tool list has more than {_PAGES_MAX} pages")


async def _raw_page(client: Client, cursor: str | None) -> dict[str, Any]:
    """One page as the server sent it: the SDK has no public way to a result that it does not accept."""
    session = client.session
    request: dict[str, Any] = {"method": _METHOD, "params": {} if cursor is None else {"cursor": cursor}}
    options = cast("CallOptions", {})
    session._stamp(request, options)
    return await session._dispatcher.send_raw_request(_METHOD, request["params"], options)


def _sorted_out(client: Client, page: dict[str, Any]) -> tuple[list[Tool], list[str], str | None]:
    """Return the well-formed tools of a page, what is wrong with the others, and the next cursor."""
    entries = page.get("tools")
    rest = {key: value for key, value in page.items() if key != "tools"}
    if not isinstance(entries, list):
        raise ValueError(f"its tool list is malformed: 'tools' is {_kind(entries)}, not a list")
    cursor = _parsed(client, rest, []).next_cursor  # raises what is wrong with the page itself
    tools: list[Tool] = []
    notes: list[str] = []
    for number, entry in enumerate(entries, start=1):
        try:
            tools += _parsed(client, rest, [entry]).tools
        except ValidationError as error:
            name = entry.get("name") if isinstance(entry, dict) else None
            label = f"tool {name!r}" if isinstance(name, str) else f"tool number {number}"
            notes.append(f"{label} is malformed and left out: {_first_fault(error)}")
    return tools, notes, cursor


def _parsed(client: Client, rest: dict[str, Any], entries: list[Any]) -> ListToolsResult:
    result = parse_server_result(_METHOD, client.protocol_version, {**rest, "tools": entries})
    return cast("ListToolsResult", result)


def _first_fault(error: ValidationError) -> str:
    fault = error.errors(include_url=False, include_input=False)[0]
    where = ".".join(str(part) for part in fault["loc"] if part != "tools" and not isinstance(part, int))
    return f"{where}: {fault['msg']}" if where else fault["msg"]


def _size(schema: JsonObject) -> int:
    return len(json.dumps(schema, ensure_ascii=False))


def _kind(value: object) -> str:
    return "absent" if value is None else f"a {type(value).__name__}"
