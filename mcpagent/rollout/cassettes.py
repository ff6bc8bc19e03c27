"""Putting the cassette of a configuration around the servers, or in their place."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from mcpagent.config.environment import environment
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.redact import SECRETS
from mcpagent.tools.cassette import Cassette, ServerFacts
from mcpagent.tools.cassette_key import canonical, digest
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, ServerConfig, StdioServer


def strict_cassette(config: ToolsConfig) -> Cassette | None:
    """The cassette that stands for all servers; None where the configuration asks for servers."""
    if config.cassette is None or config.cassette_mode != "strict":
        return None
    return Cassette.alone(
        Path(config.cassette),
        result_limit_chars=config.result_limit_chars,
        allow=config.allow_list,
        on_change=config.on_catalog_change,
        secrets=_secrets(),
    )


@contextmanager
def recording(
    config: ToolsConfig,
    pool: ToolPool,
    servers: Sequence[ServerConfig],
    *,
    on_note: Callable[[str], None],
) -> Iterator[Cassette | None]:
    """The cassette around a started pool of `servers`; None where the configuration has none."""
    if config.cassette is None or config.cassette_mode not in ("record", "replay"):
        yield None
        return
    cassette = Cassette.around(
        pool,
        Path(config.cassette),
        mode=config.cassette_mode,
        servers=ServerFacts(
            isolation={s.name: pool.isolation(s.name) for s in servers},
            versions={s.name: _version(s, config, reported=pool.versions.get(s.name, "")) for s in servers},
            repeatable=[
                f"{name}.{tool}"
                for name, section in config.per_server.items()
                for tool in section.safe_to_retry
            ],
        ),
        result_limit_chars=config.result_limit_chars,
        secrets=_secrets(),
        on_note=on_note,
    )
    with cassette:
        yield cassette


def _secrets() -> Mapping[str, str]:
    """Those that are known by now: of the servers, which were read, and of the environment."""
    environment()
    return SECRETS.names


def _version(server: ServerConfig, config: ToolsConfig, *, reported: str) -> str:
    """What decides which program answers: the version that the server reports, and of a built-in one its
    upstream, of another how it is reached: many report the version of a library or none, and a package is
    pinned there (`name@1.2.3`), a folder or a database named."""
    if config.servers is None:
        return f"{reported} {config.upstream}"
    match server:
        case StdioServer():
            reached = digest(canonical([Path(server.command).name, *server.args]))
        case HttpServer():
            reached = digest(canonical([server.url]))
        case _:
            reached = ""
    return f"{reported} {reached}".strip()
