"""Reading a server's tool list: what is well formed is offered, what is not is named and left out. What is
too long is cut, or left out too where that would make it another one."""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

from mcp import Client
from mcp.shared.dispatcher import CallOptions
from mcp.types import ListToolsResult, Tool
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from mcpagent.core.hidden_text import over_schema_texts
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.tools.wire import cut_middle

_PAGES_MAX = 1000
_TOTAL_CHARS = 32 * 2**20  # of a list of several pages; one page is bounded as every message is
_NAME_CHARS = 256  # the specification has 128
_METHOD = "tools/list"


@dataclass(frozen=True)
class Listing:
    """The tools of one server; `notes` name those that were left out, and why. `version` is what the server
    says of itself; empty where it says nothing."""

    tools: tuple[Tool, ...] = ()
    notes: tuple[str, ...] = ()
    version: str = ""


@dataclass(frozen=True, kw_only=True)
class ListingLimits:
    """How much a server may say of one tool, in characters: `description_chars` of a description, its own or
    one within a schema, `schema_chars` of a schema as JSON."""

    description_chars: int = 20_000
    schema_chars: int = 200_000


def cut_texts(spec: ToolSpec, limits: ListingLimits) -> tuple[ToolSpec, int]:
    """The tool with its longer descriptions cut in the middle, and how many characters that took."""
    shorten = partial(cut_middle, limit_chars=limits.description_chars)
    description, total = shorten(spec.description)
    schemas: dict[str, Any] = {}
    for name, schema in (("input_schema", spec.input_schema), ("output_schema", spec.output_schema)):
        if schema is not None and _size(schema) > limits.description_chars:
            schemas[name], cut = over_schema_texts(schema, shorten)
            total += cut
    return (spec.model_copy(update={"description": description, **schemas}), total) if total else (spec, 0)


def why_too_long(spec: ToolSpec, limits: ListingLimits) -> str | None:
    """Why the tool is not offered: a name or a schema that is cut is another one. None where it is."""
    if len(spec.name) > _NAME_CHARS:
        return f"its name has {len(spec.name):,} characters; it may have {_NAME_CHARS}"
    for kind, schema in (("input", spec.input_schema), ("output", spec.output_schema)):
        if schema is not None and (size := _size(schema)) > limits.schema_chars:
            return (
                f"its {kind} schema has {size:,} characters; it may have {limits.schema_chars:,} "
                "(tools.schema_limit_chars)"
            )
    return None


async def read_listing(client: Client) -> Listing:
    """Every page of the list. Raises ValueError where it is malformed as a whole."""
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
            return Listing(tuple(tools.values()), tuple(notes), version)
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
    """The well-formed tools of a page, what is wrong with the others, and the next cursor."""
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
