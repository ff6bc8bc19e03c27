"""List the tools of many servers; one that does not start hides no other."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.console import Console
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import ServerConfig


@dataclass(frozen=True, kw_only=True)
class ListedServer:
    """A server that was started and ended again; `failure` says why it did not start."""

    name: str
    tools: tuple[ToolSpec, ...] = ()
    start_s: float
    failure: str | None = None


def list_servers(configs: Sequence[ServerConfig], *, console: Console) -> list[ListedServer]:
    """Start all servers side by side; the result is in the order of `configs`."""

    async def run() -> list[ListedServer]:
        with console.progress("starting servers", total=len(configs)) as advance:

            async def start(config: ServerConfig) -> ListedServer:
                listed = await _list(config, console)
                advance(note=config.name)
                return listed

            return await asyncio.gather(*map(start, configs))

    return asyncio.run(run())


async def _list(config: ServerConfig, console: Console) -> ListedServer:
    started_s = time.perf_counter()
    try:
        async with ToolPool([config], on_note=console.note) as pool:
            start_s = time.perf_counter() - started_s
            return ListedServer(name=config.name, tools=tuple(pool.tools.values()), start_s=start_s)
    except UserError as error:
        return ListedServer(name=config.name, failure=error.message, start_s=time.perf_counter() - started_s)
