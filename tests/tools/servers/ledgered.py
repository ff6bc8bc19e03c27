"""A server whose effects survive it: every one is a line of the file LEDGER, written and synced before the
answer. Every process that starts adds its pid to the file PIDS. Runs over stdio, or with the variable PORT (0
for any) over HTTP; then it prints its port."""

from __future__ import annotations

import os
import socket

import anyio
import uvicorn
from mcp.server import MCPServer
from mcp.types import ToolAnnotations


def _append(path: str, line: str) -> None:
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        os.write(file, f"{line}\n".encode())
        os.fsync(file)
    finally:
        os.close(file)


async def look(key: str) -> str:
    await anyio.sleep(0.005)
    return key


async def put(key: str) -> str:
    """May be repeated: the same key has the same effect."""
    _append(os.environ["LEDGER"], f"put {key}")
    await anyio.sleep(0.005)
    return key


async def add(key: str) -> str:
    """Must not be repeated. The pause leaves time to die between the effect and the answer."""
    _append(os.environ["LEDGER"], f"add {key}")
    await anyio.sleep(0.005)
    return key


async def work(seconds: float) -> str:
    await anyio.sleep(seconds)
    return "done"


def main() -> None:
    _append(os.environ["PIDS"], str(os.getpid()))
    server = MCPServer("ledgered", log_level="ERROR")
    reads = ToolAnnotations(read_only_hint=True)
    server.add_tool(look, annotations=reads)
    server.add_tool(work, annotations=reads)
    server.add_tool(put, annotations=ToolAnnotations(idempotent_hint=True))
    server.add_tool(add)
    if "PORT" not in os.environ:
        return server.run()
    listener = socket.create_server(("127.0.0.1", int(os.environ["PORT"])), backlog=256)
    print(listener.getsockname()[1], flush=True)
    web = uvicorn.Config(server.streamable_http_app(), log_level="error")
    return uvicorn.Server(web).run(sockets=[listener])


if __name__ == "__main__":
    main()
