"""One MCP endpoint over HTTP: a request goes out, its response comes back, whatever the server sends.

Streamable HTTP as of 2025-03-26 and later, with one exchange a request: nothing that happens to one can
reach another. What cannot be had is a `Refusal`, which becomes the answer to that one request.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import cast

import httpx2
from mcp.shared.inbound import MCP_PROTOCOL_VERSION_HEADER
from mcp_types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
)

from mcpagent.core.values import retry_after_s
from mcpagent.tools.faults import ServerEnded
from mcpagent.tools.transports.jsonrpc import (
    NOTIFICATION,
    Flood,
    Malformed,
    UnaskedTraffic,
    is_notification,
    parse,
)
from mcpagent.tools.wire import (
    FORBIDDEN,
    MALFORMED_RESULT,
    NOT_SENT,
    OVERSIZE_RESULT,
    RESPONSE_LOST,
    RETRY_AFTER,
    THROTTLED,
)

# It logs every URL in full, and keys are kept in URLs.
logging.getLogger("httpx2").setLevel(logging.WARNING)

_CONNECT_TIMEOUT_S = 15.0
_REDIRECTS_MAX = 5
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


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
        trust_env=address.host not in _LOOPBACK,
    )


async def send(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """The response to a request, its body still to be read.

    Redirects are followed on the same host and scheme, with the same method: the keys are its own. Any other
    redirect is itself the response. Raises httpx2.TooManyRedirects, and what HTTP raises.
    """
    for _ in range(_REDIRECTS_MAX):
        response = await client.send(request, stream=True, follow_redirects=False)
        following = response.next_request
        if (
            following is None
            or following.method != request.method
            or _origin(following.url) != _origin(request.url)
        ):
            return response
        await response.aclose()
        request = following
    raise httpx2.TooManyRedirects("it redirects in a circle", request=request)


def host_of(url: httpx2.URL) -> str:
    """As much of a URL as may be shown."""
    return f"{url.scheme}://{url.netloc.decode('ascii').rpartition('@')[2]}"


def _origin(url: httpx2.URL) -> tuple[str, str, int | None]:
    return url.scheme, url.host, url.port


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # 20 ms, so one for all


Reply = JSONRPCResponse | JSONRPCError

_SESSION_HEADER = "mcp-session-id"
_HEADERS = {
    "accept": "application/json, text/event-stream",
    "accept-encoding": "identity",  # a compressed body would be counted only once it is unpacked
    "content-type": "application/json",
}
_ERROR_BODY_BYTES = 64 * 1024
_RESUMES_MAX = 2  # of a stream that broke off, without a new event in between
_RESUME_DELAY_S = 1.0
_END_TIMEOUT_S = 2.0


class Refusal(Exception):
    """A request without a response of the server's own: the code, the text and the data of our answer to
    it."""

    def __init__(self, code: int, text: str, data: dict[str, float] | None = None) -> None:
        super().__init__(text)
        self.code = code
        self.text = text
        self.data = data


class HttpEndpoint:
    """`on_message` gets what the server says besides responses, `on_lost` the end of the session,
    `on_end` before it why the server was cut off.

    No error text holds a header, or more of the URL than its host: keys are kept in both.
    """

    def __init__(
        self,
        client: httpx2.AsyncClient,
        url: str,
        *,
        max_message_bytes: int,
        on_message: Callable[[JSONRPCMessage], None],
        on_lost: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
    ) -> None:
        self._client = client
        self._url = httpx2.URL(url)
        self._max_bytes = max_message_bytes
        self._on_message = on_message
        self._on_lost = on_lost
        self._on_end = on_end
        self._session_id: str | None = None
        self._unasked = UnaskedTraffic()
        self.flood: Flood | None = None  # set once the server was cut off
        self.version: str | None = None  # of the protocol; in headers that do not name it themselves

    async def request(self, message: JSONRPCRequest, headers: Mapping[str, str]) -> Reply:
        """The response to `message`. Raises Refusal."""
        if message.method == "initialize":
            self._session_id = self.version = None
        try:
            async with self._exchange("POST", headers, _encoded(message)) as response:
                reply = await self._reply(message, response)
                if message.method == "initialize":
                    self._session_id = response.headers.get(_SESSION_HEADER)
                return reply
        except Malformed as error:
            raise Refusal(MALFORMED_RESULT, f"the response cannot be taken: {error.reason}") from error
        except Flood as flood:
            self.flood = flood
            self._on_end(ServerEnded(str(flood), is_lasting=True))
            self._on_lost()
            raise Refusal(RESPONSE_LOST, f"the server did not answer: {flood}") from flood

    async def notify(self, message: JSONRPCMessage, headers: Mapping[str, str]) -> None:
        """Send what has no response. Raises Refusal where it cannot even be sent."""
        async with self._exchange("POST", headers, _encoded(message)):
            pass

    async def end_session(self) -> None:
        """Tell a server that keeps sessions that this one is over; it need not hear of it."""
        if self._session_id is not None:
            try:
                async with asyncio.timeout(_END_TIMEOUT_S), self._exchange("DELETE", {}):
                    pass
            except (TimeoutError, Refusal):
                pass

    @asynccontextmanager
    async def _exchange(
        self, method: str, headers: Mapping[str, str], body: bytes | None = None
    ) -> AsyncGenerator[httpx2.Response]:
        """One HTTP request, its response still to be read. Whatever HTTP raises becomes a Refusal."""
        self.version = headers.get(MCP_PROTOCOL_VERSION_HEADER, self.version)
        own = {_SESSION_HEADER: self._session_id, MCP_PROTOCOL_VERSION_HEADER: self.version}
        named = {key: value for key, value in own.items() if value is not None}
        request = self._client.build_request(
            method, self._url, headers=_HEADERS | named | dict(headers), content=body
        )
        try:
            response = await send(self._client, request)
            try:
                yield response
            finally:
                await response.aclose()
        except httpx2.SSEError as error:  # the one that is left: the content type has been checked
            raise self._oversize() from error
        except (httpx2.ConnectError, httpx2.ConnectTimeout) as error:
            raise Refusal(NOT_SENT, f"cannot connect to {self._host()}: {error}") from error
        except (httpx2.LocalProtocolError, httpx2.ProxyError, httpx2.UnsupportedProtocol) as error:
            raise Refusal(NOT_SENT, f"cannot send to {self._host()}: {type(error).__name__}") from error
        except httpx2.TooManyRedirects as error:
            raise Refusal(INVALID_REQUEST, f"{self._host()} redirects in a circle") from error
        except (httpx2.HTTPError, httpx2.StreamError) as error:
            text = f"{self._host()} did not answer: {type(error).__name__}"
            raise Refusal(RESPONSE_LOST, text) from error

    async def _reply(self, message: JSONRPCRequest, response: httpx2.Response) -> Reply:
        if response.status_code >= 400:
            return await self._error_reply(message, response)
        if (following := response.next_request) is not None:
            target = f"{following.url.scheme}://{following.url.host}"
            text = f"{self._host()} redirects to {target}, which is not followed: it would get the keys"
            raise Refusal(INVALID_REQUEST, text)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        if kind == "application/json":
            return _as_reply(parse(await self._body(response, self._max_bytes)), message.id)
        if kind == "text/event-stream":
            return await self._streamed(message, response)
        raise Malformed(f"HTTP {response.status_code} with the content type {kind!r}")

    async def _body(self, response: httpx2.Response, max_bytes: int) -> bytes:
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_bytes():
            parts.append(part)
            size += len(part)
            if size > max_bytes:
                raise self._oversize()
        return b"".join(parts)

    async def _streamed(self, message: JSONRPCRequest, response: httpx2.Response) -> Reply:
        """The response among the events; a stream that breaks off is resumed where the server can."""
        events = _Events(self._max_bytes, message.id, self._on_message, self._unasked)
        try:
            reply = await events.reply(response)
        except httpx2.SSEError:
            raise
        except httpx2.HTTPError:
            reply = None
        attempts_left = _RESUMES_MAX
        while reply is None:
            if events.last_id is None or not attempts_left:
                raise events.malformed or Refusal(RESPONSE_LOST, "the stream ended without the response")
            await asyncio.sleep(events.delay_s)
            seen = events.last_id
            try:
                async with self._exchange("GET", {"last-event-id": seen}) as resumed:
                    if resumed.status_code < 300:
                        reply = await events.reply(resumed)
            except Refusal as refusal:
                if refusal.code == OVERSIZE_RESULT:
                    raise
            attempts_left = _RESUMES_MAX if events.last_id != seen else attempts_left - 1
        return reply

    async def _error_reply(self, message: JSONRPCRequest, response: httpx2.Response) -> Reply:
        """What an HTTP error says: the JSON-RPC error in its body, else what its status means for a call."""
        status = response.status_code
        if status in (401, 403):
            raise Refusal(FORBIDDEN, f"{self._host()} refuses us (HTTP {status}): {_AUTH_ADVICE}")
        error = await self._error_in(message, response)
        told = f": {error.error.message}" if error is not None else ""
        if self._session_id is not None and (status == 404 or (status == 400 and "session" in told.lower())):
            self._on_lost()
            raise Refusal(NOT_SENT, f"the server does not know our session any more (HTTP {status}{told})")
        if error is not None:
            return error
        wait_s = retry_after_s(response.headers)
        if status == 429 or (status == 503 and wait_s is not None):
            text = f"{self._host()} takes no more calls for now (HTTP {status})"
            raise Refusal(THROTTLED, text, None if wait_s is None else {RETRY_AFTER: wait_s})
        raise Refusal(*_meaning(status, self._host()))

    async def _error_in(self, message: JSONRPCRequest, response: httpx2.Response) -> JSONRPCError | None:
        try:
            parsed = parse(await self._body(response, _ERROR_BODY_BYTES))
        except (Malformed, Refusal):
            return None
        if not isinstance(parsed, JSONRPCError):
            return None
        parsed.id = message.id
        return parsed

    def _oversize(self) -> Refusal:
        return Refusal(
            OVERSIZE_RESULT, f"the response is larger than the {self._max_bytes} bytes that are taken"
        )

    def _host(self) -> str:
        return host_of(self._url)


_AUTH_ADVICE = 'look at "headers" of this server, say {"Authorization": "Bearer ${TOKEN}"}'


class _Events:
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
        stream = _Counted(response, self._unasked, free_bytes=self._max_bytes)
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
                return _as_reply(message, self._request_id)
            self._unasked.note(len(data))
            if isinstance(message, JSONRPCRequest):
                self._on_message(message)
        return None


class _Counted:
    """A response that counts as unasked traffic past `free_bytes`: comments, say, are no events."""

    def __init__(self, response: httpx2.Response, unasked: UnaskedTraffic, *, free_bytes: int) -> None:
        self.headers = response.headers
        self.request = response.request
        self._response = response
        self._unasked = unasked
        self._free_bytes = free_bytes

    async def aiter_text(self) -> AsyncIterator[str]:
        async for text in self._response.aiter_text():
            self._free_bytes -= len(text)
            if self._free_bytes < 0:
                self._unasked.note(len(text))
            yield text


def _as_reply(message: JSONRPCMessage, request_id: RequestId) -> Reply:
    """The one response that an exchange has room for, whatever id the server wrote into it."""
    if not isinstance(message, (JSONRPCResponse, JSONRPCError)):
        raise Malformed("it is not a response")
    message.id = request_id
    return message


def _meaning(status: int, host: str) -> tuple[int, str]:
    """What an HTTP status without a JSON-RPC error means for a call: our code, and words."""
    if status == 413:
        return INVALID_PARAMS, f"the request is larger than {host} takes (HTTP 413)"
    if status == 404:
        return METHOD_NOT_FOUND, f"{host} has nothing at this path (HTTP 404)"
    if status == 503:
        return NOT_SENT, f"{host} takes no call at the moment (HTTP {status})"
    if status >= 500:
        return RESPONSE_LOST, f"{host} failed (HTTP {status})"
    return INVALID_REQUEST, f"{host} refused the request (HTTP {status})"


def _encoded(message: JSONRPCMessage) -> bytes:
    return message.model_dump_json(by_alias=True, exclude_unset=True).encode()
