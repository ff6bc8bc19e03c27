"""What the built-in servers share: how tools are declared, called and recorded; checks of arguments; news."""

from __future__ import annotations

import functools
import json
import logging
import secrets
import traceback
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import KW_ONLY, dataclass
from datetime import date
from typing import Any, TypeVar

from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError, UnexpectedToolError
from mcp.server.mcpserver.tools import Tool
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, CallToolResult, InputRequiredResult, TextContent, ToolAnnotations
from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from mcpagent import __version__
from mcpagent.core.tools import NONCE_META_KEY, PURPOSE_META_KEY
from mcpagent.servers.ledger import MODEL_PURPOSE, Ledger
from mcpagent.tools.wire import clean_text

T = TypeVar("T")


def clean_values(arguments: Mapping[str, Any]) -> dict[str, Any]:
    """`arguments` with every text in them clean, also within lists."""
    return {name: _clean(value) for name, value in arguments.items()}


def _clean(value: Any) -> Any:
    if isinstance(value, str):
        return clean_text(value)
    return [_clean(item) for item in value] if isinstance(value, list) else value


logger = logging.getLogger(__name__)


class Answer(BaseModel):
    """Base of every tool's result: frozen, and its text encodable whatever the upstream sent."""

    model_config = ConfigDict(frozen=True)

    @field_validator("*", mode="before")
    @classmethod
    def _encodable(cls, value: Any) -> Any:
        return clean_text(value) if isinstance(value, str) else value


@dataclass(frozen=True)
class BuiltinTool:
    """`method` is one of the class that answers from the data set; its name, docstring and annotations are
    the tool's contract. Another upstream has a method of that name, which takes the same arguments.
    `description` is for one whose docstring is not what a model reads. A tool that `replaces` what it wrote
    before does no more when it is called again; any other that writes only adds, and adds again."""

    method: Callable[..., Any]
    _: KW_ONLY
    description: str | None = None
    in_limited_set: bool = True
    read_only: bool = True
    replaces: bool = False

    def tool(self, *, is_live: bool) -> Tool:
        """Return it as the SDK takes it: a call of the method of the client's upstream. Only a live upstream
        reaches the open world."""

        @functools.wraps(self.method)
        async def call(self: Context[Any, Any], **arguments: Any) -> Any:
            return await getattr(self.request_context.lifespan_context, call.__name__)(**arguments)

        return Tool.from_function(
            call,
            description=self.description,
            context_kwarg="self",  # what the object is to the method
            annotations=ToolAnnotations(
                read_only_hint=self.read_only,
                destructive_hint=self.replaces,
                idempotent_hint=self.read_only or self.replaces,
                open_world_hint=is_live,
            ),
        )


@dataclass(frozen=True, kw_only=True)
class Upstream:
    """The source of a server's answers. `open` gives one client an object with a method for each tool;
    `redact` takes keys out of every text that leaves the server."""

    open: Callable[[], AbstractAsyncContextManager[Any]]
    is_live: bool = False
    redact: Callable[[str], str] = str


@dataclass(frozen=True, kw_only=True)
class ServerDefinition:
    """One built-in server, whatever its upstream. `embedded` makes what answers one client offline: an object
    of the class whose methods the tools are."""

    name: str
    instructions: str
    embedded: Callable[[], Any]
    tools: tuple[BuiltinTool, ...]
    stateful: bool = False


class BuiltinServer(MCPServer[Any]):
    """An MCP server whose every call gets a fresh nonce, one ledger line, and a compact answer.

    The upstream is opened once per client (over HTTP: once per process) and closed with it.
    """

    def __init__(
        self,
        definition: ServerDefinition,
        *,
        upstream: Upstream | None = None,
        limited: bool = False,
        ledger: Ledger | None = None,
    ) -> None:
        """`upstream` None is the embedded one."""
        upstream = upstream or Upstream(open=lambda: nullcontext(definition.embedded()))
        super().__init__(
            definition.name,
            instructions=definition.instructions,
            version=__version__,
            log_level="WARNING",
            lifespan=lambda _: upstream.open(),
            tools=[
                tool.tool(is_live=upstream.is_live)
                for tool in definition.tools
                if tool.in_limited_set or not limited
            ],
        )
        self._ledger = ledger
        self._redact = upstream.redact

    async def call_tool(
        self, name: str, arguments: dict[str, Any], context: Context[Any, Any] | None = None
    ) -> CallToolResult | InputRequiredResult:
        """Every `tools/call` passes here before its tool and arguments are checked, so a rejected call is
        recorded too. A failing tool is an `is_error` result; it never raises `ToolError`."""
        nonce = secrets.token_hex(8)
        self._record(tool=name, nonce=nonce, purpose=_purpose(context))
        try:
            result = await super().call_tool(name, arguments, context)
        except UnexpectedToolError as error:
            logger.error("Tool %r broke down\n%s", name, self._redact(traceback.format_exc()))
            result = _failure(str(error))
        except ToolError as error:
            result = _failure(self._redact(_readable(error)))
        if isinstance(result, InputRequiredResult):
            return result
        if not result.is_error:
            answer = json.dumps(result.structured_content, ensure_ascii=False)
            text = self._redact(answer)
            if text != answer:
                result.structured_content = json.loads(text)
            result.content = [TextContent(type="text", text=text)]
        result.meta = {**(result.meta or {}), NONCE_META_KEY: nonce}
        return result

    def _record(self, *, tool: str, nonce: str, purpose: str) -> None:
        """A ledger that cannot be written is a protocol error: it is not the model's fault."""
        if self._ledger is None:
            return
        try:
            self._ledger.append(server=self.name, tool=tool, nonce=nonce, purpose=purpose)
        except OSError as error:
            raise MCPError(
                code=INTERNAL_ERROR, message=f"the call ledger cannot be written: {error}"
            ) from error


def _purpose(context: Context[Any, Any] | None) -> str:
    meta = context.request_context.meta if context is not None else None
    return str((meta or {}).get(PURPOSE_META_KEY, MODEL_PURPOSE))


def _failure(text: str) -> CallToolResult:
    return CallToolResult(content=[TextContent(type="text", text=clean_text(text))], is_error=True)


def _readable(error: ToolError) -> str:
    """Return what the tool said without the SDK's prefix; a rejected argument in one line, not its value."""
    cause = error.__cause__
    if isinstance(cause, ValidationError):
        faults = [f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in cause.errors()]
        return f"Invalid arguments. {'; '.join(faults)}."
    return str(cause) if isinstance(cause, ToolError) else str(error)


_MAX_ECHO_CHARS = 40


def echo(text: str) -> str:
    """Return the model's own words in an error, short enough not to fill its context."""
    return text if len(text) <= _MAX_ECHO_CHARS else text[:_MAX_ECHO_CHARS] + "..."


def unknown_symbol(symbol: str) -> ToolError:
    """Return the error for a stock symbol that does not exist."""
    return ToolError(f"Unknown symbol {echo(symbol)}.")


def at_least_one(name: str, value: int) -> int:
    """`value`, the argument `name`. Raises `ToolError` if it is below 1."""
    if value < 1:
        raise ToolError(f"{name} must be at least 1.")
    return value


def first(items: Sequence[T], limit: int) -> Sequence[T]:
    """Return the first `limit` items. Raises `ToolError` if `limit` is below 1."""
    return items[: at_least_one("limit", limit)]


def days(start: str, end: str) -> tuple[str, str]:
    """The first and the last day as YYYY-MM-DD. Raises `ToolError` for a text that is not a date, and for
    days in the wrong order."""
    first_day, last_day = _day("start_date", start), _day("end_date", end)
    if first_day > last_day:
        raise ToolError("start_date is after end_date.")
    return first_day.isoformat(), last_day.isoformat()


def _day(name: str, text: str) -> date:
    try:
        return date.fromisoformat(text.strip())
    except ValueError:
        raise ToolError(f"{name} must be a date like 2025-11-17.") from None


class Article(Answer):
    """`published` is a date, YYYY-MM-DD."""

    title: str
    url: str
    published: str


class Articles(Answer):
    """Newest first."""

    articles: list[Article]
