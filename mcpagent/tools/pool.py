"""A started set of servers, shared by many episodes at once."""

from __future__ import annotations

import asyncio
import re
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Self

from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.servers.ledger import LEDGER_ENV
from mcpagent.tools.catalog import Catalog, near_match
from mcpagent.tools.connection import OpenFailed
from mcpagent.tools.servers_config import InProcessServer, Isolation, MemoryServer, ServerConfig, StdioServer
from mcpagent.tools.session import PoolSession, StartedServer
from mcpagent.tools.transports import Launcher, MemoryLauncher, StdioLauncher


class ToolPool:
    """Runs `servers` while entered; a `ToolProvider`. Bound to the event loop that enters it.

    `timeout_s` is the hard deadline of one call (a server's own wins), `max_in_flight` the cap of concurrent
    calls per server, `ledger` the file to which built-in servers append every call, `isolation` an override
    by server name, `log_dir` where the stderr of child processes goes (default: a temporary folder).
    Entering raises UserError, once for all servers, if one does not start or `allow` names nothing.
    """

    def __init__(
        self,
        servers: Sequence[ServerConfig],
        *,
        timeout_s: float = 30.0,
        retry: int = 2,
        result_limit_chars: int = 8000,
        allow: Sequence[str] | None = None,
        ledger: Path | None = None,
        isolation: Mapping[str, Isolation] | None = None,
        max_in_flight: int = 32,
        log_dir: Path | None = None,
    ) -> None:
        self._configs = tuple(servers)
        self._timeout_s = timeout_s
        self._retry = retry
        self._result_limit_chars = result_limit_chars
        self._allow = allow
        self._ledger = ledger
        self._isolation: dict[str, Isolation] = dict(isolation or {})
        self._max_in_flight = max_in_flight
        self._log_dir = log_dir
        self._temporary_logs: tempfile.TemporaryDirectory[str] | None = None
        self._servers: dict[str, StartedServer] = {}
        self._sessions: set[PoolSession] = set()
        self._catalog = Catalog.of((), allow=None)
        _check_names([config.name for config in self._configs], isolation=self._isolation)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The offered tools by the name that the model sees; empty before entry."""
        return self._catalog.tools

    @property
    def catalog_hash(self) -> str:
        """SHA-256 over the offered tools: names, descriptions, schemas."""
        return self._catalog.hash

    def session(self) -> PoolSession:
        """A new, single-use session. Close it, or use it as an async context manager."""
        session = PoolSession(
            self._servers,
            catalog=self._catalog,
            result_limit_chars=self._result_limit_chars,
            on_close=self._sessions.discard,
        )
        self._sessions.add(session)
        return session

    async def __aenter__(self) -> Self:
        try:
            self._servers = {config.name: self._prepare(config) for config in self._configs}
            await self._start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """End every session and every server. Idempotent."""
        shared = [s.shared for s in self._servers.values() if s.shared is not None]
        await asyncio.gather(*(s.close() for s in list(self._sessions)), *(c.close() for c in shared))
        self._servers = {}
        if self._temporary_logs is not None:
            self._temporary_logs.cleanup()
            self._temporary_logs = None

    async def _start(self) -> None:
        servers = list(self._servers.values())
        started = await asyncio.gather(*(s.start() for s in servers), return_exceptions=True)
        specs: list[ToolSpec] = []
        failures: list[str] = []
        for server, outcome in zip(servers, started, strict=True):
            if isinstance(outcome, OpenFailed):
                failures.append(f"server {server.name!r} did not start: {outcome.text}")
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                specs += outcome
        if failures:
            raise UserError("\n".join(failures), remedy="Run the server's command in a shell to see why.")
        self._catalog = Catalog.of(specs, allow=self._allow)

    def _prepare(self, config: ServerConfig) -> StartedServer:
        launcher, isolation = self._launcher(config)
        return StartedServer(
            name=config.name,
            launcher=launcher,
            isolation=self._isolation.get(config.name) or config.isolation or isolation,
            timeout_s=config.timeout_s or self._timeout_s,
            repeats=self._retry,
            slots=asyncio.Semaphore(self._max_in_flight),
        )

    def _launcher(self, config: ServerConfig) -> tuple[Launcher, Isolation]:
        """How to start the server, and its default isolation."""
        match config:
            case StdioServer():
                if self._ledger is not None:
                    ledger = {LEDGER_ENV: str(self._ledger.absolute())}
                    config = replace(config, env={**config.env, **ledger})
                return StdioLauncher(config, self._log_path(config.name)), "shared"
            case InProcessServer():
                return MemoryLauncher(config.server), "shared"
            case MemoryServer():
                # Built-in servers are read only by those who run them in process.
                from mcpagent.servers.registry import build_server, is_stateful

                server = build_server(config.name, limited=config.limited, ledger=self._ledger)
                return MemoryLauncher(server), "episode" if is_stateful(config.name) else "shared"

    def _log_path(self, server: str) -> Path:
        folder = self._log_dir
        if folder is None:
            if self._temporary_logs is None:
                self._temporary_logs = tempfile.TemporaryDirectory(prefix="mcpagent-")
            folder = Path(self._temporary_logs.name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', server)}.log"


def _check_names(names: Sequence[str], *, isolation: Mapping[str, Isolation]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two servers are called {name!r}", remedy="Give each server its own name.")
    for name in isolation:
        if name not in names:
            raise UserError(f"isolation names no server: {name!r}", remedy=near_match(name, names))
