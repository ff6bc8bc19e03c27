"""Which isolation each server needs, against what is configured, and what instances would cost."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from dataclasses import dataclass

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.metrics import CheckResult, CheckStatus
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.rollout.setup import chosen_servers, tool_pool
from mcpagent.tools.instance_cost import InstanceCost
from mcpagent.tools.isolation import Basis, IsolationVerdict, probe_isolation
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probe import State
from mcpagent.tools.servers_config import Isolation, ServerConfig


@dataclass(frozen=True, kw_only=True)
class ServerIsolation:
    """One server; `verdict` is None where it did not start."""

    check: CheckResult
    verdict: IsolationVerdict | None = None
    configured: Isolation | None = None
    forecast: str = ""

    def as_json(self) -> JsonObject:
        return {
            "check": self.check.model_dump(mode="json"),
            "configured": self.configured,
            "forecast": self.forecast,
            **({} if self.verdict is None else self.verdict.model_dump(mode="json")),
        }


def check_isolation(
    config: TrainConfig, *, allow_writes: bool = False, console: Console | None = None
) -> tuple[ServerIsolation, ...]:
    """Probe every server of `config`, one after the other; see `tools.isolation.probe_isolation`."""
    console = console or Console()
    servers = chosen_servers(config.tools, on_note=console.note)
    pool = tool_pool(config.tools, servers)  # never started: it says what is configured
    with console.progress("Isolation", total=len(servers)) as advance:

        async def probe_all() -> list[ServerIsolation]:
            found: list[ServerIsolation] = []
            for server in servers:
                found.append(
                    await _check(server, config, pool, allow_writes=allow_writes, on_note=console.note)
                )
                advance(note=server.name)
            return found

        return tuple(asyncio.run(probe_all()))


def forecast(cost: InstanceCost, *, episodes: int) -> str:
    """What an instance for each of `episodes` would take."""
    if cost.rss_bytes is None or cost.cpu_s is None:
        return f"{1000 * cost.start_s:.1f} ms an episode"
    total, each = cost.rss_bytes * episodes, cost.rss_bytes
    return (
        f"{episodes} x {each / 1e6:.0f} MB = {total / 1e9:.1f} GB, "
        f"{episodes} x {cost.cpu_s:.1f} CPU s = {episodes * cost.cpu_s:.0f} CPU s of starts"
    )


async def _check(
    server: ServerConfig,
    config: TrainConfig,
    pool: ToolPool,
    *,
    allow_writes: bool,
    on_note: Callable[[str], None],
) -> ServerIsolation:
    name = f"isolation of {server.name}"
    try:
        verdict = await probe_isolation(
            server, allow=config.tools.allow_list, allow_writes=allow_writes, on_note=on_note
        )
    except UserError as error:
        failed = CheckResult(name=name, status=CheckStatus.FAIL, detail=error.message, remedy=error.remedy)
        return ServerIsolation(check=failed)
    configured = pool.isolation(server.name)
    episodes = config.rollout.num_envs
    return ServerIsolation(
        check=_judge(name, verdict, configured, episodes=episodes),
        verdict=verdict,
        configured=configured,
        forecast=forecast(verdict.cost, episodes=episodes),
    )


def _judge(name: str, verdict: IsolationVerdict, configured: Isolation, *, episodes: int) -> CheckResult:
    because = _because(verdict)
    if verdict.state is State.OUTSIDE:
        return CheckResult(
            name=name,
            status=CheckStatus.WARN,
            detail=f"no isolation helps: {because}",
            remedy=f"give each episode a file or database of its own, or run one episode at a time, or leave "
            f"{', '.join(verdict.writes)} out of tools.allow_list",
        )
    if configured != verdict.recommended:
        return CheckResult(
            name=name,
            status=CheckStatus.WARN,
            detail=f"{configured} is configured, {verdict.recommended} is recommended: {because}",
            remedy=f"--set tools.isolation.{verdict.server}={verdict.recommended}{_or_look(verdict)}",
        )
    if configured == "episode" and (short := _shortage(verdict.cost, episodes=episodes)) is not None:
        return CheckResult(
            name=name,
            status=CheckStatus.WARN,
            detail=f"{short}: {because}",
            remedy="--set rollout.num_envs=N",
        )
    return CheckResult(name=name, status=CheckStatus.PASS, detail=f"{configured}: {because}")


def _because(verdict: IsolationVerdict) -> str:
    match verdict.basis:
        case Basis.OBSERVED:
            return verdict.evidence[0]
        case Basis.DECLARED if verdict.state is State.NONE:
            return "it declares all its tools read-only"
        case Basis.DECLARED:
            return "it declares tools that write and were not tried, or refused the probe"
        case Basis.NAMES:
            return "a hint from the names of its tools alone, which have no annotations and were not called"


def _or_look(verdict: IsolationVerdict) -> str:
    if verdict.basis is Basis.OBSERVED:
        return ""
    return ", or see what its tools do: mcpagent env check --servers FILE --allow-writes"


def _shortage(cost: InstanceCost, *, episodes: int) -> str | None:
    """Where the instances would not fit into this machine's memory."""
    if cost.rss_bytes is None or "SC_PHYS_PAGES" not in os.sysconf_names:
        return None
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    wanted = cost.rss_bytes * episodes
    if wanted <= memory:
        return None
    return f"{episodes} instances need {wanted / 1e9:.1f} GB, and this machine has {memory / 1e9:.1f} GB"
