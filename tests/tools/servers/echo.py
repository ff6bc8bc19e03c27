"""A small MCP server that misbehaves on request. `talk.py` is the same as a process."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import anyio
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from mcp.types import CallToolResult, ImageContent, TextContent, ToolAnnotations

READS = ToolAnnotations(read_only_hint=True)


@asynccontextmanager
async def _notebook(_: MCPServer[Any]) -> AsyncIterator[list[str]]:
    yield []


def build(*, echo_description: str = "Say it again.") -> MCPServer[list[str]]:
    server = MCPServer("echo", log_level="ERROR", lifespan=_notebook)
    server.add_tool(echo, description=echo_description, annotations=READS)
    for reader in (pid, big, picture):
        server.add_tool(reader, annotations=READS)
    for tool in (write_down, refuse, hang):
        server.add_tool(tool)
    return server


async def echo(text: str) -> str:
    return text


async def pid() -> int:
    return os.getpid()


async def big(size: int) -> str:
    """`size` characters with known ends."""
    return "head" + "x" * (size - 8) + "tail"


async def picture() -> CallToolResult:
    image = ImageContent(type="image", data="aGVsbG8=", mime_type="image/png")  # b"hello"
    return CallToolResult(content=[TextContent(type="text", text="look:"), image])


async def write_down(note: str, ctx: Context[Any, Any]) -> list[str]:
    """Add a note to this connection's notebook and return all of it."""
    notes: list[str] = ctx.request_context.lifespan_context
    notes.append(note)
    return list(notes)


async def refuse() -> str:
    raise ToolError("not today")


async def hang() -> str:
    await anyio.sleep_forever()
    return "never"
