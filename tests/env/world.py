"""Real servers for episodes: the built-in ones in memory, and a scratch server whose tools misbehave."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from functools import wraps
from typing import Any, TypeVar

from mcp.server import MCPServer
from mcp.types import ToolAnnotations

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolCall
from mcpagent.policy.scripted import call_text
from mcpagent.servers.provider import builtin_servers
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer

T = TypeVar("T")

READ_ONLY = ToolAnnotations(read_only_hint=True)
QUOTE = "fmp_get_quote"
HISTORY = "get_slack_channel_history"
SEND = "send_slack_message"


def with_builtins(use: Callable[[ToolPool], Awaitable[T]]) -> T:
    async def run() -> T:
        async with ToolPool(builtin_servers()) as pool:
            return await use(pool)

    return asyncio.run(run())


def with_builtin_servers(test: Callable[..., Awaitable[None]]) -> Callable[..., None]:
    """A test whose first argument is a pool of the built-in servers."""

    @wraps(test)
    def run(**arguments: Any) -> None:
        with_builtins(lambda pool: test(pool, **arguments))

    signature = inspect.signature(test)
    run.__signature__ = signature.replace(parameters=[*signature.parameters.values()][1:])  # for pytest
    return run


@asynccontextmanager
async def scratch_pool(
    *tools: tuple[Callable[..., Any], ToolAnnotations | None], timeout_s: float = 30.0
) -> AsyncIterator[ToolPool]:
    """A pool of one server, `scratch`, that has just these tools."""
    server = MCPServer("scratch")
    for function, hints in tools:
        server.add_tool(function, annotations=hints)
    async with ToolPool(
        [InProcessServer(name="scratch", server=server)], ToolsConfig(timeout_s=timeout_s)
    ) as pool:
        yield pool


def make_task(*, tools: Sequence[str] | None = None, **truth: Any) -> Task:
    return Task.model_validate(
        {
            "prompt": [{"role": "system", "content": "Tools."}, {"role": "user", "content": "Go."}],
            "reward_spec": {"ground_truth": {"task_id": "t", "abstain": not truth, **truth}},
            "extra_info": {} if tools is None else {"tools": list(tools)},
        }
    )


async def ask(pool: ToolPool, tool: str, /, **arguments: Any) -> dict[str, Any]:
    """What the server really answers, to write tasks about."""
    session = pool.session()
    result = await session.call(ToolCall(id="x", tool=tool, arguments=arguments))
    await session.close()
    assert result.structured is not None, result.content
    return result.structured


async def any_channel(pool: ToolPool) -> tuple[str, str]:
    """A channel's id and the ticker that its last message names."""
    channel = (await ask(pool, "list_slack_channels", limit=1))["channels"][0]["id"]
    history = await ask(pool, HISTORY, channel_id=channel, limit=1)
    return channel, history["messages"][0]["text"].split()[-1]


def call(tool: str, /, **arguments: Any) -> str:
    return call_text(tool, arguments)
