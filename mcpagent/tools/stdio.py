"""The stdio transport: a server as a child process, one JSON-RPC message a line.

In place of the SDK's, whose time for a line grows with its square, whose session dies from one bad byte
or surrogate with every call in flight, and whose children may outlive a trainer that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from types import TracebackType
from typing import Any, BinaryIO, Self, cast

import anyio
from mcp.shared.message import SessionMessage

from mcpagent.core.redact import SECRETS
from mcpagent.tools.inherited import inherited
from mcpagent.tools.jsonrpc import Inbox, Malformed, error_reply, parse, response_id
from mcpagent.tools.lines import LineSplitter, OversizeLine
from mcpagent.tools.process_trees import Tree
from mcpagent.tools.servers_config import StdioServer
from mcpagent.tools.watchdog import watchdog
from mcpagent.tools.wire import MALFORMED_RESULT, MAX_MESSAGE_BYTES, OVERSIZE_RESULT

log = logging.getLogger(__name__)

_BACKLOG = 16  # messages that wait for the session before the server has to wait
_EXIT_POLL_S = 0.5
_STOP_POLL_S = 0.01
_EOF_GRACE_S = 2.0  # the MCP spec's order: end of input, SIGTERM, SIGKILL
_TERM_GRACE_S = 1.0
_KILL_GRACE_S = 1.0
_LEFTOVER_GRACE_S = 0.5  # for what a server left behind, which sees no end of input
_NOISE_CHARS = 500


@asynccontextmanager
async def stdio_streams(
    config: StdioServer,
    *,
    log_file: BinaryIO,
    on_eof: Callable[[], None],
    max_message_bytes: int = MAX_MESSAGE_BYTES,
) -> AsyncGenerator[tuple[Any, Any]]:
    """Run the server; a transport for `mcp.Client` (the streams to read from and to write to).

    Raises OSError if the server cannot be started.

    A response of more than `max_message_bytes`, or one that is no JSON-RPC, fails its own call. What is no
    message at all goes to `log_file`, with the server's stderr. On leaving, every process of the server is
    ended: within a moment if it heeds the end of its input, within 4 s whatever it does.
    """
    process = watchdog().watch(lambda: _spawn(config, log_file))
    tree = Tree(process.pid)
    loop = asyncio.get_running_loop()
    stdin, stdout = _Stdin(), _Stdout(process, log_file, on_eof=on_eof, max_message_bytes=max_message_bytes)
    try:
        await loop.connect_read_pipe(lambda: stdout, process.stdout)
        await loop.connect_write_pipe(lambda: stdin, process.stdin)
        yield stdout.inbox, stdin
    finally:
        try:
            with anyio.CancelScope(shield=True):
                tree.look()
                stdout.drain()
                stdin.end()
                await _stop(process, tree)
        finally:  # also where even this was cancelled
            tree.signal(signal.SIGKILL)
            stdin.close()
            stdout.close()
            _reap(process)
            watchdog().forget(process.pid)


def _spawn(config: StdioServer, log_file: BinaryIO) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [config.command, *config.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=log_file,
        env=inherited() | dict(config.env),
        cwd=config.cwd,
        bufsize=0,
        start_new_session=True,
    )


async def _stop(process: subprocess.Popen[bytes], tree: Tree) -> None:
    for grace_s, number in ((_EOF_GRACE_S, signal.SIGTERM), (_TERM_GRACE_S, signal.SIGKILL)):
        if await _until(lambda: process.poll() is not None, grace_s):
            break
        tree.look()
        tree.signal(number)
    if not await _until(lambda: process.poll() is not None, _KILL_GRACE_S):
        log.warning("server process %d is still alive after SIGKILL", process.pid)
    if tree.is_alive():
        tree.signal(signal.SIGTERM)
        await _until(lambda: not tree.is_alive(), _LEFTOVER_GRACE_S)


def _reap(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_GRACE_S)  # it is dead, or a moment from it
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() >= deadline_s:
            return False
        await asyncio.sleep(_STOP_POLL_S)
    return True


class _Stdin(asyncio.Protocol):
    """The write stream of the session: encodes in the caller's task, so that what cannot be encoded fails
    its own call."""

    def __init__(self) -> None:
        self._pipe: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast(asyncio.WriteTransport, transport)
        self._writable.set()

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe = None
        self._writable.set()

    async def send(self, item: SessionMessage) -> None:
        """Write the message. Raises BrokenResourceError where the server has closed its end."""
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        while not self._writable.is_set():
            await self._writable.wait()
        if self._pipe is None or self._pipe.is_closing():
            raise anyio.BrokenResourceError
        self._pipe.write(line)

    def end(self) -> None:
        """Let the server see the end of its input once it has read what was written."""
        if self._pipe is not None:
            self._pipe.close()

    def close(self) -> None:
        """At once, dropping what was not written."""
        pipe = self._pipe
        if pipe is not None and (not pipe.is_closing() or pipe.get_write_buffer_size()):
            pipe.abort()  # one that closes with nothing left to write would report its loss twice

    async def aclose(self) -> None:
        """The pipe itself is closed by the transport."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """See `aclose`."""


class _Stdout(asyncio.Protocol):
    """Fills the inbox of the session with what the server writes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        log_file: BinaryIO,
        *,
        on_eof: Callable[[], None],
        max_message_bytes: int,
    ) -> None:
        self.inbox = Inbox(on_end=on_eof, on_empty=self._resume)
        self._process = process
        self._log_file = log_file
        self._lines = LineSplitter(max_message_bytes)
        self._max_message_bytes = max_message_bytes
        self._pipe: asyncio.ReadTransport | None = None
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast(asyncio.ReadTransport, transport)
        self._check_process()

    def data_received(self, data: bytes) -> None:
        if self._draining:
            return
        for line in self._lines.feed(data):
            self._receive(line)
        if len(self.inbox) >= _BACKLOG and self._pipe is not None:
            self._pipe.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe = None
        self.inbox.end()

    def drain(self) -> None:
        """Read on and drop it: a server that is stuck in a write does not see the end of its input."""
        self._draining = True
        self._resume()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        if self._pipe is not None:
            self._pipe.close()

    def _resume(self) -> None:
        if self._pipe is not None:
            self._pipe.resume_reading()

    def _check_process(self) -> None:
        """A server that died is gone, even while a child of its own holds its stdout open."""
        if self._process.poll() is None:
            self._timer = asyncio.get_running_loop().call_later(_EXIT_POLL_S, self._check_process)
        else:
            self.inbox.end()

    def _receive(self, line: bytes | OversizeLine) -> None:
        if isinstance(line, OversizeLine):
            request_id = response_id(line.head, line.tail)
            limit = self._max_message_bytes
            text = f"the response of {line.size} bytes is larger than the {limit} that are taken"
            self._refuse(request_id, OVERSIZE_RESULT, text, line.head)
        elif line and not line.isspace():
            try:
                self.inbox.put(parse(line))
            except Malformed as bad:
                text = f"the response cannot be taken: {bad.reason}"
                self._refuse(bad.request_id, MALFORMED_RESULT, text, line)

    def _refuse(self, request_id: int | str | None, code: int, text: str, line: bytes) -> None:
        if request_id is not None:
            self.inbox.put(error_reply(request_id, code, text))
        shown = SECRETS.data(line)[:_NOISE_CHARS].decode("utf-8", "replace")
        os.write(self._log_file.fileno(), f"[stdout] {shown}\n".encode())
