"""Putting the cassette of a configuration around the servers, or in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcpagent import __version__
from mcpagent.config.environment import environment
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.redact import secrets_of
from mcpagent.tools.cassette import Cassette, ServerFacts
from mcpagent.tools.cassette_key import canonical, digest
from mcpagent.tools.contract import PinnedTools
from mcpagent.tools.servers_config import HttpServer, Isolation, MemoryServer, ServerConfig, StdioServer


def strict_cassette(config: ToolsConfig) -> Cassette | None:
    """The cassette that stands for all servers; None where the configuration asks for servers."""
    if config.cassette is None or config.cassette_mode != "strict":
        return None
    return Cassette.alone(
        Path(config.cassette),
        result_limit_chars=config.result_limit_chars,
        allow=config.allow_list,
        on_change=config.on_catalog_change,
        secrets=secrets_of(environment()),
    )


@contextmanager
def recording(
    config: ToolsConfig,
    pool: PinnedTools,
    servers: Sequence[ServerConfig],
    *,
    isolation: dict[str, Isolation],
    on_note: Callable[[str], None],
) -> Iterator[Cassette | None]:
    """The cassette around a started pool of `servers`; None where the configuration has none. `isolation` are
    the overrides by server."""
    if config.cassette is None or config.cassette_mode not in ("record", "replay"):
        yield None
        return
    held = [
        *(server.env for server in servers if isinstance(server, StdioServer)),
        *(server.headers for server in servers if isinstance(server, HttpServer)),
    ]
    cassette = Cassette.around(
        pool,
        Path(config.cassette),
        mode=config.cassette_mode,
        servers=ServerFacts(
            isolation={s.name: isolation.get(s.name) or _own_isolation(s) for s in servers},
            versions={s.name: _version(s, config) for s in servers},
            repeatable=[
                f"{name}.{tool}"
                for name, section in config.per_server.items()
                for tool in section.safe_to_retry
            ],
            stateless=config.cassette_stateless,
        ),
        result_limit_chars=config.result_limit_chars,
        secrets=secrets_of(environment(), *held),
        on_note=on_note,
    )
    with cassette:
        yield cassette


def _own_isolation(server: ServerConfig) -> Isolation:
    if isinstance(server, MemoryServer):
        from mcpagent.servers.registry import is_stateful

        return server.isolation or ("episode" if is_stateful(server.name) else "shared")
    return server.isolation or "shared"


def _version(server: ServerConfig, config: ToolsConfig) -> str:
    """What decides which program answers: of a built-in server this version and its upstream, of another how
    it is reached, because a package is pinned there (`name@1.2.3`) and a folder or database is named."""
    if config.servers is None:
        return f"{__version__} {config.upstream}"
    match server:
        case StdioServer():
            reached = [Path(server.command).name, *server.args]
        case HttpServer():
            reached = [server.url]
        case _:
            return ""
    return digest(canonical(reached))
