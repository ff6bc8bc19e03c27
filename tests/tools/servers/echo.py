"""A small MCP server that misbehaves on request; `python echo.py` serves it over stdio."""

from __future__ import annotations

import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
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
    for reader in (pid, variable, big, picture, noise, garbage, die_once):
        server.add_tool(reader, annotations=READS)
    for tool in (write_down, refuse, hang, die_after_writing):
        server.add_tool(tool)
    return server


async def echo(text: str) -> str:
    return text


async def pid() -> int:
    return os.getpid()


async def variable(name: str) -> str:
    """The value of an environment variable."""
    return os.environ.get(name, "unset")


async def big(size: int) -> str:
    """`size` characters with known ends."""
    return "head" + "x" * (size - 8) + "tail"


async def picture() -> CallToolResult:
    image = ImageContent(type="image", data="aGVsbG8=", mime_type="image/png")  # b"hello"
    return CallToolResult(content=[TextContent(type="text", text="look:"), image])


async def noise(size: int) -> str:
    """`size` characters on stderr."""
    sys.stderr.write("n" * size)
    return "done"


async def garbage() -> str:
    """Bytes on the protocol's stdout that are neither JSON nor UTF-8."""
    os.write(int(os.environ["PROTOCOL_FD"]), b"\xff\xfe not a message\n")
    return "done"


async def die_once(marker: str) -> str:
    """Exit at the first call; `marker` is the file that remembers it."""
    if not Path(marker).exists():
        Path(marker).touch()
        os._exit(3)
    return "alive"


async def die_after_writing(ledger: str) -> str:
    """An effect, then a crash: the call must not be made twice."""
    with Path(ledger).open("a") as file:
        file.write("effect\n")
    os._exit(3)


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


if __name__ == "__main__":
    # The SDK moves the protocol to a private descriptor; the garbage tool needs one that it shares.
    os.environ["PROTOCOL_FD"] = str(os.dup(1))
    build().run()
