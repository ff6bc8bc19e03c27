"""JSON-RPC messages from bytes that a server wrote, and the stream on which a session reads them.

The bytes are not trusted: one bad message costs the call that it answers, never the session.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, BinaryIO, NoReturn

import anyio
from anyio.abc import ObjectReceiveStream
from mcp.shared.message import SessionMessage
from mcp_types import (
    CONNECTION_CLOSED,
    REQUEST_TIMEOUT,
    ErrorData,
    JSONRPCError,
    JSONRPCMessage,
    JSONRPCNotification,
    JSONRPCRequest,
    JSONRPCResponse,
    RequestId,
    jsonrpc_message_adapter,
)
from pydantic import ValidationError
from pydantic_core import from_json

from mcpagent.tools.wire import (
    FORBIDDEN,
    LOGIN_NEEDED,
    MALFORMED_RESULT,
    NOT_SENT,
    OVERSIZE_RESULT,
    RESPONSE_LOST,
    SERVER_ERROR,
    THROTTLED,
    clean_text,
    wire_fault,
)

# As much of the two ends of a message as `response_id` looks at.
HEAD_BYTES, TAIL_BYTES = 1024, 512
# By which the SDK and our transports say what they saw themselves.
_OWN_CODES = {CONNECTION_CLOSED, REQUEST_TIMEOUT, OVERSIZE_RESULT, MALFORMED_RESULT, NOT_SENT, RESPONSE_LOST}
_OWN_CODES |= {THROTTLED, FORBIDDEN, LOGIN_NEEDED, SERVER_ERROR}
_BLOCKS_MAX = 500  # of one result; text blocks that follow one another count as one if there are more

_ID = rb'"id"\s*:\s*(-?\d{1,18}(?:\.0{1,18})?|"[^"\\]{1,200}")'
_NUMBER = re.compile(r"(-?[0-9]{1,18})(?:\.0{1,18})?")
_VERSION = rb'"jsonrpc"\s*:\s*"2\.0"'
_OUTCOME = rb'"(?:result|error)"\s*:'
_ID_IN_HEAD = re.compile(
    rb"\s*\{\s*(?:%b\s*,\s*)?%b\s*,\s*(?:%b\s*,\s*)?%b" % (_VERSION, _ID, _VERSION, _OUTCOME)
)
_OUTCOME_FIRST = re.compile(rb"\s*\{\s*(?:%b\s*,\s*)?%b" % (_VERSION, _OUTCOME))
_ID_IN_TAIL = re.compile(rb",\s*%b\s*(?:,\s*%b\s*)?\}\s*$" % (_ID, _VERSION))


class Malformed(Exception):
    """A message that cannot be taken. `request_id` is set if it is the response to that request."""

    def __init__(self, reason: str, request_id: RequestId | None = None) -> None:
        super().__init__(reason)
        self.reason = reason
        self.request_id = request_id


def parse(data: bytes) -> JSONRPCMessage:
    """Return the message in `data`. What comes back is text that can be encoded and numbers that can be
    printed.

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
    request_id = None if "method" in message else _sent_id(message.get("id"))
    result = message.get("result")
    if type(result) is dict and (fault := wire_fault(result.get("_meta"))):
        raise Malformed(f"its _meta holds {fault}", request_id)
    if type(result) is dict and type(result.get("content")) is list:
        result["content"] = _few_blocks(result["content"], request_id)
    if type(result) is dict and type(request_id) is int and message.get("jsonrpc") == "2.0":
        return JSONRPCResponse(jsonrpc="2.0", id=request_id, result=result)
    if "method" not in message:
        message["id"] = request_id  # of an error some leave it out although the standard wants null
    try:
        return server_message(jsonrpc_message_adapter.validate_python(message, by_name=False))
    except ValidationError as error:
        raise Malformed(f"it is not a JSON-RPC message: {_fault_of(error, message)}", request_id) from error


def server_message(message: JSONRPCMessage) -> JSONRPCMessage:
    """Return a message of a server; an error with a code by which our own transports say what they saw is
    told apart from theirs."""
    if isinstance(message, JSONRPCError) and message.error.code in _OWN_CODES:
        text = f"the server answered with error {message.error.code}: {message.error.message}"
        message.error = ErrorData(code=SERVER_ERROR, message=text)
    return message


def _fault_of(error: ValidationError, message: dict[str, Any]) -> str:
    """Return what is wrong with a message as the one of the four kinds that it is most like."""
    likely = {"error": "JSONRPCError", "result": "JSONRPCResponse", "id": "JSONRPCRequest"}
    kind = next((likely[key] for key in likely if key in message), "JSONRPCNotification")
    faults = error.errors(include_url=False, include_input=False)
    fault = next((fault for fault in faults if fault["loc"][0] == kind), faults[0])
    return f"{'.'.join(map(str, fault['loc'][1:]))}: {fault['msg']}"


def _few_blocks(blocks: list[Any], request_id: RequestId | None) -> list[Any]:
    """Join the text blocks of a result that has many: the SDK validates each block twice on the event loop,
    which for 20,000 of them would hold up the calls of other servers."""
    if len(blocks) <= _BLOCKS_MAX:
        return blocks
    joined: list[Any] = []
    for block in blocks:
        is_text = type(block) is dict and block.keys() == {"type", "text"} and type(block["text"]) is str
        if is_text and joined and type(joined[-1]) is list:
            joined[-1].append(block["text"])
        else:
            joined.append([block["text"]] if is_text else block)
    if len(joined) > _BLOCKS_MAX:
        raise Malformed(f"it has {len(joined):,} content blocks; {_BLOCKS_MAX:,} are taken", request_id)
    return [{"type": "text", "text": "\n".join(b)} if type(b) is list else b for b in joined]


def response_id(head: bytes, tail: bytes) -> RequestId | None:
    """Return the id of a response of which only the two ends are readable; None if it is not certain.

    Only the outermost object counts: a result may hold `"id": 3` too, and the id of a request that the
    server makes is not one of ours.
    """
    match = _ID_IN_HEAD.match(head)
    if match is None and _OUTCOME_FIRST.match(head):
        match = _ID_IN_TAIL.search(tail)
    return None if match is None else _sent_id(json.loads(match[1].decode("utf-8", "replace")))


def error_reply(
    request_id: RequestId, code: int, text: str, data: dict[str, Any] | None = None
) -> JSONRPCError:
    """Return what the transport answers in place of the server."""
    return JSONRPCError(jsonrpc="2.0", id=request_id, error=ErrorData(code=code, message=text, data=data))


def _repaired(data: bytes) -> Any:
    """Return what a stricter sender would have sent. Raises Malformed if that cannot be known."""
    try:
        lenient = json.loads(data.decode("utf-8", "replace"), parse_constant=_refuse_constant)
        clean = clean_text(json.dumps(lenient, ensure_ascii=False))
        return from_json(clean, allow_inf_nan=False)
    except (ValueError, RecursionError) as error:
        request_id = response_id(data[:HEAD_BYTES], data[-TAIL_BYTES:])
        reason = "it is nested too deeply" if isinstance(error, RecursionError) else str(error)
        raise Malformed(reason, request_id) from error


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"it holds the number {name}, which JSON does not have")


def _sent_id(value: object) -> RequestId | None:
    """Return the id of a response as it was sent: some servers send a number back as another JSON number, or
    as the text, of the same value. None if it is no id at all."""
    if isinstance(value, str) and (number := _NUMBER.fullmatch(value)):
        return int(number[1])
    if isinstance(value, float):
        return int(value) if value.is_integer() else None
    return value if isinstance(value, (int, str)) and not isinstance(value, bool) else None


class Inbox(ObjectReceiveStream[SessionMessage]):
    """The read stream of a session: messages in order, then the end, which `on_end` reports.

    With the SDK, that a server is gone shows only at the next call, and then a request that was never sent
    looks like one that was lost on the way.
    """

    def __init__(self, *, on_end: Callable[[], None], on_empty: Callable[[], None] | None = None) -> None:
        self._items: deque[SessionMessage] = deque()
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

    async def receive(self) -> SessionMessage:
        """Return the next message. Raises EndOfStream after the last one."""
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
        """Drop what was not read, and end the stream."""
        self._items.clear()
        self.end()

    def _wake(self) -> None:
        if self._reader is not None and not self._reader.done():
            self._reader.set_result(None)


# Of notifications one is used: no progress, no logs.
_TOOLS_CHANGED = "notifications/tools/list_changed"
_NOTIFICATION = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*'
    rb'"notifications/(?!tools/list_changed")[^"\\]*"\s*[,}]'
)

_PER_S = 2_000  # of units, below
_AT_ONCE = 20_000
NOTIFICATION, OTHER = 1, 20  # units for a message: dropped unread, or to be parsed and answered
_UNIT_BYTES = 1024  # and one for each KiB

LOG_BYTES = 4 * 2**20  # of one log; then its middle is cut
_LOG_HEAD_BYTES = _LOG_TAIL_BYTES = 2**20
_LOG_MARK = re.compile(rb"\n\[\.\.\. (\d+) bytes cut \.\.\.\]\n")
_LOG_MARK_BYTES = 64


class Flood(Exception):
    """The server sends more than it may."""


class UnaskedTraffic:
    """The traffic that one connection sends besides the answers to its requests. `clock` gives seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(_AT_ONCE)
        self._seen_s = clock()

    def note(self, size: int, units: int = OTHER) -> None:
        """Count a message of `size` bytes. Raises Flood past the rate."""
        now_s = self._clock()
        self._left = min(_AT_ONCE, self._left + (now_s - self._seen_s) * _PER_S)
        self._seen_s = now_s
        self._left -= units + size // _UNIT_BYTES
        if self._left < 0:
            asked = f"{_PER_S:,} messages or {_PER_S * _UNIT_BYTES / 1e6:.0f} MB a second"
            raise Flood(f"it was cut off: it sends more than {asked} without being asked")


def is_notification(data: bytes) -> bool:
    """Return True for what may be dropped before it is parsed; some notifications are only known
    afterwards."""
    return _NOTIFICATION.match(data) is not None


def is_for_session(message: JSONRPCMessage) -> bool:
    """Return True for what a server says unasked and the session is told: its requests, which are refused,
    and that its tools have changed."""
    if isinstance(message, JSONRPCNotification):
        return message.method == _TOOLS_CHANGED
    return isinstance(message, JSONRPCRequest)


def append_to_log(log: BinaryIO, data: bytes) -> None:
    """Write to the end of a log that is open for appending, and keep it below `LOG_BYTES`: its beginning and
    its end stay, with a mark between them that says how much was cut."""
    size = os.fstat(log.fileno()).st_size
    if size + len(data) <= LOG_BYTES:
        os.write(log.fileno(), data)
        return
    with open(log.name, "r+b") as file:  # noqa: PTH123 - a name that is open already
        head = file.read(_LOG_HEAD_BYTES)
        mark = _LOG_MARK.match(file.read(_LOG_MARK_BYTES))
        cut_before, mark_bytes = (int(mark[1]), mark.end()) if mark else (0, 0)
        file.seek(max(_LOG_HEAD_BYTES + mark_bytes, size - _LOG_TAIL_BYTES))
        rest = file.read() + data
        tail = rest[-_LOG_TAIL_BYTES:]
        cut = cut_before + size + len(data) - len(head) - mark_bytes - len(tail)
        file.seek(0)
        file.write(head + b"\n[... %d bytes cut ...]\n" % cut + tail)
        file.truncate()


@dataclass(frozen=True)
class OversizeLine:
    """The two ends of a line that was dropped while it streamed by."""

    head: bytes
    tail: bytes
    size: int  # bytes


class LineSplitter:
    """Cuts what is fed at newlines; a line longer than `max_bytes` keeps its two ends only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None  # set while an oversize line streams by

    def feed(self, data: bytes) -> Iterator[bytes | OversizeLine]:
        """Yield the lines that `data` completes, without their newlines."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data[start:end])
            yield self._take()
            start = end + 1
        if start < len(data):
            self._add(data[start:])

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._max_bytes:
            joined = b"".join(self._parts)
            if self._head is None:
                self._head = joined[:HEAD_BYTES]
            self._parts = [joined[-TAIL_BYTES:]]

    def _take(self) -> bytes | OversizeLine:
        text, size, head = b"".join(self._parts), self._size, self._head
        self._parts, self._size, self._head = [], 0, None
        return text if head is None else OversizeLine(head=head, tail=text, size=size)
