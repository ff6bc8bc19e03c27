"""The built-in servers as the tool layer starts them: in this process, or as child processes."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from functools import partial
from typing import Literal

from mcpagent.core.tools import LEDGER_ENV
from mcpagent.servers.names import DATA_SERVERS, UpstreamKind, live_variables
from mcpagent.servers.registry import build_server, is_stateful
from mcpagent.servers.sandbox.contract import SandboxKind
from mcpagent.tools.servers_config import InProcessServer, ServerConfig, StdioServer

# A child inherits neither where to find this package nor where to record its calls.
_VARIABLES = ("PYTHONPATH", LEDGER_ENV)


def builtin_servers(
    names: Iterable[str] = DATA_SERVERS,
    *,
    limited: bool = True,
    transport: Literal["memory", "stdio"] = "memory",
    upstream: str = UpstreamKind.EMBEDDED,
    sandbox: str = SandboxKind.AUTO,
) -> tuple[ServerConfig, ...]:
    """Return these built-in servers, in this process or as child processes; `sandbox` is where python runs
    code.

    Raise UserError for a name that is not one of them.
    """
    start = _in_process if transport == "memory" else _as_process
    return tuple(start(name, limited, UpstreamKind(upstream), SandboxKind(sandbox)) for name in names)


def _in_process(name: str, limited: bool, upstream: UpstreamKind, sandbox: SandboxKind) -> ServerConfig:
    return InProcessServer(
        name=name,
        build=partial(build_server, name, limited=limited, upstream=upstream, sandbox=sandbox),
        isolation="episode" if is_stateful(name) else "shared",
        is_builtin=True,
        is_live=upstream is UpstreamKind.LIVE,
    )


def _as_process(name: str, limited: bool, upstream: UpstreamKind, sandbox: SandboxKind) -> ServerConfig:
    """Return the server as a child process, with its own live key and no other; it reads `.env` itself."""
    is_live = upstream is UpstreamKind.LIVE
    flags = [
        *(["--limited"] if limited else []),
        *(["--upstream", "live"] if is_live else []),
        *(["--sandbox", sandbox] if name == "python" else []),
    ]
    variables = _VARIABLES + (live_variables(name) if is_live else ())
    return StdioServer(
        name=name,
        command=sys.executable,
        args=("-m", "mcpagent.cli.main", "serve", name, *flags),
        env={variable: os.environ[variable] for variable in variables if variable in os.environ},
        isolation="episode" if is_stateful(name) else "shared",
    )
