"""The built-in servers as the tool layer starts them: in this process."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from mcpagent.servers.names import DATA_SERVERS, UpstreamKind
from mcpagent.servers.registry import build_server, is_stateful
from mcpagent.servers.sandbox.contract import SandboxKind
from mcpagent.tools.servers_config import InProcessServer


def builtin_servers(
    names: Iterable[str] = DATA_SERVERS,
    *,
    limited: bool = True,
    upstream: str = UpstreamKind.EMBEDDED,
    sandbox: str = SandboxKind.AUTO,
) -> tuple[InProcessServer, ...]:
    """Return these built-in servers; `sandbox` is where python runs code.

    Raise UserError for a name that is not one of them.
    """
    kind = UpstreamKind(upstream)
    return tuple(
        InProcessServer(
            name=name,
            build=partial(build_server, name, limited=limited, upstream=kind, sandbox=SandboxKind(sandbox)),
            isolation="episode" if is_stateful(name) else "shared",
            is_builtin=True,
            is_live=kind is UpstreamKind.LIVE,
        )
        for name in names
    )
