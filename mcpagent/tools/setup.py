"""From the section `tools` of a configuration to started servers, recorded or replayed if it says so."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.environment import environment, state_folder
from mcpagent.config.named_parts import load_named
from mcpagent.config.schema import ToolsConfig
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.parts import BUILTIN_SERVERS
from mcpagent.storage.atomic import write_text
from mcpagent.tools.cassettes.cassette import Cassette
from mcpagent.tools.cassettes.tape import canonical, content_digest
from mcpagent.tools.contract import PinnedTools
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.limits import limits_of
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import (
    HttpServer,
    InProcessServer,
    ServerConfig,
    StdioServer,
    load_servers,
)


def strict_cassette(config: ToolsConfig) -> Cassette | None:
    """Return the cassette that stands for all servers; None if the configuration asks for servers."""
    if config.cassette is None or config.cassette_mode != "strict":
        return None
    environment()  # what it names as a secret never reaches the tape
    return Cassette.alone(
        Path(config.cassette),
        result_limit_chars=config.result_limit_chars,
        allow=config.allow_list,
    )


def recording(
    config: ToolsConfig,
    pool: ToolPool,
    servers: Sequence[ServerConfig],
    *,
    on_note: Callable[[str], None],
) -> Cassette | None:
    """Return the cassette around a started pool of `servers`; None if the configuration has none."""
    if config.cassette is None or config.cassette_mode not in ("record", "replay"):
        return None
    environment()
    return Cassette.around(
        pool,
        Path(config.cassette),
        mode=config.cassette_mode,
        shared=[s.name for s in servers if pool.isolation(s.name) == "shared"],
        versions={s.name: _version(s, config, reported=pool.versions.get(s.name, "")) for s in servers},
        result_limit_chars=config.result_limit_chars,
        on_note=on_note,
    )


def _version(server: ServerConfig, config: ToolsConfig, *, reported: str) -> str:
    """Return what decides which program answers: the version that the server reports, and of a built-in one
    its upstream, of another how it is reached: many report the version of a library or none, and a package
    is pinned there (`name@1.2.3`), a folder or a database named."""
    if config.servers is None:
        return f"{reported} {config.upstream}"
    match server:
        case StdioServer():
            reached = content_digest(canonical([Path(server.command).name, *server.args]))
        case HttpServer():
            reached = content_digest(canonical([server.url]))
        case _:
            reached = ""
    return " ".join(filter(None, (reported, reached)))


def note_named(servers: Path) -> None:
    """Keep that a person named this file. If nothing can be kept, they will be asked to name it again."""
    for mark in _marks(servers):
        try:
            if not mark.exists():
                write_text(mark, f"{servers.resolve()}\n", is_settings=True)
        except OSError:
            return


def is_named(servers: Path) -> bool:
    """Return whether a person named this file here once, at this place or with these contents."""
    return any(mark.exists() for mark in _marks(servers))


def check_named(servers: Path, *, by: Path) -> None:
    """Raise UserError for a file that is gone, and for one that was never named here, neither at this place
    nor with these contents. `by` is the file that names it."""
    if not servers.is_file():
        raise UserError(
            f"the dataset was made with the servers of {servers}, and there is no such file",
            where=str(by),
            remedy="name them with --set tools.servers=FILE (or --servers FILE), or fix the path there",
        )
    if not is_named(servers):
        raise UserError(
            f"the dataset names programs to start, in {servers}, which were never used on this machine",
            where=str(by),
            remedy=f"read that file; if you trust it, name it once: mcpagent tools list --servers {servers}",
        )


def _marks(servers: Path) -> list[Path]:
    place = str(servers.resolve()).encode("utf-8", "surrogateescape")
    keys = [place]
    with suppress(OSError):
        keys.append(servers.read_bytes())
    return [state_folder() / "servers" / hashlib.sha256(key).hexdigest() for key in keys]


@dataclass(frozen=True)
class Tools:
    """The tools that episodes call, and the thread that they live on. `pool` are the started servers, or the
    `cassette` around or instead of them if there is one. `may_be_changed` are the servers on which a call
    that may write can be tried, since no other session finds what it did. `own_instances` are those with a
    state of its own for each session that need no reset, so that a session which stays open holds up no
    other."""

    io: IOThread
    pool: PinnedTools
    cassette: Cassette | None = None
    may_be_changed: frozenset[str] = frozenset()
    own_instances: frozenset[str] = frozenset()

    def as_json(self) -> JsonObject:
        """Return what a record of a run says of its tools. `renamed_tools` has `server.tool` by the name that
        the model sees, for the tools whose own name is not unique."""
        renamed = {name: spec.dotted for name, spec in self.pool.tools.items() if name != spec.name}
        return {
            "catalog_hash": self.pool.catalog_hash,
            "renamed_tools": renamed,
            "server_versions": dict(self.pool.versions),
        }

    def take_cassette_counts(self) -> JsonObject | None:
        """Return what the cassette did since this was last asked; None if there is none."""
        return None if self.cassette is None else self.cassette.take_counts()

    def take_metrics(self) -> JsonObject:
        """Return what the record of a training step says of the tools: what the cassette did in it, if there
        is one, and what the servers' calls came to since they were started."""
        counts = self.take_cassette_counts()
        return {
            **({} if counts is None else {"cassette": counts}),
            "tool_metrics": self.pool.metrics().model_dump(mode="json"),
        }


def configured_servers(
    config: ToolsConfig, *, on_note: Callable[[str], None] = lambda _: None
) -> Sequence[ServerConfig]:
    """Return the user's mcp.json, or the built-in servers; `on_note` is told what of the file was skipped."""
    if config.servers is None:
        start = load_named(BUILTIN_SERVERS, where="tools.builtin")
        return start(config.builtin, limited=config.limited, upstream=config.upstream)
    loaded = load_servers(Path(config.servers))
    for note in loaded.notes:
        on_note(f"{config.servers}: {note}")
    return loaded.servers


@contextmanager
def open_tools(
    config: ToolsConfig,
    *,
    ledger: Path | None = None,
    log_dir: Path | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> Iterator[Tools]:
    """Start the servers; stop them at the end, whatever happens. A strict cassette starts none."""
    if (strict := strict_cassette(config)) is not None:
        with IOThread() as io:
            builtin = configured_servers(config) if config.servers is None else ()
            yield Tools(io, strict, strict, *_may_be_changed(config, builtin))
        return
    servers = configured_servers(config, on_note=on_note)
    with IOThread() as io:
        pool = ToolPool(servers, config, ledger=ledger, log_dir=log_dir, on_note=on_note)
        io.run(pool.__aenter__())
        try:
            cassette = recording(config, pool, servers, on_note=on_note)
            yield Tools(io, cassette or pool, cassette, *_may_be_changed(config, servers))
        finally:
            io.run(pool.close())


def servers_with_own_state(config: ToolsConfig, servers: Sequence[ServerConfig]) -> frozenset[str]:
    """Return the servers that are configured so that no session finds what another one did. A session of its
    own over HTTP does not say that, nor does an instance that works on a service."""
    names = {name for name, section in config.per_server.items() if section.workspace or section.reset}
    for server in servers:
        works_alone = isinstance(server, StdioServer) or (
            isinstance(server, InProcessServer) and not server.is_live
        )
        if works_alone and limits_of(server, config).isolation == "episode":
            names.add(server.name)
    return frozenset(names)


def _may_be_changed(
    config: ToolsConfig, servers: Sequence[ServerConfig]
) -> tuple[frozenset[str], frozenset[str]]:
    """Return the servers that may be changed, and those with a state of their own that need no reset for it.
    A process of its own is not enough for one of the user's: it may write to a file or a database."""
    own_state, sections = servers_with_own_state(config, servers), config.per_server.items()
    undone = {name for name, each in sections if each.workspace or each.reset or each.allow_writes}
    with_reset = {name for name, each in sections if each.reset}
    return own_state if config.servers is None else own_state & undone, own_state - with_reset
