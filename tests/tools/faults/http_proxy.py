"""A web server of ours between a client and a streamable-HTTP server. It lets everything pass but the faults
that it is told of.

It listens on the loopback, in plain HTTP; to the server it speaks as that server's URL says. It adds the two
tools of `stdio_proxy` to the server's list, and makes the server list its tools where one of them is called.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from enum import StrEnum
from http import HTTPStatus
from types import TracebackType
from typing import Any, NamedTuple, Self

import httpx2
from mcp.shared.inbound import MCP_METHOD_HEADER, MCP_NAME_HEADER

from mcpagent.tools.servers_config import HttpServer
from mcpagent.tools.transports.exchange import host_of, http_client, send_request
from mcpagent.tools.wire import MAX_MESSAGE_BYTES, NOT_SENT
from tests.tools.faults.stdio_proxy import answer, as_message, is_own_call, list_request, with_own_tools

_OVERSIZE_BYTES = MAX_MESSAGE_BYTES + 2**20
_BUSY_S = 1.0
_PIECES = 8
_SESSION_HEADER = "mcp-session-id"
# They are of one connection, not of the message (RFC 9110, 7.6.1), or made anew for the next one.
_NOT_PASSED_ON = {"connection", "content-length", "host", "keep-alive", "transfer-encoding"}


class AnswerFault(StrEnum):
    """Faults of the answer to one call."""

    HANG = "hang"  # it never comes
    CUT = "cut"  # the connection ends in the middle of it
    OVERSIZE = "oversize"  # it is larger than is taken
    GARBAGE = "garbage"  # it is not JSON
    ERROR = "error"  # HTTP 500, and for the next second HTTP 503 to everybody
    SLOW = "slow"  # it comes in pieces, over `slow_s`


class _Request(NamedTuple):
    method: str
    headers: dict[str, str]  # names in lower case
    body: bytes


class HttpProxy:
    """Runs while entered. `faults` are those of the next calls of our tools, one each, in order."""

    def __init__(self, server: HttpServer, *, slow_s: float) -> None:
        self.faults: list[AnswerFault] = []
        self.has_drifted = False
        self._server = server
        self._slow_s = slow_s
        self._client = http_client(server.url, {})
        # Whoever else is on this machine has no business with the server: keys may be in its URL.
        self._path = f"/{secrets.token_urlsafe(16)}"
        self._port = 0
        self._listener: asyncio.Server | None = None
        self._exchanges: set[asyncio.Task[None]] = set()
        self._sessions: set[str] = set()
        self._forgotten: set[str] = set()
        self._busy_until_s = 0.0  # by the loop's clock

    @property
    def url(self) -> str:
        """Where the proxy listens."""
        return f"http://127.0.0.1:{self._port}{self._path}"

    @property
    def has_sessions(self) -> bool:
        """True once the server has opened a session."""
        return bool(self._sessions)

    def forget_sessions(self) -> None:
        """From now on the sessions that the server has opened do not exist."""
        self._forgotten |= self._sessions

    async def listen(self) -> None:
        """Take connections, on the same port each time."""
        self._listener = await asyncio.start_server(self._connected, "127.0.0.1", self._port)
        self._port = self._listener.sockets[0].getsockname()[1]

    async def leave(self) -> None:
        """Take no connection, and break those that there are."""
        if self._listener is not None:
            self._listener.close()
        for exchange in self._exchanges:
            exchange.cancel()
        await asyncio.gather(*self._exchanges, return_exceptions=True)

    async def __aenter__(self) -> Self:
        await self.listen()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.leave()
        await self._client.aclose()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """One exchange; the connection serves no other."""
        exchange = asyncio.current_task()
        assert exchange is not None
        self._exchanges.add(exchange)
        try:
            # Either end may go at any moment.
            with suppress(
                OSError, EOFError, asyncio.LimitOverrunError, httpx2.HTTPError, asyncio.CancelledError
            ):
                await self._exchange(reader, writer)
                writer.close()
                await writer.wait_closed()
        finally:
            self._exchanges.discard(exchange)
            writer.transport.abort()  # without effect where the answer was whole

    async def _exchange(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        request = await self._read(reader)
        session = request.headers.get(_SESSION_HEADER)
        if session in self._forgotten and request.method != "DELETE":
            return await _respond(writer, 404)
        message = as_message(request.body)
        if is_own_call(message) and self.faults:
            return await self._fail(self.faults.pop(0), message["id"], writer)
        if asyncio.get_running_loop().time() < self._busy_until_s:
            return await _respond(writer, 503)
        if is_own_call(message):
            request = _as_list_request(request, message)
        try:
            response = await self._ask(request)
        except httpx2.TransportError as error:
            # In words that the client repeats as its own: nobody is to look for a fault in this proxy.
            text = f"cannot connect to {host_of(httpx2.URL(self._server.url))}: {error}"
            told = {"jsonrpc": "2.0", "id": message.get("id"), "error": {"code": NOT_SENT, "message": text}}
            return await _respond(writer, 502, told)
        try:
            if session_id := response.headers.get(_SESSION_HEADER):
                self._sessions.add(session_id)
            is_list = message.get("method") == "tools/list" or is_own_call(message)
            if is_list and response.status_code == HTTPStatus.OK:
                await _respond(writer, HTTPStatus.OK, await self._listed(message, response))
            else:
                await _pass_on(response, writer)
        finally:
            await response.aclose()

    async def _read(self, reader: asyncio.StreamReader) -> _Request:
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1")
        first, *lines = head.rstrip().split("\r\n")
        method, path, _ = first.split(" ", 2)
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        if path != self._path:
            raise EOFError
        return _Request(method, headers, await reader.readexactly(int(headers.get("content-length", 0))))

    async def _ask(self, request: _Request) -> httpx2.Response:
        headers = {name: value for name, value in request.headers.items() if name not in _NOT_PASSED_ON}
        url = self._server.url
        content = request.body or None
        return await send_request(
            self._client, self._client.build_request(request.method, url, headers=headers, content=content)
        )

    async def _listed(self, message: dict[str, Any], response: httpx2.Response) -> dict[str, Any]:
        """What becomes of the server's answer to a request for its tools, theirs or ours; an error stays."""
        reply = await _reply_in(response)
        page = reply.get("result")
        if not isinstance(page, dict) or "tools" not in page:
            return reply
        if is_own_call(message):
            return answer(message["id"])
        return {**reply, "result": with_own_tools(page, has_drifted=self.has_drifted)}

    async def _fail(self, fault: AnswerFault, request_id: Any, writer: asyncio.StreamWriter) -> None:
        match fault:
            case AnswerFault.HANG:
                await asyncio.Event().wait()
            case AnswerFault.CUT:
                writer.write(_encoded(200, answer(request_id))[:-20])
                await writer.drain()
                writer.transport.close()
            case AnswerFault.OVERSIZE:
                await _respond(writer, 200, answer(request_id, "x" * _OVERSIZE_BYTES))
            case AnswerFault.GARBAGE:
                await _respond(writer, 200, b'{"jsonrpc": "2.0", "id": 1, "result": {,\xff')
            case AnswerFault.ERROR:
                self._busy_until_s = asyncio.get_running_loop().time() + _BUSY_S
                await _respond(writer, 500)
            case AnswerFault.SLOW:
                whole = _encoded(200, answer(request_id))
                size = -(-len(whole) // _PIECES)
                for start in range(0, len(whole), size):
                    await asyncio.sleep(self._slow_s / _PIECES)
                    writer.write(whole[start : start + size])
                    await writer.drain()


def _as_list_request(request: _Request, call: dict[str, Any]) -> _Request:
    """What goes to the server for a call of our tools. Since 2026-07-28 headers repeat what the body says."""
    headers = {name: value for name, value in request.headers.items() if name != MCP_NAME_HEADER}
    if MCP_METHOD_HEADER in headers:
        headers[MCP_METHOD_HEADER] = "tools/list"
    return _Request(request.method, headers, json.dumps(list_request(call)).encode())


async def _reply_in(response: httpx2.Response) -> dict[str, Any]:
    """The response of JSON-RPC in one of HTTP; empty where there is none."""
    if not response.headers.get("content-type", "").startswith("text/event-stream"):
        return as_message(await response.aread())
    async for event in httpx2.EventSource(response, max_event_size=None):
        message = as_message(event.data.encode())
        if "id" in message and "method" not in message:
            return message
    return {}


async def _pass_on(response: httpx2.Response, writer: asyncio.StreamWriter) -> None:
    """As it comes, in chunks, so that one that breaks off is seen to."""
    kept = {name: value for name, value in response.headers.items() if name.lower() not in _NOT_PASSED_ON}
    writer.write(_head(response.status_code, {**kept, "transfer-encoding": "chunked"}))
    async for part in response.aiter_raw():
        writer.write(b"%x\r\n%b\r\n" % (len(part), part))
        await writer.drain()
    writer.write(b"0\r\n\r\n")
    await writer.drain()


async def _respond(writer: asyncio.StreamWriter, status: int, body: dict[str, Any] | bytes = b"") -> None:
    writer.write(_encoded(status, body))
    await writer.drain()


def _encoded(status: int, body: dict[str, Any] | bytes) -> bytes:
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    return _head(status, {"content-type": "application/json", "content-length": str(len(data))}) + data


def _head(status: int, headers: Mapping[str, str]) -> bytes:
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}"]
    lines += [f"{name}: {value}" for name, value in {**headers, "connection": "close"}.items()]
    return "\r\n".join([*lines, "", ""]).encode("latin-1")
