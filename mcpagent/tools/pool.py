"""A started set of servers, shared by many episodes at once."""

from __future__ import annotations

import asyncio
import logging
import re
import tempfile
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Self

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import LEDGER_ENV, ToolSpec
from mcpagent.errors import UserError
from mcpagent.tools.catalog import Catalog, declared, near_match
from mcpagent.tools.faults import OpenFailed
from mcpagent.tools.languages import SqlGuard
from mcpagent.tools.limits import limits_of
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.questions import FormDefaults
from mcpagent.tools.server import StartedServer
from mcpagent.tools.servers_config import (
    HttpServer,
    InProcessServer,
    Isolation,
    ServerConfig,
    StdioServer,
    learn_secrets,
)
from mcpagent.tools.session import PoolSession
from mcpagent.tools.transports.open import HttpLauncher, Launcher, MemoryLauncher, StdioLauncher
from mcpagent.tools.wire import cut_middle
from mcpagent.tools.workspace import Workspace, with_defaults

log = logging.getLogger(__name__)

_COMMAND_CHARS = 500  # of a process that a server left behind
_WHY_CHARS = 8000  # of what a server that does not start says


class ToolPool:
    """Runs `servers` while entered; a `ToolProvider`. Bound to the event loop that enters it.

    `config` says how the servers are called and which of their tools are offered; which servers there are is
    not read from it. `ledger` is the file to which built-in servers append every call, `log_dir` where the
    stderr of child processes goes (default: a temporary folder). `on_note` is told what a person should know
    about the tools. Entering raises UserError, once for all servers, if one does not start, and
    for a setting that names nothing.
    """

    def __init__(
        self,
        servers: Sequence[ServerConfig],
        config: ToolsConfig = ToolsConfig(),
        *,
        ledger: Path | None = None,
        log_dir: Path | None = None,
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        self._configs = tuple(servers)
        self._config = config
        self._ledger = ledger
        self._log_dir = log_dir
        self._on_note: Callable[[str], None] = lambda text: on_note(SECRETS.text(text))
        self._temporary: tempfile.TemporaryDirectory[str] | None = None
        self._resetting = asyncio.Lock()
        self._servers: dict[str, StartedServer] = {}
        self._sessions: set[PoolSession] = set()
        self._leaving: set[str] = set()  # the servers of which a process outlived one of its own
        self._catalog = Catalog.of((), allow=None)
        learn_secrets(self._configs)
        _check_names([server.name for server in self._configs], config.per_server)

    @property
    def tools(self) -> Mapping[str, ToolSpec]:
        """Return the offered tools by the name that the model sees; empty before entry."""
        return self._catalog.tools

    @property
    def catalog_hash(self) -> str:
        """SHA-256 over the offered tools: names, descriptions, schemas."""
        return self._catalog.hash

    @property
    def versions(self) -> Mapping[str, str]:
        """The version that each server reported when it started; a server that reported none is not there."""
        return {name: server.version for name, server in self._servers.items() if server.version}

    @property
    def protocols(self) -> Mapping[str, str]:
        """The revision of the protocol that each server speaks."""
        return {name: server.protocol for name, server in self._servers.items()}

    def isolation(self, name: str) -> Isolation:
        """Return how the server keeps episodes apart. Known before entry."""
        server = next(server for server in self._configs if server.name == name)
        return limits_of(server, self._config).isolation or "shared"

    def metrics(self) -> PoolMetrics:
        """Return what the calls came to so far: latencies, failures, restarts. Cheap, and safe at any
        time."""
        return PoolMetrics(servers=tuple(server.metrics() for server in self._servers.values()))

    @property
    def reset_s(self) -> float:
        """Return how long the longest reset of a server took."""
        return max((server.reset_s for server in self._servers.values()), default=0.0)

    def session(self) -> PoolSession:
        """Return a new, single-use session. Close it, or use it as an async context manager."""
        session = PoolSession(
            self._servers,
            catalog=self._catalog,
            result_limit_chars=self._config.result_limit_chars,
            resetting=self._resetting,
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
        if self._temporary is not None:
            self._temporary.cleanup()
            self._temporary = None

    async def _start(self) -> None:
        servers = list(self._servers.values())
        started = await asyncio.gather(*(s.start() for s in servers), return_exceptions=True)
        specs: list[ToolSpec] = []
        failures: list[str] = []
        unstarted: list[ServerConfig] = []
        logins: list[str] = []
        for config, server, outcome in zip(self._configs, servers, started, strict=True):
            if isinstance(outcome, OpenFailed):
                if outcome.login is None:
                    unstarted.append(config)
                else:
                    logins.append(outcome.login)
                why, _ = cut_middle(SECRETS.text(outcome.text), _WHY_CHARS)
                failures.append(f"server {server.name!r} did not start: {why}")
            elif isinstance(outcome, BaseException):
                raise outcome
            else:
                specs += outcome
        if failures:
            remedies = [*logins, *([_start_remedy(unstarted)] if unstarted else [])]
            raise UserError("\n".join(failures), remedy="\n  ".join(remedies))
        _check_readers(specs, self._servers, read_only=self._config.read_only)
        specs = declared(specs, read_only=self._config.read_only)
        self._catalog = Catalog.of(specs, allow=self._config.allow_list)

    def _prepare(self, config: ServerConfig) -> StartedServer:
        limits = limits_of(config, self._config)
        return StartedServer(
            config.name,
            self._launcher(config, limits),
            limits=limits,
            config=self._config,
            on_note=self._on_note,
            workspace=self._workspace(config, limits),
        )

    def _workspace(self, config: ServerConfig, limits: ServerSection) -> Workspace | None:
        if limits.workspace is None:
            return None
        if not isinstance(config, StdioServer):
            raise UserError(
                f"server {config.name!r} is not started by a command, and cannot be given a copy of a folder",
                where=f"tools.per_server.{config.name}.workspace",
                remedy=f"tools.per_server.{config.name}.reset brings its state back by calls or a command",
            )
        folder = Path(tempfile.mkdtemp(prefix="workspace-", dir=self._temporary_folder()))
        return Workspace(config.name, Path(limits.workspace), folder)

    def _launcher(self, config: ServerConfig, limits: ServerSection) -> Launcher:
        forms = None
        if limits.forms == "defaults":
            forms = FormDefaults(on_first=partial(self._note_form, config.name))
        match config:
            case StdioServer():
                if self._ledger is not None:
                    ledger = {LEDGER_ENV: str(self._ledger.absolute())}
                    config = replace(config, env={**config.env, **ledger})
                if limits.workspace is None:
                    config = with_defaults(config)
                return StdioLauncher(
                    config, self._log_path(config.name), partial(self._note_left, config.name), forms
                )
            case HttpServer():
                return HttpLauncher(config, forms)
            case InProcessServer():
                return MemoryLauncher(
                    config.built(self._ledger), keeps_schemas=config.is_builtin, forms=forms
                )

    def _note_form(self, server: str) -> None:
        self._on_note(f"server {server!r} asks for forms, which are answered with their own defaults")

    def _note_left(self, server: str, command: str) -> None:
        command, _ = cut_middle(SECRETS.text(command), _COMMAND_CHARS)
        if server not in self._leaving:  # each instance of it may leave as many
            self._on_note(f"server {server!r} left a process behind, which was ended: {command}")
        self._leaving.add(server)

    def _log_path(self, server: str) -> Path:
        folder = self._log_dir or self._temporary_folder()
        folder.mkdir(parents=True, exist_ok=True)
        return folder / f"{re.sub(r'[^A-Za-z0-9_-]', '_', server)}.log"

    def _temporary_folder(self) -> Path:
        if self._temporary is None:
            self._temporary = tempfile.TemporaryDirectory(prefix="mcpagent-", ignore_cleanup_errors=True)
        return Path(self._temporary.name)


def _start_remedy(servers: Sequence[ServerConfig]) -> str:
    """Return what to do about servers that did not start."""
    remedies: list[str] = []
    if commands := [server.in_shell for server in servers if isinstance(server, StdioServer)]:
        remedies.append(f"Run it in a shell to see why: {'; '.join(commands)}.")
    if any(isinstance(server, HttpServer) for server in servers):
        remedies.append("Check the server's url and headers, and that it runs there.")
    return " ".join(remedies) or "mcpagent doctor"


def _check_readers(
    specs: Sequence[ToolSpec], servers: Mapping[str, StartedServer], *, read_only: Collection[str]
) -> None:
    """Raise UserError for a tool that is said to read only, although the SQL that it takes may write."""
    for spec in specs:
        is_named = {spec.server, spec.dotted} & {*read_only}
        if is_named and servers[spec.server].limits.allow_writes and SqlGuard(spec).is_needed:
            raise UserError(
                f"tools.read_only names {spec.dotted}, whose SQL may write: "
                f"tools.per_server.{spec.server}.allow_writes",
                remedy="leave one of them out, or name the other tools of the server one by one",
            )


def _check_names(names: Sequence[str], per_server: Iterable[str]) -> None:
    for name in names:
        if names.count(name) > 1:
            raise UserError(f"two servers are called {name!r}", remedy="Give each server its own name.")
    for name in per_server:
        if name not in names:
            listing = f"There are: {', '.join(sorted(names))}"
            raise UserError(
                f"per_server does not name a server: {name!r}", remedy=near_match(name, names) or listing
            )
