"""The stdio transport: a server as a child process, one JSON-RPC message a line.

In place of the SDK's, whose time for a line grows with its square, whose session dies from one bad byte
or surrogate with every call in flight, and whose children may outlive a trainer that was killed.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import logging
import os
import secrets
import signal
import subprocess
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from typing import Any, BinaryIO, cast

import anyio
import psutil
from anyio.abc import ObjectSendStream
from mcp.shared.message import SessionMessage
from mcp_types import JSONRPCError, JSONRPCRequest, JSONRPCResponse, RequestId

from mcpagent.core.redact import SECRETS, WithoutSecrets
from mcpagent.tools.faults import ServerEnded
from mcpagent.tools.servers_config import StdioServer, inherited
from mcpagent.tools.transports.jsonrpc import (
    NOTIFICATION,
    Flood,
    Inbox,
    LineSplitter,
    Malformed,
    OversizeLine,
    UnaskedTraffic,
    append_to_log,
    error_reply,
    is_for_session,
    is_notification,
    parse,
    response_id,
)
from mcpagent.tools.transports.process_trees import MARK_ENV, ProcessTree, watchdog
from mcpagent.tools.wire import MALFORMED_RESULT, MAX_MESSAGE_BYTES, OVERSIZE_RESULT

log = logging.getLogger(__name__)

_BACKLOG = 16  # messages that wait for the session before the server has to wait
_EXIT_POLL_S = 0.5
_STOP_POLL_S = 0.01
_EXIT_WAITS = 5
_EOF_GRACE_S = 2.0  # the MCP spec's order: end of input, SIGTERM, SIGKILL
_TERM_GRACE_S = 1.0
_KILL_GRACE_S = 1.0
_FOLLOW_GRACE_S = 0.2  # in which its children end that see that it has
_LEFTOVER_GRACE_S = 0.5  # for what a server left behind, which sees no end of input
_NOISE_CHARS = 500
_numbers = itertools.count()
_LOG_FREE_BYTES = 8 * 2**20  # of stderr, before it is read at the rate of the next line only
_LOG_BYTES_PER_S = 2**20
_LAST_WORDS_S = 0.2


@asynccontextmanager
async def stdio_streams(
    config: StdioServer,
    *,
    log_file: BinaryIO,
    on_eof: Callable[[], None],
    on_end: Callable[[ServerEnded], None],
    on_left: Callable[[str], None],
) -> AsyncGenerator[tuple[Any, Any]]:
    """Run the server; a transport for `mcp.Client` (the streams to read from and to write to).

    Raises OSError if the server cannot be started.

    A response of more than `MAX_MESSAGE_BYTES`, or one that is not JSON-RPC, fails its own call. What is no
    message at all goes to `log_file`, with the server's stderr. A server that sends too much unasked is cut
    off. On leaving, every process of the server is ended: within a moment if it heeds the end of its input,
    within 4 s whatever it does; `on_left` is told the command of each that outlived the server. Raises
    ServerEnded there if it ended by itself or was cut off.
    """
    mark = f"{os.getpid()}-{next(_numbers)}-{secrets.token_hex(4)}"
    process = watchdog().watch(lambda: _spawn(config, mark), mark=mark)
    tree = ProcessTree(process.pid, mark)
    loop = asyncio.get_running_loop()
    stdin, stderr = _Stdin(), _Stderr(log_file)
    stdout = _Stdout(process, log_file, stdin, on_eof=on_eof, on_end=on_end)
    try:
        await loop.connect_read_pipe(lambda: stderr, process.stderr)
        await loop.connect_read_pipe(lambda: stdout, process.stdout)
        await loop.connect_write_pipe(lambda: stdin, process.stdin)
        yield stdout.inbox, stdin
    finally:
        has_ended = stdout.has_ended
        try:
            with anyio.CancelScope(shield=True):
                tree.look()
                stdout.drain()
                stdin.end()
                await _stop(process, tree, is_cut_off=stdout.flood is not None, on_left=on_left)
                await stderr.end()
        finally:  # also if even this was cancelled
            tree.signal(signal.SIGKILL)
            stdin.close()
            stdout.close()
            stderr.close()
            _reap(process)
            watchdog().forget(process.pid)
        if stdout.flood is not None:
            raise ServerEnded(str(stdout.flood), is_lasting=True)
        if has_ended:
            raise ServerEnded(_ending(process.returncode))


def _spawn(config: StdioServer, mark: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [config.command, *config.args],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env=inherited() | dict(config.env) | {MARK_ENV: mark},
        cwd=config.cwd,
        bufsize=0,
        start_new_session=True,
    )


def _ending(exit_code: int | None) -> str:
    """Return how the process of a server ended by itself."""
    if exit_code is None:
        return "it closed its output"
    if exit_code < 0:
        return f"it was ended by {_signal_name(-exit_code)}"
    return f"it ended by itself with exit code {exit_code}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:  # a real-time signal
        return f"signal {number}"


async def _stop(
    process: subprocess.Popen[bytes], tree: ProcessTree, *, is_cut_off: bool, on_left: Callable[[str], None]
) -> None:
    """End the server; one that was cut off is not read any more, so that it may never see its input's end."""
    eof_grace_s = 0.0 if is_cut_off else _EOF_GRACE_S
    for grace_s, number in ((eof_grace_s, signal.SIGTERM), (_TERM_GRACE_S, signal.SIGKILL)):
        if await _until(lambda: process.poll() is not None, grace_s):
            break
        tree.look()
        tree.signal(number)
    if not await _until(lambda: process.poll() is not None, _KILL_GRACE_S):
        log.warning("server process %d is still alive after SIGKILL", process.pid)
    tree.look()  # its daemons, which only their mark tells from others once it has ended
    if not await _until(lambda: not tree.is_alive(), _FOLLOW_GRACE_S):
        for pid in sorted(tree.living() - {process.pid}):
            with contextlib.suppress(psutil.Error):  # it has just ended
                on_left(" ".join(psutil.Process(pid).cmdline()))
    for grace_s, number in ((_LEFTOVER_GRACE_S, signal.SIGTERM), (_KILL_GRACE_S, signal.SIGKILL)):
        if not tree.is_alive():
            break
        tree.signal(number)
        await _until(lambda: not tree.is_alive(), grace_s)


def _reap(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(_KILL_GRACE_S)  # it is dead, or a moment from it
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            pipe.close()


async def _until(condition: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = asyncio.get_running_loop().time() + timeout_s
    while not condition():
        if asyncio.get_running_loop().time() >= deadline_s:
            return False
        await asyncio.sleep(_STOP_POLL_S)
    return True


class _Stdin(asyncio.Protocol, ObjectSendStream[SessionMessage]):
    """The write stream of the session: encodes in the caller's task, so that what cannot be encoded fails
    its own call."""

    def __init__(self) -> None:
        self._pipe: asyncio.WriteTransport | None = None
        self._writable = asyncio.Event()
        self._asked: set[RequestId] = set()

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
        """Write the message. Raises BrokenResourceError if the server has closed its end."""
        line = item.message.model_dump_json(by_alias=True, exclude_unset=True).encode() + b"\n"
        while not self._writable.is_set():
            await self._writable.wait()
        if self._pipe is None or self._pipe.is_closing():
            raise anyio.BrokenResourceError
        if isinstance(item.message, JSONRPCRequest):
            self._asked.add(item.message.id)
        self._pipe.write(line)

    def takes_answer(self, request_id: RequestId | None) -> bool:
        """Return True once for each request that was sent."""
        if request_id not in self._asked:
            return False
        self._asked.discard(request_id)
        return True

    def end(self) -> None:
        """Let the server see the end of its input once it has read what was written."""
        if self._pipe is not None:
            self._pipe.close()

    def close(self) -> None:
        """Close at once, dropping what was not written."""
        pipe = self._pipe
        if pipe is not None and (not pipe.is_closing() or pipe.get_write_buffer_size()):
            pipe.abort()  # one that closes with nothing left to write would report its loss twice

    async def aclose(self) -> None:
        """The pipe itself is closed by the transport."""


class _Stdout(asyncio.Protocol):
    """Fills the inbox of the session with what the server writes."""

    def __init__(
        self,
        process: subprocess.Popen[bytes],
        log_file: BinaryIO,
        stdin: _Stdin,
        *,
        on_eof: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
    ) -> None:
        self.inbox = Inbox(on_end=on_eof, on_empty=self._resume)
        self.flood: Flood | None = None  # set once the server was cut off
        self.has_ended = False
        self._process = process
        self._log_file = log_file
        self._stdin = stdin
        self._on_end = on_end
        self._unasked = UnaskedTraffic()
        self._lines = LineSplitter(MAX_MESSAGE_BYTES)
        self._pipe: asyncio.ReadTransport | None = None
        self._draining = False
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast(asyncio.ReadTransport, transport)
        self._check_process()

    def data_received(self, data: bytes) -> None:
        try:
            if self._draining:
                self._unasked.note(len(data))
                return
            for line in self._lines.feed(data):
                self._receive(line)
        except Flood as flood:
            self._cut_off(flood)
        if len(self.inbox) >= _BACKLOG and self._pipe is not None:
            self._pipe.pause_reading()

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe = None
        self._end()

    def drain(self) -> None:
        """Read on and drop it: a server that is stuck in a write does not see the end of its input."""
        self._draining = True
        self._resume()

    def _cut_off(self, flood: Flood) -> None:
        """Read no more: what is left in the pipe holds the server up."""
        if not self._draining:
            self.flood = flood
            self._on_end(ServerEnded(str(flood), is_lasting=True))
            append_to_log(self._log_file, f"[mcpagent] {flood}\n".encode())
        if self._pipe is not None:
            self._pipe.close()
        self.inbox.end()

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
            self._end()

    def _end(self, waits: int = _EXIT_WAITS) -> None:
        """The process ends a moment after its pipes: its exit code is worth that moment."""
        if self._process.poll() is None and waits and not self._draining:
            asyncio.get_running_loop().call_later(_STOP_POLL_S, self._end, waits - 1)
        elif not self.has_ended:
            self.has_ended = True
            if self.flood is None and not self._draining:
                self._on_end(ServerEnded(_ending(self._process.poll())))
            self.inbox.end()

    def _receive(self, line: bytes | OversizeLine) -> None:
        if isinstance(line, OversizeLine):
            request_id = response_id(line.head, line.tail)
            text = f"the response of {line.size} bytes is larger than the {MAX_MESSAGE_BYTES} that are taken"
            self._refuse(request_id, OVERSIZE_RESULT, text, line.head, size=line.size)
        elif not line or line.isspace() or is_notification(line):
            self._unasked.note(len(line), NOTIFICATION)
        else:
            self._take(line)

    def _take(self, line: bytes) -> None:
        try:
            message = parse(line)
        except Malformed as bad:
            text = f"the response cannot be taken: {bad.reason}"
            self._refuse(bad.request_id, MALFORMED_RESULT, text, line, size=len(line))
            return
        if isinstance(message, (JSONRPCResponse, JSONRPCError)):
            if self._stdin.takes_answer(message.id):
                self.inbox.put(message)
                return
        elif is_for_session(message):
            self.inbox.put(message)
        self._unasked.note(len(line))

    def _refuse(self, request_id: RequestId | None, code: int, text: str, line: bytes, *, size: int) -> None:
        shown = SECRETS.data(line)[:_NOISE_CHARS].decode("utf-8", "replace")
        append_to_log(self._log_file, f"[stdout] {shown}\n".encode())
        if self._stdin.takes_answer(request_id):
            assert request_id is not None
            self.inbox.put(error_reply(request_id, code, text))
        else:
            self._unasked.note(size)


class _Stderr(asyncio.Protocol):
    """Keeps what the server writes to its stderr, as fast as a person could want; a server that writes more
    waits."""

    def __init__(self, log_file: BinaryIO) -> None:
        self._log_file = log_file
        self._pipe: asyncio.ReadTransport | None = None
        self._ended = asyncio.Event()
        self._said = WithoutSecrets()
        self._free = _LOG_FREE_BYTES
        self._timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._pipe = cast(asyncio.ReadTransport, transport)

    def data_received(self, data: bytes) -> None:
        self._write(self._said.feed(data))
        self._free -= len(data)
        if self._free < 0 and self._pipe is not None:
            self._pipe.pause_reading()
            self._timer = asyncio.get_running_loop().call_later(len(data) / _LOG_BYTES_PER_S, self._resume)

    def connection_lost(self, exc: Exception | None) -> None:
        self._pipe = None
        self._write(self._said.end())
        self._ended.set()

    def _write(self, data: bytes) -> None:
        if data and not self._log_file.closed:
            append_to_log(self._log_file, data)

    async def end(self) -> None:
        """Wait a moment for the server's last words."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_LAST_WORDS_S):
                await self._ended.wait()

    def close(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._write(self._said.end())
        if self._pipe is not None:
            self._pipe.close()

    def _resume(self) -> None:
        if self._pipe is not None:
            self._pipe.resume_reading()
