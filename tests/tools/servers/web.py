"""The SDK's own server over streamable HTTP: `python web.py`, which prints its port.

`python web.py PORT` takes the port of one that has just gone. `where` has an argument that the protocol of
2026-07-28 wants repeated in a header.
"""

from __future__ import annotations

import socket
import sys
from typing import Annotated

import uvicorn
from mcp.server import MCPServer
from pydantic import Field

server = MCPServer("web", log_level="ERROR")


@server.tool()
async def echo(text: str) -> str:
    return text


@server.tool()
async def where(region: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Region"})]) -> str:
    return f"in {region}"


if __name__ == "__main__":
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", int(sys.argv[1]) if len(sys.argv) > 1 else 0))
    listener.listen()
    print(listener.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="error")).run(sockets=[listener])
