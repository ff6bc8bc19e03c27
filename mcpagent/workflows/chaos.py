"""What faults of the user's own servers do to episodes: every fault on every server, one after the other."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.metrics import CheckStatus
from mcpagent.core.records import JsonObject
from mcpagent.rollout.setup import chosen_servers
from mcpagent.tools.chaos import ChaosFault, ChaosResult, chaos
from mcpagent.tools.servers_config import ServerConfig, StdioServer, builtin_servers


@dataclass(frozen=True)
class ChaosOutcome:
    """A skipped result is a fault that could not be injected; its detail says why."""

    results: tuple[ChaosResult, ...]

    @property
    def passed(self) -> bool:
        """True where every injected fault was recovered from and nothing leaked."""
        return all(result.status is not CheckStatus.FAIL for result in self.results)

    def as_json(self) -> JsonObject:
        return {
            "passed": self.passed,
            "chaos": [result.model_dump(mode="json") for result in self.results],
        }


def check_chaos(config: TrainConfig, *, console: Console | None = None) -> ChaosOutcome:
    """Inject every fault into every server of `config`; built-in servers run as processes for it.

    The servers are started and killed, and none of their tools is called. Raises UserError for a
    configuration that cannot be read.
    """
    console = console or Console()
    servers = _servers(config, console)
    with console.progress("Faults", total=len(servers) * len(ChaosFault)) as advance:

        async def all_of_them() -> list[ChaosResult]:
            # One at a time: what a fault leaks is seen by counting what this process has open.
            results: list[ChaosResult] = []
            for server in servers:
                if isinstance(server, StdioServer):
                    results += await chaos(
                        server, on_result=lambda result: advance(note=f"{result.server} {result.fault}")
                    )
                else:
                    results += _not_ours(server)
                    advance(len(ChaosFault), note=f"{server.name} skipped")
            return results

        return ChaosOutcome(tuple(asyncio.run(all_of_them())))


def _servers(config: TrainConfig, console: Console) -> Sequence[ServerConfig]:
    if config.tools.servers is None:
        return builtin_servers(limited=config.tools.limited, transport="stdio")
    return chosen_servers(config.tools, on_note=console.note)


def _not_ours(server: ServerConfig) -> list[ChaosResult]:
    on_process = {ChaosFault.KILL, ChaosFault.STOP, ChaosFault.SLOW_START}
    return [
        ChaosResult(
            server=server.name,
            fault=fault,
            status=CheckStatus.SKIP,
            detail="the process of a server over HTTP is not ours; run it over stdio to inject this"
            if fault in on_process
            else "there is no proxy for this over HTTP; run the server over stdio to inject it",
        )
        for fault in ChaosFault
        if fault is not ChaosFault.NONE
    ]
