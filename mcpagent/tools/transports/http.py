"""The streamable-HTTP transport: one POST, one task, one answer for each request.

Nothing that happens to one exchange can reach another, nor the session: what cannot be had is an MCPError,
which becomes the answer to that one request. In place of the SDK's (docs/design/0005-parts-of-our-own.md).
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import anyio
import httpx2
from anyio.abc import ObjectSendStream
from mcp import MCPError
from mcp.client.sse import sse_client
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp.shared.message import ClientMessageMetadata, SessionMessage
from mcp_types import (
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
)
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from mcpagent.core.values import retry_after_s
from mcpagent.tools.faults import ServerEnded, http_error, http_status_error
from mcpagent.tools.servers_config import HttpServer
from mcpagent.tools.transports.exchange import (
    HEADERS,
    BodyTooLarge,
    Events,
    Reply,
    as_reply,
    host_of,
    http_client,
    read_body,
    send_request,
)
from mcpagent.tools.transports.jsonrpc import (
    Flood,
    Inbox,
    Malformed,
    UnaskedTraffic,
    error_reply,
    parse,
    server_message,
)
from mcpagent.tools.wire import (
    MALFORMED_RESULT,
    MAX_MESSAGE_BYTES,
    NOT_SENT,
    OVERSIZE_RESULT,
    RESPONSE_LOST,
)

log = logging.getLogger(__name__)
logging.getLogger("mcp.client.sse").setLevel(logging.CRITICAL)  # it logs what servers say, and tracebacks

_SESSION_HEADER = "mcp-session-id"
_ERROR_BODY_BYTES = 64 * 1024
_RESUMES_MAX = 2  # of a stream that broke off, without a new event in between
_END_TIMEOUT_S = 2.0
_LISTENING = "listening"  # in the place of the id of a request


class _Requests(ObjectSendStream[SessionMessage]):
    """The write stream of a session over streamable HTTP (2025-03-26 and later): every request is answered in
    a task of its own. `inbox` gets what the server says, `on_lost` the end of the session, `on_end` before it
    why the server was cut off.

    No error text holds a header, or more of the URL than its host: keys are kept in both.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        inbox: Inbox,
        *,
        listens: bool,
        on_lost: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
    ) -> None:
        self._listens = listens
        self._client = client
        self._url = httpx2.URL(url)
        self._host = host_of(self._url)
        self._inbox = inbox
        self._on_lost = on_lost
        self._on_end = on_end
        self._session_id: str | None = None
        self._version: str | None = None  # of the protocol; in headers that do not name it themselves
        self._unasked = UnaskedTraffic()
        self._tasks: dict[int | str, asyncio.Task[None]] = {}
        self._ended = False
        self.flood: Flood | None = None  # set once the server was cut off

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
            is_open = (
                isinstance(message, JSONRPCNotification) and message.method == "notifications/initialized"
            )
            if self._listens and is_open:
                self._tasks[_LISTENING] = asyncio.create_task(self._listen(), name=_LISTENING)

    async def end(self) -> None:
        """Give up what is under way, and tell a server that keeps sessions that this one is over."""
        self._ended = True
        tasks = list(self._tasks.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
        if self._session_id is not None:
            try:
                async with asyncio.timeout(_END_TIMEOUT_S), self._exchange("DELETE", {}):
                    pass
            except (TimeoutError, MCPError):
                pass  # it need not hear of it

    async def aclose(self) -> None:
        """The exchanges are ended by the transport."""

    async def _cancel(self, message: JSONRPCNotification, headers: Mapping[str, str]) -> None:
        """Closing the stream is the signal of 2026-07-28; before that, the notification is."""
        version = headers.get(MCP_PROTOCOL_VERSION_HEADER, self._version)
        if version not in MODERN_PROTOCOL_VERSIONS:
            await self._tell(message, headers)
        request_id = (message.params or {}).get("requestId")
        if isinstance(request_id, (int, str)) and (task := self._tasks.get(request_id)) is not None:
            task.cancel()

    async def _tell(self, message: JSONRPCMessage, headers: Mapping[str, str]) -> None:
        """Send what has no response."""
        try:
            async with self._exchange("POST", headers, message):
                pass
        except MCPError as refusal:
            log.debug("a message without an answer was not taken: %s", refusal.message)

    async def _answer(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> None:
        try:
            reply = await self._request(message, headers)
        except MCPError as refusal:
            reply = error_reply(message.id, refusal.code, refusal.message, refusal.data)
        except Exception as error:
            # A boundary: a call must end, whatever an HTTP library raises.
            log.debug("a POST broke down", exc_info=True)
            reply = error_reply(message.id, RESPONSE_LOST, f"the exchange broke down: {type(error).__name__}")
        self._inbox.put(reply)

    async def _request(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> Reply:
        """Return the response to `message`. Raises MCPError."""
        if message.method == "initialize":
            self._session_id = self._version = None
        try:
            async with self._exchange("POST", headers, message) as response:
                reply = await self._reply(message, response)
                if message.method == "initialize":
                    self._session_id = response.headers.get(_SESSION_HEADER)
                return reply
        except Malformed as error:
            raise MCPError(MALFORMED_RESULT, f"the response cannot be taken: {error.reason}") from error
        except Flood as flood:
            self._cut_off(flood)
            raise MCPError(RESPONSE_LOST, f"the server did not answer: {flood}") from flood

    async def _listen(self) -> None:
        """Hear what the server asks outside of a response, on a stream of its own, if it has one."""
        events = Events(_LISTENING, self._inbox.put, self._unasked)
        try:
            while True:
                async with self._exchange("GET", {}) as response:
                    if response.status_code >= 300:
                        return
                    await events.reply(response)
                await asyncio.sleep(events.delay_s)
        except Flood as flood:
            self._cut_off(flood)
        except (MCPError, Malformed) as error:
            log.debug("the stream of what the server asks ended: %s", error)

    def _cut_off(self, flood: Flood) -> None:
        self.flood = flood
        self._on_end(ServerEnded(str(flood), is_lasting=True))
        self._on_lost()

    @asynccontextmanager
    async def _exchange(
        self, method: str, headers: Mapping[str, str], message: JSONRPCMessage | None = None
    ) -> AsyncGenerator[httpx2.Response]:
        """One HTTP request, its response still to be read. Whatever HTTP raises becomes an MCPError."""
        self._version = headers.get(MCP_PROTOCOL_VERSION_HEADER, self._version)
        ids = {_SESSION_HEADER: self._session_id, MCP_PROTOCOL_VERSION_HEADER: self._version}
        headers = HEADERS | {key: value for key, value in ids.items() if value is not None} | dict(headers)
        body = None if message is None else message.model_dump_json(by_alias=True, exclude_unset=True)
        request = self._client.build_request(method, self._url, headers=headers, content=body)
        try:
            response = await send_request(self._client, request)
            try:
                yield response
            finally:
                await response.aclose()
        except (
            BodyTooLarge,
            httpx2.SSEError,
        ) as error:  # of an event stream its content type has been checked
            text = f"the response is larger than the {MAX_MESSAGE_BYTES} bytes that are taken"
            raise MCPError(OVERSIZE_RESULT, text) from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise http_error(error, self._host) from error

    async def _reply(self, message: JSONRPCRequest, response: httpx2.Response) -> Reply:
        if response.status_code >= 400:
            return await self._error_reply(message, response)
        if (following := response.next_request) is not None:
            target = host_of(following.url)
            why = "it would get the keys" if target != self._host else "the request would become a GET"
            text = f"{self._host} redirects to {target}, which is not followed: {why}"
            raise MCPError(INVALID_REQUEST, text)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return as_reply(parse(await read_body(response, MAX_MESSAGE_BYTES)), message.id)
        if kind == "text/event-stream":
            return await self._streamed(message, response)
        raise Malformed(f"HTTP {response.status_code} with the content type {kind!r}")

    async def _streamed(self, message: JSONRPCRequest, response: httpx2.Response) -> Reply:
        """Return the response among the events; a stream that breaks off is resumed if the server can."""
        events = Events(message.id, self._inbox.put, self._unasked)
        try:
            reply = await events.reply(response)
        except httpx2.SSEError:
            raise
        except httpx2.HTTPError:
            reply = None
        attempts_left = _RESUMES_MAX
        while reply is None:
            if events.last_id is None or not attempts_left:
                raise events.malformed or MCPError(RESPONSE_LOST, "the stream ended without the response")
            await asyncio.sleep(events.delay_s)
            seen = events.last_id
            try:
                async with self._exchange("GET", {"last-event-id": seen}) as resumed:
                    if resumed.status_code < 300:
                        reply = await events.reply(resumed)
            except MCPError as refusal:
                if refusal.code == OVERSIZE_RESULT:
                    raise
            attempts_left = _RESUMES_MAX if events.last_id != seen else attempts_left - 1
        return reply

    async def _error_reply(self, message: JSONRPCRequest, response: httpx2.Response) -> Reply:
        """Return the JSON-RPC error in the body of an HTTP error, else what its status means for a call."""
        status = response.status_code
        if status in (401, 403):
            raise http_status_error(status, self._host)
        error = await self._error_in(message, response)
        told = f": {error.error.message}" if error is not None else ""
        if self._session_id is not None and (status == 404 or (status == 400 and "session" in told.lower())):
            self._on_lost()
            raise MCPError(NOT_SENT, f"the server does not know our session any more (HTTP {status}{told})")
        if error is not None:
            return error
        raise http_status_error(status, self._host, retry_after_s(response.headers))

    async def _error_in(self, message: JSONRPCRequest, response: httpx2.Response) -> JSONRPCError | None:
        try:
            parsed = parse(await read_body(response, _ERROR_BODY_BYTES))
        except (Malformed, BodyTooLarge):
            return None
        if not isinstance(parsed, JSONRPCError):
            return None
        parsed.id = message.id
        return parsed


@asynccontextmanager
async def sse_streams(
    config: HttpServer, *, on_eof: Callable[[], None], auth: httpx2.Auth
) -> AsyncGenerator[tuple[Any, Any]]:
    """Reach a server over HTTP+SSE, the transport of 2024-11-05, by the SDK's own client of it. The end of
    its one stream is the end of the session: `on_eof`."""

    def client(*_: Any, **__: Any) -> httpx2.AsyncClient:  # its timeouts would end a stream that is quiet
        return http_client(config.url, config.headers, auth)

    async with sse_client(config.url, httpx_client_factory=client) as (read, write):
        inbox = Inbox(on_end=on_eof)

        async def pass_on() -> None:
            async for item in read:
                if isinstance(item, SessionMessage):
                    inbox.put(server_message(item.message))
            inbox.end()

        passing = asyncio.create_task(pass_on(), name="events of an HTTP+SSE server")
        try:
            yield inbox, write
        finally:
            passing.cancel()


@asynccontextmanager
async def http_streams(
    config: HttpServer,
    *,
    on_eof: Callable[[], None],
    on_end: Callable[[ServerEnded], None],
    auth: httpx2.Auth,
    listens: bool = False,
) -> AsyncGenerator[tuple[Any, Any]]:
    """Reach the server; a transport for `mcp.Client` (the streams to read from and to write to). If it
    `listens`, what the server asks outside of a response is heard too, which costs a connection.

    There are no timeouts but for connecting: the caller has a deadline, and leaves. `on_eof` is called
    when the server has forgotten our session. Raises ServerEnded at the end if it sent too much unasked.
    """
    async with http_client(config.url, config.headers, auth) as client:
        inbox = Inbox(on_end=on_eof)
        requests = _Requests(client, config.url, inbox, listens=listens, on_lost=on_eof, on_end=on_end)
        try:
            yield inbox, requests
        finally:
            with anyio.CancelScope(shield=True):
                await requests.end()
            if requests.flood is not None:
                raise ServerEnded(str(requests.flood), is_lasting=True)
