"""A server over HTTP+SSE, the transport of 2024: `python older.py`, which prints its port. It serves at /sse;
with the variable ONE at /mcp, where a POST is answered 405."""

from __future__ import annotations

import asyncio
import os
import socket

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context
from mcp.types import ToolAnnotations

server = MCPServer("older", log_level="ERROR")
answers = 0


@server.tool(annotations=ToolAnnotations(read_only_hint=True))
async def echo(text: str, ctx: Context) -> str:
    await ctx.info("it is heard")  # a notification before the answer
    return text


@server.tool()
async def big(size: int) -> str:
    return "x" * size


@server.tool()
async def slow() -> str:
    await asyncio.sleep(60)
    return "late"


@server.tool()
async def leave() -> str:
    os._exit(1)


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    app = server.sse_app(sse_path="/mcp" if os.environ.get("ONE") else "/sse")
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
