"""From a configuration to what episodes need, whatever plays them: started servers and settings. No torch."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import ServerSection, ToolsConfig, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.env.episode import EpisodeLimits
from mcpagent.errors import UserError
from mcpagent.policy.contract import Sampling
from mcpagent.rollout.agent import AgentSettings
from mcpagent.rollout.cassettes import recording, strict_cassette
from mcpagent.servers.names import UpstreamKind
from mcpagent.servers.sandbox.kinds import SandboxKind
from mcpagent.tools.cassette import Cassette
from mcpagent.tools.contract import PinnedTools
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.limits import ServerLimits
from mcpagent.tools.listing import ListingLimits
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import Isolation, ServerConfig, builtin_servers, load_servers


@dataclass(frozen=True)
class Tools:
    """What episodes call, and the thread that it lives on. `pool` are the started servers, or the `cassette`
    around or instead of them where there is one."""

    io: IOThread
    pool: PinnedTools
    cassette: Cassette | None = None

    def take_cassette_counts(self) -> JsonObject | None:
        """What the cassette did since this was last asked; None where there is none."""
        return None if self.cassette is None else self.cassette.take_counts()

    def take_metrics(self) -> JsonObject:
        """What the record of a training step says of the tools: what the cassette did in it, where there is
        one, and what the servers' calls came to since they were started."""
        counts = self.take_cassette_counts()
        return {
            **({} if counts is None else {"cassette": counts}),
            "tool_metrics": self.pool.metrics().model_dump(mode="json"),
        }


def chosen_servers(
    config: ToolsConfig, *, on_note: Callable[[str], None] = lambda _: None
) -> Sequence[ServerConfig]:
    """The user's mcp.json, or the built-in servers; `on_note` is told what of the file was skipped."""
    if config.servers is None:
        return builtin_servers(
            config.builtin,
            limited=config.limited,
            transport=config.transport,
            upstream=UpstreamKind(config.upstream),
            sandbox=SandboxKind(config.sandbox),
        )
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
        with strict, IOThread() as io:
            yield Tools(io, strict, strict)
        return
    servers = chosen_servers(config, on_note=on_note)
    pool = tool_pool(config, servers, ledger=ledger, log_dir=log_dir, on_note=on_note)
    with IOThread() as io:
        io.run(pool.__aenter__())
        try:
            with recording(config, pool, servers, on_note=on_note) as cassette:
                yield Tools(io, cassette or pool, cassette)
        finally:
            io.run(pool.close())


def tool_pool(
    config: ToolsConfig,
    servers: Sequence[ServerConfig],
    *,
    ledger: Path | None = None,
    log_dir: Path | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> ToolPool:
    """A pool of `servers`, not started yet, with the settings of `config`. Raises UserError where they
    contradict each other or name no server."""
    return ToolPool(
        servers,
        timeout_s=config.timeout_s,
        retry=config.retry,
        result_limit_chars=config.result_limit_chars,
        listing_limits=ListingLimits(
            description_chars=config.description_limit_chars, schema_chars=config.schema_limit_chars
        ),
        allow=config.allow_list,
        read_only=config.read_only,
        isolation=_isolation(config),
        per_server={name: _limits(section) for name, section in config.per_server.items()},
        ledger=ledger,
        log_dir=log_dir,
        on_change=config.on_catalog_change,
        on_note=on_note,
    )


def _isolation(config: ToolsConfig) -> dict[str, Isolation]:
    """By server. Raises UserError where `tools.isolation` and `tools.per_server` disagree."""
    chosen: dict[str, Isolation] = dict(config.isolation)
    for name, section in config.per_server.items():
        if section.isolation is None:
            continue
        if chosen.setdefault(name, section.isolation) != section.isolation:
            raise UserError(
                f"server {name!r} is {chosen[name]} in tools.isolation and {section.isolation} in "
                "tools.per_server",
                where=f"tools.per_server.{name}.isolation",
                remedy="Keep one of the two.",
            )
    return chosen


def _limits(section: ServerSection) -> ServerLimits:
    return ServerLimits(**section.model_dump(exclude={"isolation"}))


def agent_settings(config: TrainConfig, *, max_context: int | None) -> AgentSettings:
    """How episodes are sampled, from the `rollout` section."""
    rollout = config.rollout
    return AgentSettings(
        sampling=Sampling(
            max_new_tokens=rollout.max_new_tokens,
            temperature=rollout.temperature,
            top_p=rollout.top_p,
            top_k=rollout.top_k,
        ),
        limits=EpisodeLimits(
            max_turns=rollout.max_steps_per_episode, message_limit_chars=config.data.message_limit_chars
        ),
        max_context_tokens=max_context,
    )
