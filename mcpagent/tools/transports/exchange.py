"""HTTP exchanges with a server: clients, tokens, redirects, the events of a response; and HTTP+SSE, the
transport that MCP had before streamable HTTP, which has one stream of events for all responses."""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Protocol, cast

import httpx2
from mcp import MCPError
from mcp_types import (
    INVALID_REQUEST,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from mcpagent.core.values import retry_after_s
from mcpagent.tools.faults import ServerEnded, http_error, http_status_error
from mcpagent.tools.transports.jsonrpc import (
    NOTIFICATION,
    Flood,
    Malformed,
    UnaskedTraffic,
    is_notification,
    parse,
)
from mcpagent.tools.wire import MALFORMED_RESULT, NOT_SENT, RESPONSE_LOST

# It logs every URL in full, and keys are kept in URLs.
logging.getLogger("httpx2").setLevel(logging.WARNING)

Reply = JSONRPCResponse | JSONRPCError

_RESUME_DELAY_S = 1.0
_ENDPOINT_TIMEOUT_S = 10.0  # until the stream of HTTP+SSE has said where messages go
HEADERS = {
    "accept": "application/json, text/event-stream",
    "accept-encoding": "identity",  # a compressed body would be counted only once it is unpacked
    "content-type": "application/json",
}
_CONNECT_TIMEOUT_S = 15.0
_REDIRECTS_MAX = 5
_RENEWALS_MAX = 3  # of the token for one request: a new one may have ended when its turn comes
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def http_client(url: str, headers: Mapping[str, str]) -> httpx2.AsyncClient:
    """A client for the server at `url`; `headers` go with every request."""
    address = httpx2.URL(url)
    return httpx2.AsyncClient(
        headers=dict(headers),
        # The pool's own limits would lose the calls that wait for a connection. Without TLS there is
        # nothing to verify: no redirect leads to another scheme.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        verify=_tls() if address.scheme == "https" else False,
        # Proxies are in the environment, and no proxy reaches what listens on this machine alone.
        trust_env=address.host not in LOOPBACK,
    )


class BearerTokens(Protocol):
    """The token of a server that wants a login (`transports.oauth.Authorization`)."""

    async def token(self) -> str | None:
        """The token to send; None where there is no login. Raises MCPError where it has ended."""
        ...

    async def renew(self, refused: str | None) -> bool:
        """Get another token than the one that the server refused; False where there is none."""
        ...

    def refusal(self, response: httpx2.Response) -> MCPError | None:
        """The error for a 401 or 403 that a login would mend; None where it would not."""
        ...


async def send_request(
    client: httpx2.AsyncClient, request: httpx2.Request, tokens: BearerTokens | None = None
) -> httpx2.Response:
    """The response to a request, its body still to be read.

    The server's token is sent with it. One that it refuses is renewed, and the request sent again: a server
    that answers 401 did nothing else. Redirects are followed on the same host and scheme, with the
    same method: the keys are its own. Any other redirect is itself the response. Raises
    httpx2.TooManyRedirects, and what HTTP raises.
    """
    token = None if tokens is None else await tokens.token()
    renewals_left = 0 if tokens is None else _RENEWALS_MAX
    redirects_left = _REDIRECTS_MAX
    while redirects_left:
        if token is not None:
            request.headers["authorization"] = f"Bearer {token}"
        response = await client.send(request, stream=True, follow_redirects=False)
        if tokens is not None and response.status_code == 401 and renewals_left:
            renewals_left -= 1
            if await _renewed(tokens, token, response):
                token = await tokens.token()
                continue
        following = response.next_request
        if (
            following is None
            or following.method != request.method
            or not same_origin(following.url, request.url)
        ):
            return response
        await response.aclose()
        request = following
        redirects_left -= 1
    raise httpx2.TooManyRedirects("it redirects in a circle", request=request)


async def _renewed(tokens: BearerTokens, refused: str | None, response: httpx2.Response) -> bool:
    """Whether there is another token to send than the one that `response` refuses; then it is closed."""
    try:
        is_renewed = await tokens.renew(refused)
    except BaseException:
        await response.aclose()
        raise
    if is_renewed:
        await response.aclose()
    return is_renewed


def host_of(url: httpx2.URL) -> str:
    """As much of a URL as may be shown."""
    return f"{url.scheme}://{url.netloc.decode('ascii').rpartition('@')[2]}"


def same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Whether both are at the same scheme, host and port: keys of the one may be sent to the other."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # 20 ms, so one for all


class Events:
    """The events of one response, over one stream or several."""

    def __init__(
        self,
        max_bytes: int,
        request_id: RequestId,
        on_message: Callable[[JSONRPCMessage], None],
        unasked: UnaskedTraffic,
    ) -> None:
        self._max_bytes = max_bytes
        self._request_id = request_id
        self._on_message = on_message
        self._unasked = unasked
        self.last_id: str | None = None
        self.delay_s = _RESUME_DELAY_S
        self.malformed: Malformed | None = None  # an event that nobody could read: perhaps the response

    async def reply(self, response: httpx2.Response) -> Reply | None:
        """The response, None where the stream ended before it. Raises Malformed and Flood."""
        stream = Counted(response, self._unasked, free_bytes=self._max_bytes)
        source = httpx2.EventSource(cast(httpx2.Response, stream), max_event_size=self._max_bytes)
        async for event in source:
            self.last_id = event.id or self.last_id
            if event.retry is not None:
                self.delay_s = event.retry / 1000
            data = event.data.encode()
            if event.event != "message" or not data or is_notification(data):
                self._unasked.note(len(data), NOTIFICATION)
                continue
            try:
                message = parse(data)
            except Malformed as error:
                if error.request_id is not None:
                    raise
                self.malformed = error
                self._unasked.note(len(data))
                continue
            if isinstance(message, (JSONRPCResponse, JSONRPCError)):
                return as_reply(message, self._request_id)
            self._unasked.note(len(data))
            if isinstance(message, JSONRPCRequest):
                self._on_message(message)
        return None


class Counted:
    """A response that counts as unasked traffic past `free_bytes`: comments, say, are not events."""

    def __init__(self, response: httpx2.Response, unasked: UnaskedTraffic, *, free_bytes: int) -> None:
        self.headers = response.headers
        self.request = response.request
        self._response = response
        self._unasked = unasked
        self._free_bytes = free_bytes

    async def aiter_text(self) -> AsyncIterator[str]:
        """The pieces, counted. Raises Flood."""
        async for text in self._response.aiter_text():
            self._free_bytes -= len(text)
            if self._free_bytes < 0:
                self._unasked.note(len(text))
            yield text


def as_reply(message: JSONRPCMessage, request_id: RequestId) -> Reply:
    """The one response that an exchange has room for, whatever id the server wrote into it."""
    if not isinstance(message, (JSONRPCResponse, JSONRPCError)):
        raise Malformed("it is not a response")
    message.id = request_id
    return message


class SseEndpoint:
    """Exchanges messages with one server over HTTP+SSE, the transport of 2024-11-05, as an `HttpEndpoint`.

    The end of its one stream is the end of the session: `on_lost`.
    """

    version: str | None = None
    flood: Flood | None = None

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        *,
        max_message_bytes: int,
        on_message: Callable[[JSONRPCMessage], None],
        on_lost: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
        tokens: BearerTokens | None = None,
    ) -> None:
        self._client = client
        self._url = httpx2.URL(url)
        self._host = host_of(self._url)
        self._tokens = tokens
        self._max_bytes = max_message_bytes
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_end = on_end
        self._unasked = UnaskedTraffic()
        self._waiting: dict[RequestId, asyncio.Future[Reply]] = {}
        self._posts_to: asyncio.Future[httpx2.URL] = asyncio.get_running_loop().create_future()
        self._reading = asyncio.create_task(self._read(), name=f"events of {self._host}")

    async def request(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> Reply:
        """The response to `message`. Raises MCPError."""
        reply: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting[message.id] = reply
        try:
            await self.notify(message, headers)
            return await reply
        finally:
            self._waiting.pop(message.id, None)
            reply.cancel()

    async def notify(self, message: JSONRPCMessage, headers: Mapping[str, str]) -> None:
        """Send a message; its answer, if any, comes on the stream. Raises MCPError."""
        if self._reading.done():
            raise MCPError(NOT_SENT, f"the stream of {self._host} has ended")
        async with asyncio.timeout(_ENDPOINT_TIMEOUT_S) as late:
            url = await asyncio.shield(self._posts_to)
            late.reschedule(None)
        body = message.model_dump_json(by_alias=True, exclude_unset=True)
        request = self._client.build_request("POST", url, headers={**HEADERS, **headers}, content=body)
        try:
            response = await send_request(self._client, request, self._tokens)
            try:
                if response.status_code >= 300:
                    raise self._refused(response)
            finally:
                await response.aclose()
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            raise http_error(error, self._host) from error

    async def end_session(self) -> None:
        """Close the stream."""
        self._reading.cancel()
        await asyncio.wait({self._reading})

    def _refused(self, response: httpx2.Response) -> MCPError:
        needs_login = None if self._tokens is None else self._tokens.refusal(response)
        return needs_login or http_status_error(
            response.status_code, self._host, retry_after_s(response.headers)
        )

    async def _read(self) -> None:
        """Hand out what the stream says until it ends; whoever still waits learns why it did."""
        fault = MCPError(RESPONSE_LOST, f"the stream of {self._host} ended before the response")
        try:
            await self._stream()
        except MCPError as error:
            fault = error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            fault = http_error(error, self._host)
        except Flood as flood:
            self.flood = flood
            self._on_end(ServerEnded(str(flood), is_lasting=True))
            fault = MCPError(RESPONSE_LOST, f"the server did not answer: {flood}")
        finally:
            for future in (self._posts_to, *self._waiting.values()):
                if not future.done():
                    future.set_exception(fault)
                    future.exception()  # taken, whether anybody waits or not
            self._on_lost()

    async def _stream(self) -> None:
        accepted = {"accept": "text/event-stream", "accept-encoding": "identity", "cache-control": "no-store"}
        request = self._client.build_request("GET", self._url, headers=accepted)
        response = await send_request(self._client, request, self._tokens)
        try:
            if response.status_code != 200:
                raise self._refused(response)
            if not response.headers.get("content-type", "").lower().startswith("text/event-stream"):
                raise MCPError(INVALID_REQUEST, f"{self._host} does not answer with a stream of events")
            source = httpx2.EventSource(response, max_event_size=self._max_bytes)
            async for event in source:
                if event.event == "endpoint":
                    self._take_endpoint(event.data)
                elif event.event == "message" and event.data:
                    self._take(event.data.encode())
                else:
                    self._unasked.note(len(event.data), NOTIFICATION)
        finally:
            await response.aclose()

    def _take_endpoint(self, said: str) -> None:
        url = self._url.join(said)
        if not same_origin(url, self._url):
            raise MCPError(INVALID_REQUEST, f"{self._host} wants messages sent to another host")
        if not self._posts_to.done():
            self._posts_to.set_result(url)

    def _take(self, data: bytes) -> None:
        if is_notification(data):
            self._unasked.note(len(data), NOTIFICATION)
            return
        try:
            message = parse(data)
        except Malformed as error:
            waiting = None if error.request_id is None else self._waiting.get(error.request_id)
            if waiting is None or waiting.done():
                self._unasked.note(len(data))
            else:
                text = f"the response cannot be taken: {error.reason}"
                waiting.set_exception(MCPError(MALFORMED_RESULT, text))
            return
        if isinstance(message, (JSONRPCResponse, JSONRPCError)):
            waiting = None if message.id is None else self._waiting.get(message.id)
            if waiting is not None and not waiting.done():
                waiting.set_result(message)
                return
        self._unasked.note(len(data))
        if isinstance(message, JSONRPCRequest):
            self._on_message(message)
