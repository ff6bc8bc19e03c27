"""How a client of one server is made: over stdio, over HTTP, or of an object in this process."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Protocol

from anyio.abc import ObjectSendStream
from mcp import Client, MCPError
from mcp.client.session import IncomingMessage, MessageHandlerFnT
from mcp.server import MCPServer, Server
from mcp.shared.message import SessionMessage
from mcp.types import ToolListChangedNotification
from mcp_types import REQUEST_TIMEOUT, JSONRPCRequest
from mcp_types.version import HANDSHAKE_PROTOCOL_VERSIONS, LATEST_MODERN_VERSION

from mcpagent.core.redact import SECRETS
from mcpagent.storage.atomic import without_secrets
from mcpagent.tools.faults import ServerEnded, innermost
from mcpagent.tools.questions import FormDefaults
from mcpagent.tools.servers_config import HttpServer, StdioServer
from mcpagent.tools.transports.http import http_streams, sse_streams
from mcpagent.tools.transports.jsonrpc import Inbox, error_reply
from mcpagent.tools.transports.oauth import Authorization
from mcpagent.tools.transports.stdio import stdio_streams
from mcpagent.tools.workspace import WorkspaceCopy

_LOG_TAIL_BYTES = 1500
_PROBE_S = 2.0

Streams = AbstractAsyncContextManager[tuple[Any, Any]]  # to read from, an `Inbox`, and to write to


class Launcher(Protocol):
    """Makes a fresh client for each opening of a connection."""

    @property
    def forms(self) -> FormDefaults | None:
        """Return what answers the forms of the server; None if they are refused."""
        ...

    def client(
        self,
        *,
        on_eof: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
        on_tools_changed: Callable[[], None],
    ) -> AbstractAsyncContextManager[Client]:
        """Return a new client; `on_eof` is called as soon as the server has closed its end, `on_end` before
        it with the reason, if that is known, and `on_tools_changed` if the server says so of its tools."""
        ...

    def log_tail(self) -> str:
        """Return the last lines that the server wrote to stderr; empty if none."""
        ...


@dataclass(frozen=True)
class MemoryLauncher:
    """A server object in this process. No handshake is needed: both ends are this very SDK. `keeps_schemas`
    if its results are made of the very models that its output schemas describe."""

    server: MCPServer[Any] | Server[Any]
    keeps_schemas: bool
    forms: FormDefaults | None

    def client(
        self,
        *,
        on_eof: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
        on_tools_changed: Callable[[], None],
    ) -> AbstractAsyncContextManager[Client]:
        """Return a client of the object; nothing is started."""
        handler = _if_tools_changed(on_tools_changed)
        return Client(
            self.server,
            mode=LATEST_MODERN_VERSION,
            message_handler=handler,
            elicitation_callback=self.forms,
        )

    def log_tail(self) -> str:
        """Empty: it has no stderr."""
        return ""


class _Negotiation:
    """Makes clients of one server, and remembers that it speaks an older protocol.

    Whether it does is found out by a request of the newest protocol, to which some servers do not answer at
    all, and at which others end.
    """

    def __init__(self) -> None:
        self.mode = "auto"

    @asynccontextmanager
    async def client(
        self, streams: Streams, handler: MessageHandlerFnT, forms: FormDefaults | None
    ) -> AsyncGenerator[Client]:
        answered = _answered(streams)
        async with AsyncExitStack() as stack:
            try:
                client = Client(answered, mode=self.mode, message_handler=handler, elicitation_callback=forms)
                await stack.enter_async_context(client)
            except BaseException:
                self.mode = "auto"
                raise
            if client.protocol_version in HANDSHAKE_PROTOCOL_VERSIONS:
                self.mode = "legacy"
            yield client


@asynccontextmanager
async def _answered(streams: Streams) -> AsyncGenerator[tuple[Any, Any]]:
    """The streams of a server that has at most `_PROBE_S` for the probe; the SDK gives it 10 s."""
    async with streams as (inbox, requests):
        yield inbox, _Probing(inbox, requests)


class _Probing(ObjectSendStream[SessionMessage]):
    """Passes requests on, and answers the probe in place of a server that stays silent."""

    def __init__(self, inbox: Inbox, requests: ObjectSendStream[SessionMessage]) -> None:
        self._inbox = inbox
        self._requests = requests

    async def send(self, item: SessionMessage) -> None:
        """Send the message."""
        await self._requests.send(item)
        message = item.message
        if isinstance(message, JSONRPCRequest) and message.method == "server/discover":
            silence = error_reply(message.id, REQUEST_TIMEOUT, "no answer to the probe")
            asyncio.get_running_loop().call_later(_PROBE_S, self._inbox.put, silence)

    async def aclose(self) -> None:
        """Close the stream that is passed on to."""
        await self._requests.aclose()


class _EndOfOpened:
    """Reports the end of a connection once it is open. If it never is, an exception does."""

    def __init__(self, report: Callable[[], None]) -> None:
        self._report = report
        self._is_open = self._has_ended = False

    def note_end(self) -> None:
        """Note that the server has closed its end."""
        self._has_ended = True
        if self._is_open:
            self._report()

    def note_open(self) -> None:
        """Note that the connection is open; its end may have come since."""
        self._is_open = True
        if self._has_ended:
            self._report()


@dataclass(frozen=True)
class StdioLauncher:
    """A child process whose stderr goes to `log_path`: an unread stderr pipe would block the server.
    `on_left` is told the command of each process that outlived it, and was ended."""

    config: StdioServer
    log_path: Path
    on_left: Callable[[str], None]
    forms: FormDefaults | None
    workspace: WorkspaceCopy | None = None  # what the process works on
    _negotiation: _Negotiation = field(default_factory=_Negotiation)

    @asynccontextmanager
    async def client(
        self,
        *,
        on_eof: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
        on_tools_changed: Callable[[], None],
    ) -> AsyncGenerator[Client]:
        """Start the process and connect to it; it is ended on leaving.

        One that ends by itself before it is connected to is started once more, and asked the older way: some
        servers end at a first message that is not `initialize`."""
        config = self.config
        if self.workspace is not None:
            await asyncio.to_thread(self.workspace.make)
            config = self.workspace.applied(config)
        with self.log_path.open("ab") as log:

            def started() -> AbstractAsyncContextManager[Client]:
                handler = _if_tools_changed(on_tools_changed)
                return self._started(config, log, handler, on_eof=on_eof, on_end=on_end)

            try:
                async with AsyncExitStack() as stack:
                    is_probed = self._negotiation.mode == "auto"
                    said_before = os.fstat(log.fileno()).st_size
                    try:
                        client = await stack.enter_async_context(started())
                    except Exception as failure:
                        ended = innermost(failure)
                        if not (is_probed and isinstance(ended, ServerEnded)) or ended.is_lasting:
                            raise
                        self._negotiation.mode = "legacy"
                        log.truncate(said_before)  # if it ends again, it says why again
                        client = await stack.enter_async_context(started())
                    yield client
            finally:
                without_secrets(self.log_path)

    @asynccontextmanager
    async def _started(
        self,
        config: StdioServer,
        log: BinaryIO,
        handler: MessageHandlerFnT,
        *,
        on_eof: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
    ) -> AsyncGenerator[Client]:
        end = _EndOfOpened(on_eof)
        streams = stdio_streams(
            config, log_file=log, on_eof=end.note_end, on_end=on_end, on_left=self.on_left
        )
        async with self._negotiation.client(streams, handler, self.forms) as client:
            end.note_open()
            yield client

    def log_tail(self) -> str:
        """Return the last 1500 bytes of its stderr, without secrets."""
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            # More than is shown: a secret is found only if it is whole.
            log.seek(max(0, log.seek(0, os.SEEK_END) - 4 * _LOG_TAIL_BYTES))
            tail = SECRETS.data(log.read())
        return tail[-_LOG_TAIL_BYTES:].decode("utf-8", "replace").strip()


class HttpLauncher:
    """A server elsewhere. Each call has its own exchange, so one that is stuck holds up no other.

    One that does not know streamable HTTP is reached over the older HTTP+SSE from then on.
    """

    def __init__(self, config: HttpServer, forms: FormDefaults | None) -> None:
        self._config = config
        self.forms = forms
        self._is_sse = config.is_sse
        self._negotiation = _Negotiation()
        self._auth = Authorization(config)

    @asynccontextmanager
    async def client(
        self,
        *,
        on_eof: Callable[[], None],
        on_end: Callable[[ServerEnded], None],
        on_tools_changed: Callable[[], None],
    ) -> AsyncGenerator[Client]:
        """Connect to the server; its session is ended on leaving."""
        handler = _if_tools_changed(on_tools_changed)

        def older() -> AbstractAsyncContextManager[Client]:
            streams = sse_streams(self._config, on_eof=on_eof, auth=self._auth)
            # The transport is older than the newest protocol.
            return Client(streams, mode="legacy", message_handler=handler, elicitation_callback=self.forms)

        async with AsyncExitStack() as stack:
            if self._is_sse:
                yield await stack.enter_async_context(older())
                return
            listens = self.forms is not None  # what nobody answers need not be heard
            streams = http_streams(
                self._config, on_eof=on_eof, on_end=on_end, auth=self._auth, listens=listens
            )
            try:
                client = await stack.enter_async_context(
                    self._negotiation.client(streams, handler, self.forms)
                )
            except Exception as refusal:
                if not _may_be_older(refusal):
                    raise
                try:
                    client = await stack.enter_async_context(older())
                except Exception:  # noqa: BLE001 - boundary: whatever is there, it is no server of ours
                    raise refusal from None
                self._is_sse = True
            yield client

    def log_tail(self) -> str:
        """Empty: its stderr is elsewhere."""
        return ""


def _if_tools_changed(then: Callable[[], None]) -> MessageHandlerFnT:
    async def handle(message: IncomingMessage) -> None:
        if isinstance(message, ToolListChangedNotification):
            then()

    return handle


def _may_be_older(refusal: BaseException) -> bool:
    """Return True if a client is to try HTTP+SSE: the first POST is answered 400, 404 or 405."""
    match innermost(refusal):
        case MCPError(data={"http_status": status}):
            return status in (400, 404, 405)
        case _:
            return False
