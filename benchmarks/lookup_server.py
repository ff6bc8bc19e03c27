"""The server of `benchmarks.rollout`, over stdio: a tool that answers at once, and one that takes its time.

python -m benchmarks.lookup_server
"""

from __future__ import annotations

import asyncio
from typing import Any

from mcp.server import MCPServer


def build() -> MCPServer[Any]:
    server = MCPServer("lookup", log_level="ERROR")

    @server.tool()
    def lookup(key: str) -> str:
        """Look up a value by key."""
        return f"value-of-{key}"

    @server.tool()
    async def wait(key: str, seconds: float) -> str:
        """Look up a value by key, after a while."""
        await asyncio.sleep(seconds)
        return f"value-of-{key}"

    return server


if __name__ == "__main__":
    build().run()
