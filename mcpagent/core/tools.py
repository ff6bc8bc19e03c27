"""Tools, calls and results, as the model and the environment see them."""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from enum import StrEnum
from itertools import count
from typing import Literal

from mcpagent.core.input_schemas import shown_schema
from mcpagent.core.records import JsonObject, Record

PURPOSE_META_KEY = "mcpagent/purpose"  # in a request's `_meta`: who makes the call (`tools.contract.Purpose`)
NONCE_META_KEY = "mcpagent/nonce"  # in a result's `_meta`: fresh for each call that reached a built-in server
LEDGER_ENV = "MCPAGENT_CALL_LEDGER"  # the file in which built-in servers record the calls that reach them

_API_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")  # of a function, in OpenAI-style APIs


class ToolAnnotations(Record):
    """The MCP hints. Hints of an untrusted server are only hints (MCP spec 2025-11-25, tools)."""

    read_only: bool = False
    destructive: bool = True
    idempotent: bool = False
    open_world: bool = True

    @property
    def effect(self) -> Literal["reads", "writes", "unmarked"]:
        """The effect that the server states for the tool; unmarked if it states none."""
        if self.read_only:
            return "reads"
        says_so = "read_only" in self.model_fields_set or "destructive" in self.model_fields_set
        return "writes" if says_so else "unmarked"


class ToolSpec(Record):
    """One tool of one server."""

    server: str
    name: str
    description: str = ""
    input_schema: JsonObject
    output_schema: JsonObject | None = None
    annotations: ToolAnnotations = ToolAnnotations()

    @property
    def qualified_name(self) -> str:
        """Name for chat APIs that need one flat namespace."""
        return f"{self.server}__{self.name}"

    @property
    def dotted(self) -> str:
        """`server.tool`, the form that datasets use."""
        return f"{self.server}.{self.name}"


MAX_SEARCH_RESULTS = 10

# What an episode offers in place of tools that are to be searched for (`tools.discovery: search`).
SEARCH_TOOL = ToolSpec(
    server="mcpagent",
    name="search_tools",
    description="Find tools by what they do. The tools that are found can be called from the next step on.",
    input_schema={
        "type": "object",
        "properties": {
            "query": {
                "type": "string",
                "minLength": 1,
                "description": "What the tool should do, in a few words",
            },
            "limit": {
                "type": "integer",
                "minimum": 1,
                "maximum": MAX_SEARCH_RESULTS,
                "description": "Most tools to return (default 5)",
            },
        },
        "required": ["query"],
        "additionalProperties": False,
    },
    annotations=ToolAnnotations(read_only=True, destructive=False, idempotent=True, open_world=False),
)


def search_name(schemas: Iterable[JsonObject]) -> str | None:
    """Return the name of the search among offered schemas, as `chat_schema` makes them; None if it is not."""
    described = ((s["function"]["name"], s["function"].get("description")) for s in schemas)
    names = (name for name, text in described if SEARCH_TOOL.name in name and text == SEARCH_TOOL.description)
    return next(names, None)


class FailureKind(StrEnum):
    """The reason why a call has no ordinary result; `is_infrastructure` says whose fault."""

    TOOL_ERROR = "tool_error"  # the tool answered is_error: a wrong argument, an unknown symbol
    UNKNOWN_TOOL = "unknown_tool"  # the model named a tool that was not offered
    INVALID_ARGUMENTS = "invalid_arguments"  # the arguments break the tool's input schema
    TIMEOUT = "timeout"  # the hard deadline of the call passed
    CRASHED = "crashed"  # the server or its transport died before the call was sent, or on every safe repeat
    UNKNOWN_OUTCOME = "unknown_outcome"  # sent, then lost: it may have had its effect; never repeated
    OVERSIZE = "oversize"  # the result was too large to take
    UPSTREAM = "upstream"  # the server says that it, or a service behind it, failed or refuses us
    SCHEMA = "schema"  # the server broke the protocol or its own output schema
    CHANGED = "changed"  # the server no longer has the tool, or takes other arguments than it offered
    DENIED = "denied"  # the allow-list forbids the tool, or its SQL may write
    LIMIT = "limit"  # a limit of the episode was reached: the call was not made
    CASSETTE = "cassette"  # a strict cassette has no answer

    @property
    def is_infrastructure(self) -> bool:
        """True if the fault is not the model's: never turned into reward (`ToolResult.is_lost`)."""
        return self in {
            FailureKind.TIMEOUT,
            FailureKind.CRASHED,
            FailureKind.UNKNOWN_OUTCOME,
            FailureKind.OVERSIZE,
            FailureKind.UPSTREAM,
            FailureKind.SCHEMA,
            FailureKind.CHANGED,
            FailureKind.CASSETTE,
        }


class ToolCall(Record):
    """A call that the model wrote and that parsed. `server` is empty until the catalog resolves it, and
    `written_as` what the model called the tool, if that is not `tool`."""

    id: str
    tool: str
    arguments: JsonObject
    server: str = ""
    written_as: str | None = None

    def resolved(self, tool: ToolSpec) -> ToolCall:
        """Return the call of `tool`, which the model may have called otherwise."""
        written_as = None if self.tool == tool.name else self.tool
        return self.model_copy(update={"server": tool.server, "tool": tool.name, "written_as": written_as})


class ParseFailure(Record):
    """A call that did not parse: data, not an exception."""

    raw: str
    reason: str


class ToolResult(Record):
    """The result of one call. `content` is the text that the model sees."""

    call_id: str
    server: str
    tool: str
    content: str
    structured: JsonObject | None = None
    is_error: bool = False
    failure: FailureKind | None = None
    latency_s: float = 0.0
    truncated_chars: int = 0
    from_cassette: bool = False
    # A strict cassette has no answer because the model chose another call, or other calls before it, than
    # what was recorded: of kind `cassette`, and the model's own failure all the same.
    is_chosen_miss: bool = False
    # Of a search for tools, which the environment answers itself: the tools (`server.tool`) that may be
    # called from the next step on because of it. None: a call of a server's tool.
    loaded: tuple[str, ...] | None = None
    meta: JsonObject = {}

    @property
    def is_lost(self) -> bool:
        """Return whether the machinery failed: then the result says nothing about the model."""
        return self.failure is not None and self.failure.is_infrastructure and not self.is_chosen_miss

    @property
    def is_search(self) -> bool:
        """A search for tools, of which no server knows."""
        return self.loaded is not None


def failed_result(call: ToolCall, failure: FailureKind, text: str, *, latency_s: float = 0.0) -> ToolResult:
    """Return a result for a call that failed; `text` tells the model why."""
    return ToolResult(
        call_id=call.id,
        server=call.server,
        tool=call.tool,
        content=f"error: {failure.value}: {text}",
        is_error=True,
        failure=failure,
        latency_s=latency_s,
    )


def catalog_hash(tools: Iterable[ToolSpec]) -> str:
    """SHA-256 over names, descriptions and schemas, independent of order: what a dataset or run pins."""
    entries = sorted(
        json.dumps([t.server, t.name, t.description, t.input_schema], sort_keys=True, separators=(",", ":"))
        for t in tools
    )
    return hashlib.sha256("\n".join(entries).encode()).hexdigest()


def model_names(tools: Iterable[ToolSpec]) -> dict[str, ToolSpec]:
    """Return the name under which the model sees each tool: its own; `server__tool` only if two collide.

    A prefixed name fits chat APIs (64 letters, digits, `_` and `-`); if it had to be changed for that,
    or is still not unique, it ends in a hash of server and tool. Does not depend on the order of `tools`.
    """
    tools = list(tools)
    counts = Counter(tool.name for tool in tools)
    unique = {name for name, count in counts.items() if count == 1}
    prefixed = Counter(tool.qualified_name for tool in tools if tool.name not in unique)
    names: dict[str, ToolSpec] = {}
    for tool in tools:
        name = tool.qualified_name
        if tool.name in unique:
            name = tool.name
        elif not fits_api(name) or prefixed[name] > 1 or name in unique:
            name = _hashed(name, json.dumps([tool.server, tool.name]), taken=unique)
        names[name] = tool
    return names


def fits_api(name: str) -> bool:
    """Return whether chat APIs take a function of this name; MCP allows dots, slashes and 128 characters."""
    return _API_NAME.fullmatch(name) is not None


def renamed(
    names: Iterable[str], fits: Callable[[str], bool] = fits_api, *, beside: Iterable[str] = ()
) -> dict[str, str]:
    """Return another name for each of `names` that does not fit, one that chat APIs take: its letters and a
    hash of it. No two tools share one, of `names` or `beside` them; other than for that, the name depends on
    nothing but the tool's own."""
    names = set(names)
    taken, others = {*names, *beside}, dict[str, str]()
    for name in sorted(name for name in names if not fits(name)):
        others[name] = _hashed(name, name, taken=taken)
        taken.add(others[name])
    return others


def _hashed(name: str, key: str, *, taken: Collection[str]) -> str:
    stem = re.sub(r"[^A-Za-z0-9_-]", "_", name)[: 64 - 9]
    keys = (f"{key}#{again}" if again else key for again in count())
    digests = (hashlib.sha256(each.encode("utf-8", "surrogatepass")).hexdigest()[:8] for each in keys)
    return next(new for digest in digests if (new := f"{stem}_{digest}") not in taken)


def api_schemas(schemas: Sequence[JsonObject]) -> tuple[tuple[JsonObject, ...], dict[str, str]]:
    """Return the tools (`chat_schema`) under names that chat APIs take, and by such a name the one that it
    stands for."""
    others = renamed(schema["function"]["name"] for schema in schemas)
    given: list[JsonObject] = []
    for schema in schemas:
        function = schema["function"]
        name = others.get(function["name"], function["name"])
        given.append({**schema, "function": {**function, "name": name}})
    return tuple(given), {other: name for name, other in others.items()}


def chat_schema(name: str, tool: ToolSpec) -> JsonObject:
    """Return the tool as chat templates and OpenAI-style APIs take it."""
    return {
        "type": "function",
        "function": {
            "name": name,
            "description": tool.description,
            "parameters": shown_schema(tool.input_schema),
        },
    }
