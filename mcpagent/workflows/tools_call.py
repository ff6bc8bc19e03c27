"""One tool of one server, found by its name and called."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace

from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolCall, ToolResult, ToolSpec
from mcpagent.errors import UserError
from mcpagent.tools.catalog import near_match
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import ServerConfig


@dataclass(frozen=True)
class OpenTool:
    """A tool whose server runs."""

    spec: ToolSpec
    session: ToolSession

    async def call(self, arguments: JsonObject, *, call_id: str) -> ToolResult:
        call = ToolCall(id=call_id, server=self.spec.server, tool=self.spec.name, arguments=arguments)
        return await self.session.call(call)


@asynccontextmanager
async def open_tool(
    dotted: str,
    configs: Sequence[ServerConfig],
    *,
    timeout_s: float | None = None,
    max_in_flight: int = 1,
    console: Console,
) -> AsyncGenerator[OpenTool]:
    """Start the server of `SERVER.TOOL`, and no other; `timeout_s` goes before the server's own deadline.

    Raises UserError, with the nearest name, where there is no such server or tool.
    """
    config, tool = _place(dotted, configs)
    if timeout_s is not None:
        config = replace(config, timeout_s=timeout_s)
    pool = ToolPool([config], max_in_flight=max_in_flight, on_note=console.note)
    async with pool, pool.session() as session:
        for spec in pool.tools.values():
            if spec.name == tool:
                yield OpenTool(spec, session)
                return
        raise _unknown("tool", dotted, [spec.dotted for spec in pool.tools.values()])


def call_tool(
    dotted: str,
    arguments: JsonObject,
    configs: Sequence[ServerConfig],
    *,
    timeout_s: float | None = None,
    console: Console,
) -> tuple[ToolSpec, ToolResult]:
    """Call `SERVER.TOOL` once. A failing call is a result; raises UserError as `open_tool` does."""

    async def run() -> tuple[ToolSpec, ToolResult]:
        async with open_tool(dotted, configs, timeout_s=timeout_s, console=console) as tool:
            return tool.spec, await tool.call(arguments, call_id="cli")

    return asyncio.run(run())


def _place(dotted: str, configs: Sequence[ServerConfig]) -> tuple[ServerConfig, str]:
    """The server and the tool that SERVER.TOOL names. Both may hold dots: the longest server name wins."""
    for config in sorted(configs, key=lambda c: len(c.name), reverse=True):
        if dotted.startswith(f"{config.name}."):
            return config, dotted.removeprefix(f"{config.name}.")
    server, dot, _ = dotted.partition(".")
    if not dot:
        raise UserError(
            f"{dotted!r} names no server", remedy="Write SERVER.TOOL; mcpagent tools list shows them."
        )
    raise _unknown("server", server, [config.name for config in configs])


def _unknown(kind: str, name: str, known: Sequence[str]) -> UserError:
    near = near_match(name, known)
    return UserError(f"there is no {kind} {name!r}", remedy=near or f"There are: {', '.join(sorted(known))}")
