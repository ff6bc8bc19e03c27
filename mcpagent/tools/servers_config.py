"""Which servers to run: a user's `mcp.json`, unchanged, or the built-in set."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from dotenv import dotenv_values

from mcpagent.errors import UserError
from mcpagent.servers.ledger import LEDGER_ENV
from mcpagent.servers.names import BUILTIN_NAMES

if TYPE_CHECKING:
    from mcp.server import MCPServer, Server

Isolation = Literal["shared", "episode"]

_STDIO_KEYS = {"type", "command", "args", "env", "cwd", "disabled", "timeout"}
# A child inherits neither where to find this package nor where to record its calls.
_BUILTIN_ENV = ("PYTHONPATH", LEDGER_ENV)
_HTTP_KEYS = {"url", "headers"}
# `${VAR}`, `${VAR:-default}`, and the prefixed forms of VS Code (`${env:VAR}`, `${input:id}`).
_VARIABLE = re.compile(r"\$\{(?:(?P<kind>env|input):)?(?P<name>[A-Za-z_][\w.-]*?)(?::-(?P<default>[^}]*))?\}")


@dataclass(frozen=True, kw_only=True)
class StdioServer:
    """A server run as a child process. The child sees HOME, LOGNAME, PATH, SHELL, TERM, USER and `env` only.

    `timeout_s` is the hard deadline of a call, None for the pool's default. `isolation` None means shared.
    """

    name: str
    command: str
    args: tuple[str, ...] = ()
    env: Mapping[str, str] = field(default_factory=dict, repr=False)  # may hold keys: never printed
    cwd: str | None = None
    timeout_s: float | None = None
    isolation: Isolation | None = None


@dataclass(frozen=True, kw_only=True)
class MemoryServer:
    """A built-in server run in this process. `isolation` None asks the server's own registry."""

    name: str
    limited: bool = True
    timeout_s: float | None = None
    isolation: Isolation | None = None


@dataclass(frozen=True, kw_only=True)
class InProcessServer:
    """Any server object, run in this process: its lifespan is entered once per connection."""

    name: str
    server: MCPServer[Any] | Server[Any]
    timeout_s: float | None = None
    isolation: Isolation | None = None


ServerConfig = StdioServer | MemoryServer | InProcessServer


@dataclass(frozen=True)
class ServersFile:
    """What an `mcp.json` asks for; `notes` say what was skipped and why."""

    servers: tuple[StdioServer, ...]
    notes: tuple[str, ...] = ()


def builtin_servers(
    *, limited: bool = True, transport: Literal["memory", "stdio"] = "memory"
) -> tuple[ServerConfig, ...]:
    """The built-in set, in this process or as real child processes."""
    if transport == "memory":
        return tuple(MemoryServer(name=name, limited=limited) for name in BUILTIN_NAMES)
    from mcpagent.servers.registry import is_stateful

    flags = ("--limited",) if limited else ()
    env = {name: os.environ[name] for name in _BUILTIN_ENV if name in os.environ}
    return tuple(
        StdioServer(
            name=name,
            command=sys.executable,
            args=("-m", "mcpagent.cli.main", "serve", name, *flags),
            env=env,
            isolation="episode" if is_stateful(name) else "shared",
        )
        for name in BUILTIN_NAMES
    )


def load_servers(path: Path) -> ServersFile:
    """Read an `mcp.json`: `mcpServers`, or `servers` as VS Code writes it.

    Raises UserError with file and line for bad JSON, an unset variable, or an entry that cannot be run.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"cannot read it: {error.strerror}", where=str(path)) from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"not valid JSON: {error.msg} at column {error.colno}",
            where=f"{path}:{error.lineno}",
            remedy="Comments and trailing commas are not JSON.",
        ) from error
    reader = _Reader(path=path, text=text, environment=_environment())
    return reader.read(document)


def _environment() -> dict[str, str]:
    """`.env` of the working directory; the real environment wins."""
    from_file = {k: v for k, v in dotenv_values(Path.cwd() / ".env").items() if v is not None}
    return from_file | dict(os.environ)


@dataclass(frozen=True)
class _Reader:
    path: Path
    text: str
    environment: Mapping[str, str]
    notes: list[str] = field(default_factory=list)

    def read(self, document: object) -> ServersFile:
        entries = document.get("mcpServers", document.get("servers")) if isinstance(document, dict) else None
        if not isinstance(entries, dict):
            raise UserError(
                "no servers in it",
                where=str(self.path),
                remedy='Expected {"mcpServers": {"NAME": {"command": "...", "args": []}}}.',
            )
        servers = tuple(s for name, entry in entries.items() if (s := self._server(name, entry)) is not None)
        if not servers:
            raise UserError(
                "every server in it is disabled" if entries else "no servers in it", where=str(self.path)
            )
        return ServersFile(servers=servers, notes=tuple(self.notes))

    def _server(self, name: str, entry: object) -> StdioServer | None:
        if not isinstance(entry, dict):
            raise self._error(name, f"must be an object, not {type(entry).__name__}")
        if entry.get("disabled") is True:
            self.notes.append(f"server {name!r} is disabled")
            return None
        if "url" in entry or entry.get("type", "stdio") != "stdio":
            raise self._error(
                name,
                "is reached over HTTP; streamable HTTP is not supported yet by this version",
                remedy='Run it over stdio, or set "disabled": true.',
            )
        for key in sorted(entry.keys() - _STDIO_KEYS - _HTTP_KEYS):
            self.notes.append(f"server {name!r}: unknown key {key!r} is ignored")
        return StdioServer(
            name=name,
            command=self._text(name, "command", entry.get("command")),
            args=self._texts(name, "args", entry.get("args", [])),
            env=self._env(name, entry.get("env", {})),
            cwd=None if entry.get("cwd") is None else self._text(name, "cwd", entry["cwd"]),
            timeout_s=self._timeout(name, entry.get("timeout")),
        )

    def _texts(self, name: str, key: str, value: object) -> tuple[str, ...]:
        if not isinstance(value, list):
            raise self._error(name, f"{key} must be a list of strings")
        return tuple(self._text(name, f"{key}[{i}]", item) for i, item in enumerate(value))

    def _env(self, name: str, value: object) -> dict[str, str]:
        if not isinstance(value, dict):
            raise self._error(name, "env must be an object of strings")
        return {str(k): self._text(name, f"env.{k}", v) for k, v in value.items()}

    def _text(self, name: str, key: str, value: object) -> str:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            value = str(value)  # ports and the like are often written without quotes
        if not isinstance(value, str) or (key == "command" and not value):
            raise self._error(name, f"{key} must be a string" + (", and is missing" if value is None else ""))
        return _VARIABLE.sub(lambda match: self._variable(name, key, match), value)

    def _variable(self, name: str, key: str, match: re.Match[str]) -> str:
        variable = match["name"]
        if match["kind"] == "input":
            raise self._error(
                name,
                f"{key} asks for the VS Code input {variable!r}",
                remedy="Replace it by an environment variable: ${NAME}.",
            )
        value = self.environment.get(variable)
        if value:
            return value
        if match["default"] is not None:
            return match["default"]
        if value is not None:
            return value
        if variable == "workspaceFolder":
            folder = self.path.resolve().parent
            return str(folder.parent if folder.name == ".vscode" else folder)
        raise self._error(
            name,
            f"{key} needs the environment variable {variable}, which is not set",
            remedy=f"export {variable}=...  (or put {variable}=... into .env)",
        )

    def _timeout(self, name: str, value: object) -> float | None:
        """Milliseconds per call, as Claude Code reads it; it ignores values below 1000, and so do we."""
        if value is None:
            return None
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise self._error(name, f"timeout must be a number of milliseconds, not {value!r}")
        if value < 1000:
            self.notes.append(f"server {name!r}: timeout {value} is ignored (milliseconds, at least 1000)")
            return None
        return value / 1000

    def _error(self, name: str, message: str, *, remedy: str | None = None) -> UserError:
        key = self.text.find(json.dumps(name))
        line = self.text.count("\n", 0, max(key, 0)) + 1
        return UserError(f"server {name!r}: {message}", where=f"{self.path}:{line}", remedy=remedy)
