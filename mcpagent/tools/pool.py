"""A started set of servers, shared by many episodes at once, and the session of one episode."""

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

from mcp.types import CallToolResult

from mcpagent.config.schema import ServerSection
from mcpagent.core.redact import SECRETS
from mcpagent.core.tools import LEDGER_ENV, FailureKind, ToolCall, ToolResult, ToolSpec, failed_result
from mcpagent.errors import UserError
from mcpagent.tools.catalog import Catalog, CatalogSettings, declared, near_match
from mcpagent.tools.connection import Connection, PendingCall, WriteGeneration
from mcpagent.tools.contract import PURPOSE_META_KEY, OnChange, Purpose
from mcpagent.tools.faults import CallFailed, LoginNeeded, OpenFailed
from mcpagent.tools.limits import CallLimits
from mcpagent.tools.metrics import PoolMetrics
from mcpagent.tools.server import StartedServer
from mcpagent.tools.servers_config import (
    HttpServer,
    InProcessServer,
    Isolation,
    ServerConfig,
    StdioServer,
    learn_secrets,
)
from mcpagent.tools.transports.open import HttpLauncher, Launcher, MemoryLauncher, StdioLauncher
from mcpagent.tools.wire import cut_meta, cut_middle, render, wire_fault
from mcpagent.tools.workspace import Workspace, with_defaults

_RESERVED_META = "io.modelcontextprotocol/"  # stamps of the protocol itself, the same on every result


class PoolSession:
    """A `ToolSession`. Isolated servers are opened at the session's first call of them."""

    def __init__(
        self,
        servers: Mapping[str, StartedServer],
        *,
        catalog: Catalog,
        result_limit_chars: int,
        resetting: asyncio.Lock,
        on_close: Callable[[PoolSession], None],
    ) -> None:
        self._resetting = resetting
        self._restoring = asyncio.Lock()
        self._was_reset: set[str] = set()
        self._holds_state = False
        self._servers = servers
        self._catalog = catalog
        self._result_limit_chars = result_limit_chars
        self._on_close = on_close
        self._opened: dict[str, Connection] = {}
        self._write_generations: dict[str, WriteGeneration] = {}
        self._closed = False

    async def call(self, call: ToolCall, *, purpose: Purpose = Purpose.EPISODE) -> ToolResult:
        """Make the call; every failure is a result. `call.server` may be empty: then `call.tool` is the name
        that the model sees. Raises UserError if the server takes no call before a person has logged in."""
        if self._closed:
            raise RuntimeError("the session is closed")
        try:
            spec = self._resolve(call)
        except CallFailed as failure:
            return failed_result(call, failure.kind, failure.text)
        named = call.model_copy(update={"server": spec.server, "tool": spec.name})
        server = self._servers[spec.server]
        pending = self._pending_call(server, spec, call, purpose)
        workspace = self._connection(server).workspace
        try:
            if fault := wire_fault(call.arguments):
                raise CallFailed(FailureKind.INVALID_ARGUMENTS, f"the arguments hold {fault}")
            connection = await self._ready(server)
            if workspace is not None:
                pending.arguments = workspace.to_server(pending.arguments)
            raw = await connection.call(pending)
            if workspace is not None:
                raw = workspace.result(raw)
            result = self._result(server, named, raw, latency_s=pending.latency_s)
        except LoginNeeded as needed:
            # Every further call of the server would fail alike, and leave its episode unscored.
            raise UserError(needed.text, where=f"server {server.name!r}", remedy=needed.remedy) from needed
        except CallFailed as failure:
            if failure.kind is FailureKind.UPSTREAM and server.inputs[spec.name].fault(call.arguments):
                # Some servers break down over wrong arguments instead of refusing them.
                failure = CallFailed(FailureKind.INVALID_ARGUMENTS, failure.text)
            text = failure.text if workspace is None else workspace.to_model(failure.text)
            text = server.without_secrets(text, tool=spec.name)
            result = failed_result(named, failure.kind, text, latency_s=pending.latency_s)
        server.counts.note(result, waited_s=pending.waited_s, sendings=pending.sendings)
        return result

    async def close(self) -> None:
        """End the session's own instances. Idempotent."""
        self._closed = True
        self._on_close(self)
        opened, self._opened = self._opened, {}
        if opened:
            await asyncio.gather(*(connection.close() for connection in opened.values()))
        if self._holds_state:
            self._holds_state = False
            self._resetting.release()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    def _resolve(self, call: ToolCall) -> ToolSpec:
        spec = self._catalog.find(call.server, call.tool)
        if spec is not None:
            return spec
        name = f"{call.server}.{call.tool}" if call.server else call.tool
        if self._catalog.denies(call.server, call.tool):
            raise CallFailed(FailureKind.DENIED, f"{name} is not allowed here")
        near = near_match(call.tool, self._catalog.tools)
        raise CallFailed(
            FailureKind.UNKNOWN_TOOL, f"there is no tool {name!r}" + (f". {near}" if near else "")
        )

    def _pending_call(
        self, server: StartedServer, spec: ToolSpec, call: ToolCall, purpose: Purpose
    ) -> PendingCall:
        keeps_state = not server.limits.survives_restart
        return PendingCall(
            tool=spec.name,
            arguments=call.arguments,
            meta={PURPOSE_META_KEY: purpose.value},
            timeout_s=server.timeout_s,
            repeats=server.repeats,
            is_safe=server.is_safe(spec),
            is_write=not spec.annotations.read_only,
            is_reader=spec.name in server.readers,
            write_generation=self._write_generations.setdefault(server.name, WriteGeneration())
            if keeps_state
            else None,
        )

    async def workspace(self, server: str) -> Path | None:
        """Return the folder that the session's instance of a server works on, as it is now; None if it has
        none of its own."""
        copy = self._connection(self._servers[server]).workspace
        return None if copy is None else await asyncio.to_thread(copy.make)

    async def _ready(self, server: StartedServer) -> Connection:
        """The session's connection to a server, whose state is as episodes begin. Raises CallFailed."""
        connection = self._connection(server)
        if server.limits.reset is None:
            return connection
        async with self._restoring:
            if server.name in self._was_reset:
                return connection
            if not self._holds_state:
                # One lock for all such servers: two sessions that each hold one would wait for ever.
                await self._resetting.acquire()
                self._holds_state = True
            await server.restore(connection)
            self._was_reset.add(server.name)
        return connection

    def _connection(self, server: StartedServer) -> Connection:
        if server.shared is not None:
            return server.shared
        if server.name not in self._opened:
            self._opened[server.name] = server.connect()
        return self._opened[server.name]

    def _result(
        self, server: StartedServer, call: ToolCall, raw: CallToolResult, *, latency_s: float
    ) -> ToolResult:
        structured = raw.structured_content if isinstance(raw.structured_content, dict) else None
        if not raw.is_error and (output := server.outputs.get(call.tool)) is not None:
            fault = output.fault(raw.structured_content)
            if fault is not None:
                raise CallFailed(FailureKind.SCHEMA, f"the server broke its own output schema at {fault}")
        if structured is not None and (fault := wire_fault(structured)):
            raise CallFailed(FailureKind.SCHEMA, f"the structured result holds {fault}")
        # Here, before the model sees it: its tokens, the cassette and the report then say the same. And
        # before it is cut, which could leave half a secret.
        whole = server.without_secrets(render(raw.content, structured), tool=call.tool)
        content, cut = cut_middle(whole, self._result_limit_chars)
        meta = cut_meta({k: v for k, v in (raw.meta or {}).items() if not k.startswith(_RESERVED_META)})
        failure = None
        if raw.is_error:
            # Servers say both in prose; the schema tells a wrong argument from one that found nothing.
            broken = server.inputs[call.tool].fault(call.arguments) is not None
            failure = FailureKind.INVALID_ARGUMENTS if broken else FailureKind.TOOL_ERROR
        return ToolResult(
            call_id=call.id,
            server=call.server,
            tool=call.tool,
            content=content,
            structured=server.without_secrets(structured, tool=call.tool),
            is_error=raw.is_error,
            failure=failure,
            latency_s=latency_s,
            truncated_chars=cut,
            meta=server.without_secrets(meta, tool=call.tool) if meta else {},
        )


log = logging.getLogger(__name__)

_COMMAND_CHARS = 500  # of a process that a server left behind
_WHY_CHARS = 8000  # of what a server that does not start says


class ToolPool:
    """Runs `servers` while entered; a `ToolProvider`. Bound to the event loop that enters it.

    `limits` say how the servers are called, `catalog` which of their tools are offered. `isolation` overrides
    by server name, `ledger` is the file to which built-in servers append every call, `log_dir` where the
    stderr of child processes goes (default: a temporary folder). `on_note` is told what a person should know
    about the tools. Entering raises UserError, once for all servers, if one does not start, `catalog.allow`
    or `catalog.read_only` names nothing.
    """

    def __init__(
        self,
        servers: Sequence[ServerConfig],
        *,
        limits: CallLimits = CallLimits(),
        catalog: CatalogSettings = CatalogSettings(),
        isolation: Mapping[str, Isolation] | None = None,
        ledger: Path | None = None,
        log_dir: Path | None = None,
        on_note: Callable[[str], None] = log.warning,
    ) -> None:
        self._configs = tuple(servers)
        self._limits = limits
        self._settings = catalog
        self.on_change: OnChange = catalog.on_change
        self._isolation: dict[str, Isolation] = dict(isolation or {})
        self._ledger = ledger
        self._log_dir = log_dir
        self._on_note: Callable[[str], None] = lambda text: on_note(SECRETS.text(text))
        self._temporary_logs: tempfile.TemporaryDirectory[str] | None = None
        self._workspaces: tempfile.TemporaryDirectory[str] | None = None
        self._resetting = asyncio.Lock()
        self._servers: dict[str, StartedServer] = {}
        self._sessions: set[PoolSession] = set()
        # By server, the commands of processes that outlived one of its own and were ended.
        self.left_behind: dict[str, list[str]] = {}
        self._catalog = Catalog.of((), allow=None)
        names = [config.name for config in self._configs]
        learn_secrets(self._configs)
        self._with_workspace = {name for name, limit in limits.per_server.items() if limit.workspace}
        _check_names(names, isolation=self._isolation, per_server=limits.per_server)

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
        """Return how the server keeps episodes apart: as overridden, else as its configuration says. Known
        before entry."""
        limits = self._limits.of(next(config for config in self._configs if config.name == name))
        setting = self._isolation.get(name) or limits.isolation or "shared"
        if limits.workspace is not None and setting == "shared":
            raise UserError(
                f"server {name!r} has a workspace, a copy for each episode, and is shared by all",
                where=f"tools.per_server.{name}.workspace",
                remedy=f"leave out tools.per_server.{name}.isolation",
            )
        return setting

    def metrics(self) -> PoolMetrics:
        """Return what the calls came to so far: latencies, failures, restarts. Cheap, and safe at any
        time."""
        return PoolMetrics(servers=tuple(server.metrics() for server in self._servers.values()))

    @property
    def reset_s(self) -> float:
        """How long the longest reset of a server took."""
        return max((server.reset_s for server in self._servers.values()), default=0.0)

    def session(self) -> PoolSession:
        """Return a new, single-use session. Close it, or use it as an async context manager."""
        session = PoolSession(
            self._servers,
            catalog=self._catalog,
            result_limit_chars=self._limits.result_limit_chars,
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
        if self._temporary_logs is not None:
            self._temporary_logs.cleanup()
            self._temporary_logs = None
        if self._workspaces is not None:
            self._workspaces.cleanup()
            self._workspaces = None

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
        specs = declared(specs, read_only=self._settings.read_only)
        self._catalog = Catalog.of(specs, allow=self._settings.allow)

    def _prepare(self, config: ServerConfig) -> StartedServer:
        limits = self._limits.of(config).model_copy(update={"isolation": self.isolation(config.name)})
        return StartedServer(
            config.name,
            self._launcher(config),
            limits=limits,
            calls=self._limits,
            catalog=self._settings,
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
        if self._workspaces is None:
            self._workspaces = tempfile.TemporaryDirectory(prefix="mcpagent-", ignore_cleanup_errors=True)
        number = len(list(Path(self._workspaces.name).iterdir()))
        return Workspace(config.name, Path(limits.workspace), Path(self._workspaces.name) / str(number))

    def _launcher(self, config: ServerConfig) -> Launcher:
        match config:
            case StdioServer():
                if self._ledger is not None:
                    ledger = {LEDGER_ENV: str(self._ledger.absolute())}
                    config = replace(config, env={**config.env, **ledger})
                if config.name not in self._with_workspace:
                    config = with_defaults(config)
                return StdioLauncher(
                    config, self._log_path(config.name), partial(self._note_left, config.name)
                )
            case HttpServer():
                return HttpLauncher(config)
            case InProcessServer():
                return MemoryLauncher(config.built(self._ledger), keeps_schemas=config.is_builtin)

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
                listing = f"There are: {', '.join(sorted(names))}"
                raise UserError(
                    f"{setting} does not name a server: {name!r}", remedy=near_match(name, names) or listing
                )
