"""What faults of the user's own servers do to episodes: every fault on every server, one after the other."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.metrics import CheckStatus
from mcpagent.core.records import JsonObject
from mcpagent.rollout.setup import chosen_servers
from mcpagent.tools.chaos import ChaosResult, chaos
from mcpagent.tools.chaos_rigs import ChaosFault, faults_of
from mcpagent.tools.servers_config import HttpServer, StdioServer, builtin_servers


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

    Servers over stdio are started and killed; those over HTTP are left alone, and what is between them and us
    is struck. None of their tools is called. Raises UserError for a configuration that cannot be read.
    """
    console = console or Console()
    servers = _servers(config, console)
    total = sum(len(faults_of(server)) for server in servers)
    with console.progress("Faults", total=total) as advance:

        async def all_of_them() -> list[ChaosResult]:
            # One at a time: what a fault leaks is seen by counting what this process has open.
            results: list[ChaosResult] = []
            for server in servers:
                results += await chaos(
                    server, on_result=lambda result: advance(note=f"{result.server} {result.fault}")
                )
                if isinstance(server, HttpServer):
                    results += _not_ours(server)
            return results

        return ChaosOutcome(tuple(asyncio.run(all_of_them())))


def _servers(config: TrainConfig, console: Console) -> list[StdioServer | HttpServer]:
    if config.tools.servers is None:
        chosen = builtin_servers(limited=config.tools.limited, transport="stdio")
    else:
        chosen = chosen_servers(config.tools, on_note=console.note)
    return [server for server in chosen if isinstance(server, StdioServer | HttpServer)]


def _not_ours(server: HttpServer) -> list[ChaosResult]:
    return [
        ChaosResult(
            server=server.name,
            fault=fault,
            status=CheckStatus.SKIP,
            detail="the process of a server over HTTP is not ours; run it over stdio to inject this",
        )
        for fault in (ChaosFault.KILL, ChaosFault.STOP)
    ]
