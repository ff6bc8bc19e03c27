"""Every tool of the servers in use: by the name that the model sees, and by server and tool."""

from __future__ import annotations

import asyncio
import difflib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

from mcp import Client, MCPError
from mcp.types import ListToolsResult, Tool
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from mcpagent.core.hidden_text import illegible_name, is_legible, over_schema_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import FailureKind, ToolAnnotations, ToolCall, ToolSpec, catalog_hash, model_names
from mcpagent.errors import UserError
from mcpagent.tools.faults import CallFailed, classify, fault_of, flat
from mcpagent.tools.questions import raw_answer
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
_IDLE_PAGES_MAX = 3  # in a row that bring no new tool
_LIST_TIMEOUT_S = 20.0  # for the pages after the first, which the deadline of a start covers
_TOTAL_CHARS = 32 * 2**20  # of a list of several pages; one page is bounded as every message is
_NAME_CHARS = 256  # the specification has 128
DESCRIPTION_CHARS = 20_000  # of a description, that of a tool or one within a schema
SCHEMA_CHARS = 200_000  # of a schema as JSON
_METHOD = "tools/list"
_NAMED = 5  # tools of a kind that a note on a changed list names


@dataclass(frozen=True)
class ToolList:
    """The tools of one server; `notes` name those that were left out, and why. `version` is what the server
    says of itself; empty if it says nothing. `protocol` is the revision that it speaks."""

    tools: tuple[Tool, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""
    protocol: str = ""


@dataclass(frozen=True)
class CatalogChange:
    """The difference between a tool list and the one that the run began with: the names of tools that are
    gone, that take other arguments, and that are new."""

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
        """Return the change for a person: a few names of each kind. Empty if only descriptions differ."""
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
        if schema is not None and len(json.dumps(schema, ensure_ascii=False)) > DESCRIPTION_CHARS:
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
    size = why_schema_too_long(spec.input_schema)
    return f"its input schema is too long: {size}" if size else None


def why_schema_too_long(schema: JsonObject) -> str | None:
    """Return how long the schema is and may be; None if it is within that."""
    size = len(json.dumps(schema, ensure_ascii=False))
    return f"it has {size:,} characters; it may have {SCHEMA_CHARS:,}" if size > SCHEMA_CHARS else None


async def read_tool_list(client: Client) -> ToolList:
    """Return every page of the list; of one without an end the pages that came first, with a note. Raises
    ValueError if it is malformed as a whole."""
    pages = _Pages()
    cursor: str | None = None
    give_up_s = asyncio.get_running_loop().time() + _LIST_TIMEOUT_S
    while True:
        try:
            async with asyncio.timeout_at(None if cursor is None else give_up_s):
                offered, faults, cursor_after = await _page(client, cursor)
        except TimeoutError:
            end = f"its next page did not come within {_LIST_TIMEOUT_S:g} s"
            break
        except (MCPError, ValueError) as refusal:
            fault = classify(refusal)
            if cursor is None or not isinstance(fault, CallFailed):
                raise
            why = fault.text if isinstance(refusal, MCPError) else flat(refusal)
            end = f"its next page was refused: {why}"
            break
        pages.add(offered, faults)
        cursor = cursor_after or None  # some write an empty one for none
        end = None if cursor is None else pages.end_at(cursor, offered)
        if cursor is None or end is not None:
            break
    if end is not None:
        pages.notes.append(f"its tool list is used as far as it came, {len(pages.tools)} tools: {end}")
    version = client.server_info.version if client.server_info is not None else ""
    return ToolList(tuple(pages.tools.values()), tuple(pages.notes), version, client.protocol_version)


@dataclass
class _Pages:
    """The pages of a tool list that have come so far."""

    tools: dict[str, Tool] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    _cursors: set[str] = field(default_factory=set)
    _idle: int = 0
    _chars: int = 0

    def add(self, offered: Sequence[Tool], faults: Sequence[str]) -> None:
        """Take the tools of a page, and what is wrong with its others."""
        twice: list[str] = []
        before = len(self.tools)
        for tool in offered:
            if tool.name in self.tools:
                twice.append(f"tool {tool.name!r} is listed twice; its first entry is used")
            else:
                self.tools[tool.name] = tool
        is_idle = len(self.tools) == before and bool(self._cursors)
        self._idle = self._idle + 1 if is_idle else 0
        # A page that comes again is one fault, which `end_at` finds.
        self.notes += [note for note in (*faults, *(() if is_idle else twice)) if note not in self.notes]

    def end_at(self, cursor: str, offered: Sequence[Tool]) -> str | None:
        """Return why the page that the cursor names, behind the tools of this one, is not asked for; None if
        it is."""
        if cursor in self._cursors:
            return "it gave a cursor twice"
        self._cursors.add(cursor)
        self._chars += sum(len(tool.model_dump_json()) for tool in offered)
        if self._idle == _IDLE_PAGES_MAX:
            return f"{_IDLE_PAGES_MAX} pages in a row brought no new tool"
        if self._chars > _TOTAL_CHARS:
            return f"it has more than {_TOTAL_CHARS:,} characters"
        return f"it has more than {_PAGES_MAX} pages" if len(self._cursors) == _PAGES_MAX else None


async def _page(client: Client, cursor: str | None) -> tuple[Sequence[Tool], Sequence[str], str | None]:
    """Return the well-formed tools of a page, what is wrong with the others, and the next cursor.

    The SDK refuses a page for one bad tool, and has no public way to what it does not accept."""
    try:
        page = await client.list_tools(cursor=cursor, cache_mode="refresh")
    except ValidationError:
        params = {} if cursor is None else {"cursor": cursor}
        return _sorted_out(client, await raw_answer(client.session, _METHOD, params))
    return page.tools, (), page.next_cursor


def _sorted_out(client: Client, page: dict[str, Any]) -> tuple[list[Tool], list[str], str | None]:
    entries = page.get("tools")
    rest = {key: value for key, value in page.items() if key not in ("tools", "nextCursor")}
    if not isinstance(entries, list):
        raise ValueError(f"its tool list is malformed: 'tools' is {_kind(entries)}, not a list")
    _parsed(client, rest, [])  # raises what is wrong with the page itself
    tools: list[Tool] = []
    notes: list[str] = []
    for number, entry in enumerate(entries, start=1):
        name = entry.get("name") if isinstance(entry, dict) else None
        label = f"tool {name!r}" if isinstance(name, str) else f"tool number {number}"
        try:
            tools += _parsed(client, rest, [_with_schema(entry)]).tools
        except ValidationError as error:
            # What a tool can do without costs that alone.
            optional = _OPTIONAL & {str(part) for fault in error.errors() for part in fault["loc"]}
            try:
                without = {key: value for key, value in entry.items() if key not in optional}
                tools += _parsed(client, rest, [_with_schema(without)]).tools
                notes.append(
                    f"{label}: its {', '.join(sorted(optional))} cannot be used: {fault_of(error, within=2)}"
                )
            except (ValidationError, AttributeError):
                notes.append(f"{label} is malformed and left out: {fault_of(error, within=2)}")
    cursor = page.get("nextCursor")
    if cursor is not None and not isinstance(cursor, str):
        notes.append(f"its tool list goes on at a cursor that is {_kind(cursor)}, which is not followed")
        cursor = None
    return tools, notes, cursor


_OPTIONAL = {"title", "description", "outputSchema", "annotations", "icons", "execution", "_meta"}


def _with_schema(entry: Any) -> Any:
    """Return the entry of a tool as the specification has it; no input schema means no parameters."""
    schema = entry.get("inputSchema") if isinstance(entry, dict) else ()
    if schema is None or (isinstance(schema, dict) and schema.get("type") is None):
        return {**entry, "inputSchema": {**(schema or {}), "type": "object"}}
    return entry


def _parsed(client: Client, rest: dict[str, Any], entries: list[Any]) -> ListToolsResult:
    result = parse_server_result(_METHOD, client.protocol_version, {**rest, "tools": entries})
    return cast("ListToolsResult", result)


def _kind(value: object) -> str:
    return "absent" if value is None else f"a {type(value).__name__}"
