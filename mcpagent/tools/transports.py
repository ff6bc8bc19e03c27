"""How a client of one server is made: a child process over stdio, or an object in this process."""

from __future__ import annotations

import logging
import os
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Protocol, Self

from mcp import Client, StdioServerParameters, stdio_client
from mcp.client import Transport
from mcp.server import MCPServer, Server
from mcp.shared.message import SessionMessage
from mcp_types.version import LATEST_MODERN_VERSION

from mcpagent.tools.servers_config import StdioServer

# Every line of a server's stdout that is not JSON-RPC would print a traceback there.
logging.getLogger("mcp.client.stdio").setLevel(logging.CRITICAL)

_LOG_TAIL_BYTES = 1500


class Launcher(Protocol):
    """Makes a fresh client for each opening of a connection."""

    @property
    def has_pipe(self) -> bool:
        """True where a peer that stops reading blocks a write, so that the connection must be replaced."""
        ...

    def client(self, *, on_eof: Callable[[], None]) -> AbstractAsyncContextManager[Client]:
        """A new client; `on_eof` is called as soon as the server has closed its end."""
        ...

    def log_tail(self) -> str:
        """The last lines that the server wrote to stderr; empty if none."""
        ...


@dataclass(frozen=True)
class MemoryLauncher:
    """A server object in this process. No handshake is needed: both ends are this very SDK."""

    server: MCPServer[Any] | Server[Any]
    has_pipe: bool = False

    def client(self, *, on_eof: Callable[[], None]) -> AbstractAsyncContextManager[Client]:
        return Client(self.server, mode=LATEST_MODERN_VERSION)

    def log_tail(self) -> str:
        return ""


@dataclass(frozen=True)
class StdioLauncher:
    """A child process whose stderr goes to `log_path`: an unread stderr pipe would block the server."""

    config: StdioServer
    log_path: Path
    has_pipe: bool = True

    @asynccontextmanager
    async def client(self, *, on_eof: Callable[[], None]) -> AsyncGenerator[Client]:
        parameters = StdioServerParameters(
            command=self.config.command,
            args=list(self.config.args),
            env=dict(self.config.env),
            cwd=self.config.cwd,
            encoding_error_handler="replace",  # "strict" ends the session at one invalid byte
        )
        with self.log_path.open("a", encoding="utf-8") as log:
            transport = _watched(stdio_client(parameters, errlog=log), on_eof)
            async with Client(transport) as client:
                yield client

    def log_tail(self) -> str:
        if not self.log_path.exists():
            return ""
        with self.log_path.open("rb") as log:
            log.seek(max(0, log.seek(0, os.SEEK_END) - _LOG_TAIL_BYTES))
            return log.read().decode("utf-8", "replace").strip()


@asynccontextmanager
async def _watched(transport: Transport, on_eof: Callable[[], None]) -> AsyncGenerator[Any]:
    async with transport as (read_stream, write_stream):
        yield _EofWatch(read_stream, on_eof), write_stream


class _EofWatch:
    """A read stream that reports its end: the SDK tells nobody that a server died until the next call,
    and then a request that was never sent looks like one that was lost on the way."""

    def __init__(self, stream: Any, on_eof: Callable[[], None]) -> None:
        self._stream = stream
        self._on_eof = on_eof

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> SessionMessage | Exception:
        try:
            return await self._stream.__anext__()
        except StopAsyncIteration:
            self._on_eof()
            raise

    async def receive(self) -> SessionMessage | Exception:
        return await self._stream.receive()

    async def aclose(self) -> None:
        await self._stream.aclose()

    async def __aenter__(self) -> Self:
        await self._stream.__aenter__()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool | None:
        return await self._stream.__aexit__(kind, error, trace)
