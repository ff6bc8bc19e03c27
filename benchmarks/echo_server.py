"""The server of `benchmarks.tools`: one tool that says its argument again.

python -m benchmarks.echo_server          over stdio
python -m benchmarks.echo_server --http   over streamable HTTP; prints its port
"""

from __future__ import annotations

import socket
import sys
from typing import Any

import uvicorn
from mcp.server import MCPServer


def build() -> MCPServer[Any]:
    server = MCPServer("echo", log_level="ERROR")

    @server.tool()
    async def echo(text: str) -> str:
        return text

    return server


def main() -> None:
    if "--http" not in sys.argv:
        build().run()
        return
    listener = socket.socket()
    listener.bind(("127.0.0.1", 0))
    listener.listen()  # before the port is told: who connects at once waits until it is answered
    print(listener.getsockname()[1], flush=True)
    config = uvicorn.Config(build().streamable_http_app(), log_level="critical")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
