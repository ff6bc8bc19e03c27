"""`python -m mcpagent.servers.bfcl BACKEND --package DIR`: one backend over stdio, for an mcp.json."""

from __future__ import annotations

import argparse
import asyncio
import sys
from pathlib import Path

from mcp.server.stdio import stdio_server

from mcpagent.console import Console
from mcpagent.errors import UserError
from mcpagent.servers.bfcl.names import BACKENDS
from mcpagent.servers.bfcl.package import BfclPackage
from mcpagent.servers.bfcl.server import build_server


async def _serve(package: Path, backend: str) -> None:
    server = build_server(BfclPackage(package), backend)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m mcpagent.servers.bfcl")
    parser.add_argument("backend", choices=BACKENDS)
    parser.add_argument("--package", type=Path, required=True, help="The folder that holds bfcl_eval.")
    chosen = parser.parse_args()
    try:
        asyncio.run(_serve(chosen.package, chosen.backend))
    except UserError as error:
        Console().fail(error)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
