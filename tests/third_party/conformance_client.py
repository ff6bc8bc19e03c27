"""Our client as the protocol's own suite runs one: `python conformance_client.py URL`.

It lists the tools of the server and calls each once. Where a person has to log in, as the remedy says, that
person visits the address at once; in MCP_CONFORMANCE_CONTEXT the suite says what they would have been given.
"""

from __future__ import annotations

import asyncio
import json
import os
import shlex
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import httpx2

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import ToolCall
from mcpagent.errors import UserError
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.servers_config import HttpServer, load_servers
from mcpagent.tools.transports.login import log_in
from mcpagent.tools.transports.oauth import store_login

SCENARIO = os.environ["MCP_CONFORMANCE_SCENARIO"]
LOGINS_MAX = 3


def entry(url: str) -> dict[str, Any]:
    """The server's entry of an mcp.json, with the client that a person has registered, if any."""
    given = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT", "{}"))
    if SCENARIO == "auth/basic-cimd":  # whose document lies at an address that the suite knows
        given = {"client_id": "https://conformance-test.local/client-metadata.json"}
    oauth = {"clientId": given.get("client_id"), "clientSecret": given.get("client_secret")}
    return {"url": url, **({"oauth": oauth} if given.get("client_id") else {})}


async def use(server: HttpServer) -> None:
    forms = {"per_server": {server.name: {"forms": "defaults"}}} if "elicitation" in SCENARIO else {}
    async with ToolPool([server], ToolsConfig.model_validate(forms)) as pool, pool.session() as session:
        for spec in pool.tools.values():
            arguments = harmless_arguments(spec.input_schema, text="x")
            assert arguments is not None
            answer = await session.call(
                ToolCall(id="1", server=spec.server, tool=spec.name, arguments=arguments)
            )
            print(spec.name, answer.content)
            if answer.is_error:
                raise SystemExit(1)


def visit(address: str) -> None:
    get = {"follow_redirects": True, "trust_env": False}
    threading.Thread(target=httpx2.get, args=(address,), kwargs=get, daemon=True).start()


async def main(folder: Path) -> None:
    os.environ["XDG_STATE_HOME"] = str(folder)
    file = folder / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"suite": entry(sys.argv[1])}}))
    (server,) = load_servers(file).servers
    assert isinstance(server, HttpServer)
    for _ in range(LOGINS_MAX):
        try:
            return await use(server)
        except UserError as error:
            print(error)
            words = shlex.split(error.remedy or "")
            if words[:3] != ["mcpagent", "tools", "login"]:
                raise
            scope = words[words.index("--scope") + 1] if "--scope" in words else None
            store_login(await log_in(server, scope=scope, show=print, visit=visit))
    raise SystemExit("it wants a login again and again")


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        asyncio.run(main(Path(place)))
