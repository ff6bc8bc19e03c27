"""JSON-RPC messages from bytes that a server wrote, and the stream on which a session reads them.

The bytes are not trusted: one bad message costs the call that it answers, never the session.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import deque
from collections.abc import Callable
from types import TracebackType
from typing import Any, NoReturn, Self

import anyio
from mcp.shared.message import SessionMessage
from mcp_types import (
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from mcpagent.tools.wire import wire_fault

# As much of the two ends of a message as `response_id` looks at.
HEAD_BYTES, TAIL_BYTES = 1024, 512

_ID = rb'"id"\s*:\s*(-?\d{1,18}|"[^"\\]{1,200}")'
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME = rb'"(?:result|error)"\s*:'
_REST = (_VERSION, _OUTCOME)
_ID_IN_HEAD = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?%b" % (_VERSION, _ID, _VERSION, _OUTCOME)
)
_OUTCOME_FIRST = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?%b" % (_VERSION, _OUTCOME))
_ID_IN_TAIL = re.compile(rb",\s*%b\s*(?:,\s*%b\s*)?\}\s*$" % (_ID, _VERSION))


class Malformed(Exception):
    """A message that cannot be taken. `request_id` is set where it is the response to that request."""

    def __init__(self, reason: str, request_id: RequestId | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.request_id = request_id


def parse(data: bytes) -> JSONRPCMessage:
    """The message in `data`. What comes back is text that can be encoded and numbers that can be printed.

    Invalid UTF-8 and lone surrogates become U+FFFD; everything else that is wrong raises Malformed. The
    structured content of a result may still hold an infinity, as which JSON's 1e999 is read: whoever takes
    it must look at it anyhow.
    """
    try:
        # Refuses lone surrogates, integers of more than 4300 digits, NaN and 200 levels, in a third of the
        # time of json.loads.
        message = from_json(data, allow_inf_nan=False)
    except ValueError:
        message = _repaired(data)
    if type(message) is not dict:
        raise Malformed("it is not a JSON object")
    request_id = None if "method" in message else message.get("id")
    result = message.get("result")
    if type(result) is dict and (fault := wire_fault(result.get("_meta"))):
        raise Malformed(f"its _meta holds {fault}", _as_id(request_id))
    if type(result) is dict and type(request_id) is int and message.get("jsonrpc") == "2.0":
        return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
    if "error" in message and "method" not in message:
        message.setdefault("id", None)  # some leave it out where the standard wants null
    try:
        return jsonrpc_message_adapter.validate_python(message, by_name=False)
    except ValidationError as error:
        raise Malformed("it is not a JSON-RPC message", _as_id(request_id)) from error


def response_id(head: bytes, tail: bytes) -> RequestId | None:
    """The id of a response of which only the two ends are readable; None if it is not certain.

    Only the outermost object counts: a result may hold `"id": 3` too, and the id of a request that the
    server makes is not one of ours.
    """
    found = _ID_IN_HEAD.match(head)
    if found is None and _OUTCOME_FIRST.match(head):
        found = _ID_IN_TAIL.search(tail)
    return None if found is None else json.loads(found[1].decode("utf-8", "replace"))


def error_reply(
    request_id: RequestId, code: int, text: str, data: dict[str, Any] | None = None
) -> JSONRPCError:
    """What the transport answers in place of the server."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=text, data=data))


def _repaired(data: bytes) -> Any:
    """What a stricter sender would have sent. Raises Malformed where that cannot be known."""
    try:
        lenient = json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        text = json.dumps(lenient, ensure_ascii=False)
        clean = text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
        return from_json(clean, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        request_id = response_id(data[:HEAD_BYTES], data[-TAIL_BYTES:])
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Malformed(reason, request_id) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds the number {name}, which JSON does not have")


def _as_id(value: object) -> RequestId | None:
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


class Inbox:
    """The read stream of a session: messages in order, then the end, which `on_end` reports.

    The SDK tells nobody that a server is gone until the next call, and then a request that was never sent
    looks like one that was lost on the way.
    """

    def __init__(self, *, on_end: Callable[[], None], on_empty: Callable[[], None] | None = None) -> None:
        self._items: deque[SessionMessage | Exception] = deque()
        self._on_end = on_end
        self._on_empty = on_empty
        self._ended = False
        self._reader: asyncio.Future[None] | None = None

    def __len__(self) -> int:
        return len(self._items)

    def put(self, message: JSONRPCMessage) -> None:
        """Hand a message to the session; dropped once the stream has ended."""
        if not self._ended:
            self._items.append(SessionMessage(message))
            self._wake()

    def end(self) -> None:
        """No message follows. Idempotent."""
        self._ended = True
        self._wake()

    async def receive(self) -> SessionMessage | Exception:
        while not self._items:
            if self._ended:
                self._on_end()
                raise anyio.EndOfStream
            if self._on_empty is not None:
                self._on_empty()
            self._reader = asyncio.get_running_loop().create_future()
            await self._reader
        return self._items.popleft()

    async def aclose(self) -> None:
        self._items.clear()
        self.end()

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self.receive()
        except anyio.EndOfStream:
            raise StopAsyncIteration from None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)
