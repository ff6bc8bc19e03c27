"""The built-in servers by name."""

from __future__ import annotations

import difflib
from collections.abc import Collection
from contextlib import nullcontext
from pathlib import Path

from mcpagent.errors import UserError
from mcpagent.servers.builtin import BuiltinServer, OpenUpstream, ServerDefinition, Upstream
from mcpagent.servers.fmp import FMP, EmbeddedFmp
from mcpagent.servers.ledger import Ledger
from mcpagent.servers.names import BUILTIN_NAMES as BUILTIN_NAMES
from mcpagent.servers.names import KEY_NAMES, UpstreamKind
from mcpagent.servers.polygon import POLYGON, EmbeddedPolygon
from mcpagent.servers.sandbox.contract import SandboxKind
from mcpagent.servers.slack import SLACK, EmbeddedSlack
from mcpagent.servers.tavily import TAVILY, EmbeddedTavily

_PYTHON = "python"  # its definition depends on the sandbox, which has to be tried first
_DEFINITIONS = {definition.name: definition for definition in (POLYGON, FMP, TAVILY, SLACK)}

_EMBEDDED: dict[str, OpenUpstream] = {
    "polygon": lambda: nullcontext(EmbeddedPolygon()),
    "fmp": lambda: nullcontext(EmbeddedFmp()),
    "tavily": lambda: nullcontext(EmbeddedTavily()),
    "slack": lambda: nullcontext(EmbeddedSlack()),
}


def build_server(
    name: str,
    *,
    limited: bool = False,
    upstream: UpstreamKind = UpstreamKind.EMBEDDED,
    allow_send: Collection[str] = (),
    sandbox: SandboxKind = SandboxKind.AUTO,
    ledger: Path | None = None,
) -> BuiltinServer:
    """A built-in server, ready for `run()` or an in-memory `Client(server)`.

    Building costs about 1 ms a tool, so build once and open many clients: each has an upstream of its own.
    `allow_send` names the channels that a live slack may write to, `sandbox` is where python runs code.
    `ledger` defaults to the file that `MCPAGENT_CALL_LEDGER` names. Raises `UserError` for an unknown name, a
    missing key or a sandbox that this machine does not have.
    """
    definition, opened = (
        _python(sandbox) if name == _PYTHON else (_definition(name), _upstream(name, upstream, allow_send))
    )
    return BuiltinServer(
        definition,
        upstream=opened,
        limited=limited,
        ledger=Ledger(ledger) if ledger is not None else Ledger.from_environment(),
    )


def _python(kind: SandboxKind) -> tuple[ServerDefinition, Upstream]:
    from mcpagent.servers.python import open_sessions, python_definition
    from mcpagent.servers.sandbox.choose import choose_sandbox

    sandbox = choose_sandbox(kind).sandbox
    return python_definition(sandbox), Upstream(open=open_sessions(sandbox))


def _upstream(name: str, kind: UpstreamKind, allow_send: Collection[str]) -> Upstream:
    """A server that asks no web service is the same with every kind."""
    if kind is UpstreamKind.LIVE and name in KEY_NAMES:
        from mcpagent.servers.live.opening import live_upstream  # its packages are not for every start

        return live_upstream(name, allow_send=allow_send)
    return Upstream(open=_EMBEDDED[name])


def is_stateful(name: str) -> bool:
    """True where calls change what later calls answer: such a server needs an instance for each episode."""
    return name == _PYTHON or _definition(name).stateful


def _definition(name: str) -> ServerDefinition:
    if name in _DEFINITIONS:
        return _DEFINITIONS[name]
    near = difflib.get_close_matches(name, BUILTIN_NAMES, n=1)
    raise UserError(
        f"unknown built-in server {name!r}",
        remedy=f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(BUILTIN_NAMES)}",
    )
