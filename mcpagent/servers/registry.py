"""The built-in servers by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from pathlib import Path

from mcpagent.errors import UserError
from mcpagent.servers.builtin import BuiltinServer, ServerDefinition, Upstream
from mcpagent.servers.fmp import FMP
from mcpagent.servers.ledger import Ledger
from mcpagent.servers.names import BUILTIN_NAMES, KEY_NAMES, UpstreamKind
from mcpagent.servers.polygon import POLYGON
from mcpagent.servers.sandbox.contract import SandboxKind
from mcpagent.servers.slack import SLACK
from mcpagent.servers.tavily import TAVILY

_PYTHON = "python"  # its definition depends on the sandbox, which has to be tried first
_DEFINITIONS = {definition.name: definition for definition in (POLYGON, FMP, TAVILY, SLACK)}


def build_server(
    name: str,
    *,
    limited: bool = False,
    upstream: UpstreamKind = UpstreamKind.EMBEDDED,
    allow_send: Collection[str] = (),
    sandbox: SandboxKind = SandboxKind.AUTO,
    ledger: Path | None = None,
) -> BuiltinServer:
    """Return a built-in server, ready for `run()` or an in-memory `Client(server)`.

    Building costs about 1 ms a tool, so build once and open many clients: each has an upstream of its own.
    `allow_send` names the channels that a live slack may write to, `sandbox` is where python runs code.
    `ledger` defaults to the file that `MCPAGENT_CALL_LEDGER` names. Raises `UserError` for an unknown name, a
    missing key or a sandbox that this machine does not have.
    """
    return BuiltinServer(
        _python(sandbox) if name == _PYTHON else _definition(name),
        upstream=_live_upstream(name, allow_send) if upstream is UpstreamKind.LIVE else None,
        limited=limited,
        ledger=Ledger(ledger) if ledger is not None else Ledger.from_environment(),
    )


def _python(kind: SandboxKind) -> ServerDefinition:
    from mcpagent.servers.python import python_definition
    from mcpagent.servers.sandbox.choose import choose_sandbox

    return python_definition(choose_sandbox(kind).sandbox)


def _live_upstream(name: str, allow_send: Collection[str]) -> Upstream | None:
    """Return the live upstream of a server; None if it asks no web service. Raises UserError for a missing
    key."""
    if name not in KEY_NAMES:
        return None
    from mcpagent.servers.live import fmp, polygon, slack, tavily  # their packages are not for every start
    from mcpagent.servers.live.client import read_settings

    services = {"polygon": polygon.SERVICE, "fmp": fmp.SERVICE, "tavily": tavily.SERVICE}
    service = services.get(name) or slack.slack_service(allow_send)
    return service.upstream(read_settings(name, base_url=service.base_url))


def is_stateful(name: str) -> bool:
    """True if calls change what later calls answer: such a server needs an instance for each episode."""
    return name == _PYTHON or _definition(name).stateful


def _definition(name: str) -> ServerDefinition:
    if name in _DEFINITIONS:
        return _DEFINITIONS[name]
    near = difflib.get_close_matches(name, BUILTIN_NAMES, n=1)
    raise UserError(
        f"unknown built-in server {name!r}",
        remedy=f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(BUILTIN_NAMES)}",
    )
