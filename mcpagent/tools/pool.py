"""A started set of servers, shared by many episodes at once."""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.servers.ledger import LEDGER_ENV
from mcpagent.tools.catalog import Catalog, ToolListLimits, declared, near_match
from mcpagent.tools.contract import OnChange
from mcpagent.tools.faults import OpenFailed
from mcpagent.tools.limits import ServerLimits
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.server import StartedServer
from mcpagent.tools.servers_config import (
    HttpServer,
    InProcessServer,
    Isolation,
    MemoryServer,
    ServerConfig,
    StdioServer,
    learn_secrets,
)
from mcpagent.tools.session import PoolSession
from mcpagent.tools.transports.open import HttpLauncher, Launcher, MemoryLauncher, StdioLauncher
from mcpagent.tools.wire import cut_middle

log = logging.getLogger(__name__)

_COMMAND_CHARS = 500  # of a process that a server left behind
_WHY_CHARS = 8000  # of what a server that does not start says


class ToolPool:
    """Runs `servers` while entered; a `ToolProvider`. Bound to the event loop that enters it.

    `timeout_s` is the hard deadline of one call (a server's own wins), `retry` how often a call that is safe
    to repeat is, `max_in_flight` the cap of concurrent calls per server, `ledger` the file to which built-in
    servers append every call, `isolation` and `per_server` are overrides by server name, `read_only` names
    tools that only read though they do not say so (`catalog.declared`), `log_dir` is where
    the stderr of child processes goes (default: a temporary folder). `on_note` is told what a person should
    know about the tools; where they change while it runs, they are used all the same ("warn") or not.
    Entering raises UserError, once for all servers, if one does not start, `allow` or `read_only` names
    nothing.
    """

    def __init__(
        self,
        servers: Sequence[ServerConfig],
        *,
        timeout_s: float = 30.0,
        retry: int = 3,
        result_limit_chars: int = 8000,
        list_limits: ToolListLimits | None = None,
        allow: Sequence[str] | None = None,
        read_only: Sequence[str] = (),
        ledger: Path | None = None,
        isolation: Mapping[str, Isolation] | None = None,
        max_in_flight: int = 64,
        per_server: Mapping[str, ServerLimits] | None = None,
        log_dir: Path | None = None,
        on_change: OnChange = "warn",
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        self._configs = tuple(servers)
        self._timeout_s = timeout_s
        self._retry = retry
        self._result_limit_chars = result_limit_chars
        self._list_limits = list_limits or ToolListLimits()
        self._allow = allow
        self._read_only = read_only
        self._ledger = ledger
        self._isolation: dict[str, Isolation] = dict(isolation or {})
        self._max_in_flight = max_in_flight
        self._per_server: dict[str, ServerLimits] = dict(per_server or {})
        self._log_dir = log_dir
        self.on_change: OnChange = on_change
        self._on_note: Callable[[str], None] = lambda text: on_note(SECRETS.text(text))
        self._temporary_logs: tempfile.TemporaryDirectory[str] | None = None
        self._servers: dict[str, StartedServer] = {}
        self._sessions: set[PoolSession] = set()
        # By server, the commands of processes that outlived one of its own and were ended.
        self.left_behind: dict[str, list[str]] = {}
        self._catalog = Catalog.of((), allow=None)
        names = [config.name for config in self._configs]
        learn_secrets(self._configs)
        _check_names(names, isolation=self._isolation, per_server=self._per_server)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """The offered tools by the name that the model sees; empty before entry."""
        return self._catalog.tools

    @property
    def catalog_hash(self) -> str:
        """SHA-256 over the offered tools: names, descriptions, schemas."""
        return self._catalog.hash

    @property
    def renamed(self) -> Mapping[str, str]:
        """`server.tool` by the name that the model sees, for the tools whose own name is not unique."""
        return {name: spec.dotted for name, spec in self.tools.items() if name != spec.name}

    @property
    def versions(self) -> Mapping[str, str]:
        """By server, the version that it reported when it was started; a server that reported none is not
        there."""
        return {name: server.version for name, server in self._servers.items() if server.version}

    def isolation(self, name: str) -> Isolation:
        """How the server keeps episodes apart: as overridden, else as its configuration says, else as is due
        to its kind. Known before entry."""
        config = next(config for config in self._configs if config.name == name)
        setting = self._isolation.get(name) or config.isolation
        if setting is None and isinstance(config, MemoryServer):
            # Built-in servers are read only by those who run them in process.
            from mcpagent.servers.registry import is_stateful

            return "episode" if is_stateful(name) else "shared"
        return setting or "shared"

    def metrics(self) -> PoolMetrics:
        """What the calls came to so far: latencies, failures, restarts. Cheap, and safe at any time."""
        return PoolMetrics(servers=tuple(server.metrics() for server in self._servers.values()))

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
        await asyncio.gather(
            *(s.close() for s in list(self._sessions)), *(c.supervisor.close() for c in shared)
        )
        self._servers = {}
        if self._temporary_logs is not None:
            self._temporary_logs.cleanup()
            self._temporary_logs = None

    async def _start(self) -> None:
        servers = list(self._servers.values())
        started = await asyncio.gather(*(s.start() for s in servers), return_exceptions=True)
        specs: list[ToolSpec] = []
        failures: list[str] = []
        unstarted: list[ServerConfig] = []
        for config, server, outcome in zip(self._configs, servers, started, strict=True):
            if isinstance(outcome, OpenFailed):
                unstarted.append(config)
                why, _ = cut_middle(SECRETS.text(outcome.text), _WHY_CHARS)
                failures.append(f"server {server.name!r} did not start: {why}")
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                specs += outcome
        if failures:
            raise UserError("\n".join(failures), remedy=_start_remedy(unstarted))
        self._catalog = Catalog.of(declared(specs, read_only=self._read_only), allow=self._allow)

    def _prepare(self, config: ServerConfig) -> StartedServer:
        limits = self._per_server.get(config.name, ServerLimits())
        limits = replace(
            limits,
            timeout_s=limits.timeout_s or config.timeout_s or self._timeout_s,
            max_in_flight=limits.max_in_flight or self._max_in_flight,
        )
        return StartedServer(
            config.name,
            self._launcher(config),
            isolation=self.isolation(config.name),
            limits=limits,
            repeats=self._retry,
            list_limits=self._list_limits,
            on_change=self.on_change,
            on_note=self._on_note,
        )

    def _launcher(self, config: ServerConfig) -> Launcher:
        match config:
            case StdioServer():
                if self._ledger is not None:
                    ledger = {LEDGER_ENV: str(self._ledger.absolute())}
                    config = replace(config, env={**config.env, **ledger})
                return StdioLauncher(
                    config, self._log_path(config.name), partial(self._note_left, config.name)
                )
            case HttpServer():
                return HttpLauncher(config)
            case InProcessServer():
                return MemoryLauncher(config.server)
            case MemoryServer():
                from mcpagent.servers.registry import build_server

                server = build_server(
                    config.name,
                    limited=config.limited,
                    upstream=config.upstream,
                    sandbox=config.sandbox,
                    ledger=self._ledger,
                )
                return MemoryLauncher(server, keeps_schemas=True)

    def _note_left(self, server: str, command: str) -> None:
        command, _ = cut_middle(SECRETS.text(command), _COMMAND_CHARS)
        if server not in self.left_behind:  # each instance of it may leave as many
            self._on_note(f"server {server!r} left a process behind, which was ended: {command}")
        self.left_behind.setdefault(server, []).append(command)

    def _log_path(self, server: str) -> Path:
        folder = self._log_dir
        if folder is None:
            if self._temporary_logs is None:
                self._temporary_logs = tempfile.TemporaryDirectory(prefix="mcpagent-")
            folder = Path(self._temporary_logs.name)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', server)}.log"


def _start_remedy(servers: Sequence[ServerConfig]) -> str:
    """What to do about servers that did not start."""
    remedies: list[str] = []
    if any(isinstance(server, StdioServer) for server in servers):
        remedies.append("Run the server's command in a shell to see why.")
    if any(isinstance(server, HttpServer) for server in servers):
        remedies.append("Check the server's url and headers, and that it runs there.")
    return " ".join(remedies) or "mcpagent doctor"


def _check_names(names: Sequence[str], **overrides: Mapping[str, object]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two servers are called {name!r}", remedy="Give each server its own name.")
    for setting, by_server in overrides.items():
        for name in by_server:
            if name not in names:
                known = f"There are: {', '.join(sorted(names))}"
                raise UserError(
                    f"{setting} names no server: {name!r}", remedy=near_match(name, names) or known
                )
