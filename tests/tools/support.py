"""What the tests of this folder share: the echo server as configuration, and calls in one line."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.servers_config import InProcessServer, Isolation, StdioServer
from tests.house import ROOT
from tests.tools.servers import echo

ECHO_SCRIPT = Path(echo.__file__).with_name("talk.py")


def stdio_echo(*, env: dict[str, str] | None = None, isolation: Isolation = "shared") -> StdioServer:
    return StdioServer(
        name="echo", command=sys.executable, args=(str(ECHO_SCRIPT),), env=env or {}, isolation=isolation
    )


def served_builtin(name: str, *options: str, isolation: Isolation = "shared") -> StdioServer:
    """A built-in server as a process, as an `mcp.json` may have it."""
    return StdioServer(
        name=name,
        command=sys.executable,
        args=("-m", "mcpagent.cli.main", "serve", name, *options),
        env={"PYTHONPATH": str(ROOT)},
        isolation=isolation,
    )


def memory_echo(name: str = "echo", *, isolation: Isolation = "shared") -> InProcessServer:
    return InProcessServer(name=name, server=echo.build(), isolation=isolation)


async def call(session: ToolSession, tool: str, *, server: str = "echo", **arguments: Any) -> ToolResult:
    return await session.call(ToolCall(id="c1", server=server, tool=tool, arguments=arguments))
