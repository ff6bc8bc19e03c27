"""HTTP exchanges with a server: clients, tokens, redirects, the events of a response."""

from __future__ import annotations

import functools
import logging
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from typing import cast

import httpx2
from mcp_types import (
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    RequestId,
)

from mcpagent.tools.transports.jsonrpc import (
    NOTIFICATION,
    Malformed,
    UnaskedTraffic,
    is_for_session,
    is_notification,
    parse,
)
from mcpagent.tools.wire import MAX_MESSAGE_BYTES

# It logs every URL in full, and keys are kept in URLs.
logging.getLogger("httpx2").setLevel(logging.WARNING)

Reply = JSONRPCResponse | JSONRPCError

_RESUME_DELAY_S = 1.0
HEADERS = {
    "accept": "application/json, text/event-stream",
    "accept-encoding": "identity",  # a compressed body would be counted only once it is unpacked
    "content-type": "application/json",
}
_CONNECT_TIMEOUT_S = 15.0
_REDIRECTS_MAX = 5
LOOPBACK = ("localhost", "127.0.0.1", "::1")


def http_client(url: str, headers: Mapping[str, str], auth: httpx2.Auth | None = None) -> httpx2.AsyncClient:
    """Return a client for the server at `url`; `headers` go with every request, and what `auth` adds unless
    the URL itself has a user."""
    address = httpx2.URL(url)
    return httpx2.AsyncClient(
        headers=dict(headers),
        auth=None if address.username else auth,
        # The pool's own limits would lose the calls that wait for a connection. Without TLS there is
        # nothing to verify: no redirect leads to another scheme.
        limits=httpx2.Limits(max_connections=None, max_keepalive_connections=64),
        timeout=httpx2.Timeout(None, connect=_CONNECT_TIMEOUT_S),
        verify=_tls() if address.scheme == "https" else False,
        # Proxies are in the environment, and no proxy reaches what listens on this machine alone.
        trust_env=address.host not in LOOPBACK,
    )


async def send_request(client: httpx2.AsyncClient, request: httpx2.Request) -> httpx2.Response:
    """Return the response to a request, its body still to be read.

    Redirects are followed on the same host and scheme, with the same method: the keys are its own. One of 301
    or 302, which would make a GET of it, is followed if only a slash at the end of the path differs. Any
    other redirect is itself the response. Raises httpx2.TooManyRedirects, and what HTTP raises.
    """
    for _ in range(_REDIRECTS_MAX):
        response = await client.send(request, stream=True, follow_redirects=False)
        following = response.next_request
        if following is None or not same_origin(following.url, request.url):
            return response
        if following.method != request.method:
            if not _differs_by_a_slash(following.url, request.url):
                return response
            headers, content = request.headers, request.content
            following = httpx2.Request(request.method, following.url, headers=headers, content=content)
        await response.aclose()
        request = following
    raise httpx2.TooManyRedirects("it redirects in a circle", request=request)


class BodyTooLarge(httpx2.ReadError):
    """A body that is longer than is read."""


async def read_body(response: httpx2.Response, max_bytes: int) -> bytes:
    """Return the body of a response. Raises BodyTooLarge, and what HTTP raises."""
    parts: list[bytes] = []
    size = 0
    async for part in response.aiter_bytes():
        parts.append(part)
        size += len(part)
        if size > max_bytes:
            raise BodyTooLarge("its answer is too long")
    return b"".join(parts)


def host_of(url: httpx2.URL) -> str:
    """Return as much of a URL as may be shown: no user, no password, no path."""
    return f"{url.scheme}://{url.netloc.decode('ascii').rpartition('@')[2]}"


def same_origin(one: httpx2.URL, other: httpx2.URL) -> bool:
    """Return whether both are at the same scheme, host and port: keys of the one may be sent to the other."""
    return (one.scheme, one.host, one.port) == (other.scheme, other.host, other.port)


def _differs_by_a_slash(one: httpx2.URL, other: httpx2.URL) -> bool:
    return one.path.rstrip("/") == other.path.rstrip("/") and one.query == other.query


@functools.cache
def _tls() -> ssl.SSLContext:
    return httpx2.create_ssl_context()  # 20 ms, so one for all


class Events:
    """The events of one response, over one stream or several."""

    def __init__(
        self,
        request_id: RequestId,
        on_message: Callable[[JSONRPCMessage], None],
        unasked: UnaskedTraffic,
    ) -> None:
        self._request_id = request_id
        self._on_message = on_message
        self._unasked = unasked
        self.last_id: str | None = None
        self.delay_s = _RESUME_DELAY_S
        self.malformed: Malformed | None = None  # an event that could not be read: perhaps the response

    async def reply(self, response: httpx2.Response) -> Reply | None:
        """Return the response, None if the stream ended before it. Raises Malformed and Flood."""
        stream = Counted(response, self._unasked, free_bytes=MAX_MESSAGE_BYTES)
        source = httpx2.EventSource(cast(httpx2.Response, stream), max_event_size=MAX_MESSAGE_BYTES)
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
            if is_for_session(message):
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
        """Yield the pieces, counted. Raises Flood."""
        async for text in self._response.aiter_text():
            self._free_bytes -= len(text)
            if self._free_bytes < 0:
                self._unasked.note(len(text))
            yield text


def as_reply(message: JSONRPCMessage, request_id: RequestId) -> Reply:
    """Return the one response that an exchange has room for, whatever id the server wrote into it."""
    if not isinstance(message, (JSONRPCResponse, JSONRPCError)):
        raise Malformed("it is not a response")
    message.id = request_id
    return message
