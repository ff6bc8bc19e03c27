"""The built-in servers by name."""

from __future__ import annotations

import difflib
from contextlib import nullcontext
from pathlib import Path

from mcpagent.errors import UserError
from mcpagent.servers.builtin import BuiltinServer, OpenUpstream, ServerDefinition
from mcpagent.servers.embedded.fmp import EmbeddedFmp
from mcpagent.servers.embedded.polygon import EmbeddedPolygon
from mcpagent.servers.embedded.slack import EmbeddedSlack
from mcpagent.servers.embedded.tavily import EmbeddedTavily
from mcpagent.servers.fmp import FMP
from mcpagent.servers.ledger import Ledger
from mcpagent.servers.names import BUILTIN_NAMES as BUILTIN_NAMES
from mcpagent.servers.names import UpstreamKind
from mcpagent.servers.polygon import POLYGON
from mcpagent.servers.slack import SLACK
from mcpagent.servers.tavily import TAVILY

_DEFINITIONS = {definition.name: definition for definition in (POLYGON, FMP, TAVILY, SLACK)}

_UPSTREAMS: dict[UpstreamKind, dict[str, OpenUpstream]] = {
    UpstreamKind.EMBEDDED: {
        "polygon": lambda: nullcontext(EmbeddedPolygon()),
        "fmp": lambda: nullcontext(EmbeddedFmp()),
        "tavily": lambda: nullcontext(EmbeddedTavily()),
        "slack": lambda: nullcontext(EmbeddedSlack()),
    },
}


def build_server(
    name: str,
    *,
    limited: bool = False,
    upstream: UpstreamKind = UpstreamKind.EMBEDDED,
    ledger: Path | None = None,
) -> BuiltinServer:
    """A built-in server, ready for `run()` or an in-memory `Client(server)`.

    Building costs about 1 ms a tool, so build once and open many clients: each has an upstream of its own.
    `ledger` defaults to the file that `MCPAGENT_CALL_LEDGER` names. Raises `UserError` for an unknown name.
    """
    return BuiltinServer(
        _definition(name),
        open_upstream=_UPSTREAMS[upstream][name],
        limited=limited,
        ledger=Ledger(ledger) if ledger is not None else Ledger.from_environment(),
    )


def is_stateful(name: str) -> bool:
    """True where calls change what later calls answer: such a server needs an instance for each episode."""
    return _definition(name).stateful


def _definition(name: str) -> ServerDefinition:
    if name in _DEFINITIONS:
        return _DEFINITIONS[name]
    near = difflib.get_close_matches(name, BUILTIN_NAMES, n=1)
    raise UserError(
        f"unknown built-in server {name!r}",
        remedy=f"did you mean {near[0]!r}?" if near else f"use one of: {', '.join(BUILTIN_NAMES)}",
    )
