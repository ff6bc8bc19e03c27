"""The streamable-HTTP transport: one POST, one task, one answer for each request.

In place of the SDK's, where one failed POST ends the session with every call in flight.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, Self

import anyio
from mcp.shared.inbound import (
    MCP_METHOD_HEADER,
    MCP_PROTOCOL_VERSION_HEADER,
    find_invalid_x_mcp_header,
    mcp_param_headers,
    x_mcp_header_map,
)
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import HEADER_MISMATCH, JSONRPCError, JSONRPCNotification, JSONRPCRequest, JSONRPCResponse
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpagent.tools.faults import ServerEnded, untold
from mcpagent.tools.servers_config import HttpServer
from mcpagent.tools.transports.http_endpoint import HttpEndpoint, Refusal, Reply, http_client
from mcpagent.tools.transports.jsonrpc import Inbox, error_reply
from mcpagent.tools.wire import MAX_MESSAGE_BYTES, RESPONSE_LOST

log = logging.getLogger(__name__)

_RELIST_PAGES_MAX = 100


class ParamHeaders:
    """The arguments that a server wants repeated as HTTP headers (MCP 2026-07-28, `x-mcp-header`).

    Learnt from every tool list that passes, and kept for later connections to the same server, which may
    not list its tools.
    """

    def __init__(self) -> None:
        self._by_tool: dict[str, Mapping[tuple[str, ...], str]] = {}

    def learn(self, tool_list: Mapping[str, Any]) -> None:
        tools = tool_list.get("tools")
        for tool in tools if isinstance(tools, list) else ():
            if isinstance(tool, dict) and isinstance(name := tool.get("name"), str):
                schema = tool.get("inputSchema")
                is_valid = find_invalid_x_mcp_header(schema) is None
                self._by_tool[name] = x_mcp_header_map(schema) if is_valid else {}

    def of(self, params: Mapping[str, Any]) -> dict[str, str]:
        """The headers for a call with these params."""
        wanted = self._by_tool.get(params.get("name", ""))
        return mcp_param_headers(wanted, params.get("arguments") or {}) if wanted else {}


@asynccontextmanager
async def http_streams(
    config: HttpServer,
    *,
    on_eof: Callable[[], None],
    on_end: Callable[[ServerEnded], None] = untold,
    param_headers: ParamHeaders,
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncGenerator[tuple[Any, Any]]:
    """Reach the server; a transport for `mcp.Client` (the streams to read from and to write to).

    There are no time-outs but for connecting: the caller has a deadline, and leaves. `on_eof` is called
    when the server has forgotten our session. Raises ServerEnded at the end where it sent too much unasked.
    """
    async with http_client(config.url, config.headers) as client:
        inbox = Inbox(on_end=on_eof)
        endpoint = HttpEndpoint(
            client,
            config.url,
            max_message_bytes=max_message_bytes,
            on_message=inbox.put,
            on_lost=on_eof,
            on_end=on_end,
        )
        posts = _Posts(endpoint, inbox, param_headers)
        try:
            yield inbox, posts
        finally:
            with anyio.CancelScope(shield=True):
                await posts.end()
            if endpoint.flood is not None:
                raise ServerEnded(str(endpoint.flood), is_lasting=True)


class _Posts:
    """The write stream of the session: every request is answered in a task of its own."""

    def __init__(self, endpoint: HttpEndpoint, inbox: Inbox, param_headers: ParamHeaders) -> None:
        self._endpoint = endpoint
        self._inbox = inbox
        self._param_headers = param_headers
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._ended = False

    async def send(self, item: SessionMessage) -> None:
        """Send the message, without waiting for an answer. Raises BrokenResourceError after the end."""
        if self._ended:
            raise anyio.BrokenResourceError
        message, metadata = item.message, item.metadata
        headers = (metadata.headers if isinstance(metadata, ClientMessageMetadata) else None) or {}
        if isinstance(message, JSONRPCRequest):
            task = asyncio.create_task(self._answer(message, headers), name=f"post {message.id}")
            self._tasks[message.id] = task
            task.add_done_callback(lambda _: self._tasks.pop(message.id, None))
        elif isinstance(message, JSONRPCNotification) and message.method == "notifications/cancelled":
            await self._cancel(message, headers)
        else:
            await self._tell(message, headers)

    async def end(self) -> None:
        """Give up what is under way, and the session with it."""
        self._ended = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        await self._endpoint.end_session()

    async def aclose(self) -> None:
        """The exchanges are ended by the transport."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `aclose`."""

    async def _answer(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> None:
        try:
            reply = await self._reply(message, headers)
        except Refusal as refusal:
            reply = error_reply(message.id, refusal.code, refusal.text, refusal.data)
        except Exception as error:
            # A boundary: a call must end, whatever an HTTP library raises.
            log.debug("a POST broke down", exc_info=True)
            reply = error_reply(message.id, RESPONSE_LOST, f"the exchange broke down: {type(error).__name__}")
        self._inbox.put(reply)

    async def _reply(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> Reply:
        is_call = message.method == "tools/call" and MCP_METHOD_HEADER in headers
        params = message.params or {}
        extra = self._param_headers.of(params) if is_call else {}
        reply = await self._endpoint.request(message, {**headers, **extra})
        if message.method == "tools/list" and isinstance(reply, JSONRPCResponse):
            self._param_headers.learn(reply.result)
        if is_call and isinstance(reply, JSONRPCError) and reply.error.code == HEADER_MISMATCH:
            # The schema that we know is missing or stale. The server did not make the call.
            await self._relist(message, headers)
            reply = await self._endpoint.request(message, {**headers, **self._param_headers.of(params)})
        return reply

    async def _relist(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> None:
        meta = (message.params or {}).get("_meta", {})
        named = {
            MCP_PROTOCOL_VERSION_HEADER: headers[MCP_PROTOCOL_VERSION_HEADER],
            MCP_METHOD_HEADER: "tools/list",
        }
        cursor: dict[str, Any] = {}
        for page in range(_RELIST_PAGES_MAX):
            tool_list = JSONRPCRequest(
                jsonrpc="2.0",
                id=f"{message.id}-tools-{page}",
                method="tools/list",
                params={"_meta": meta, **cursor},
            )
            reply = await self._endpoint.request(tool_list, named)
            if isinstance(reply, JSONRPCError):
                return
            self._param_headers.learn(reply.result)
            if reply.result.get("nextCursor") is None:
                return
            cursor = {"cursor": reply.result["nextCursor"]}

    async def _cancel(self, message: JSONRPCNotification, headers: Mapping[str, str]) -> None:
        """Closing the stream is the signal of 2026-07-28; before that, the notification is."""
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, self._endpoint.version)
        if version not in MODERN_PROTOCOL_VERSIONS:
            await self._tell(message, headers)
        request_id = (message.params or {}).get("requestId")
        if isinstance(request_id, (int, str)) and (task := self._tasks.get(request_id)) is not None:
            task.cancel()

    async def _tell(self, message: Any, headers: Mapping[str, str]) -> None:
        try:
            await self._endpoint.notify(message, headers)
        except Refusal as refusal:
            log.debug("a message without an answer was not taken: %s", refusal.text)
