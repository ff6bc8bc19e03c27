"""An MCP server that no template knows: a harbour whose ships can be looked up. `python harbour.py SHIPS`.

Plain JSON-RPC over stdio, so that a start costs little.
"""

from __future__ import annotations

import json
import sys
from typing import Any

_NAMES = ["Aurora", "Borealis", "Caravel", "Dorado", "Esperanza", "Fortuna", "Galatea", "Halcyon", "Iris"]
_SHIPS = {
    f"{name} {chr(65 + n)}": {
        "captain": f"{name[::-1].title()}son {chr(65 + n)}",
        "tons": 1237 + 391 * i + 17 * n,
    }
    for n in range(8)
    for i, name in enumerate(_NAMES)
}
SHIPS = dict(list(_SHIPS.items())[: int(sys.argv[1])])
_READS = {"readOnlyHint": True, "openWorldHint": False}
TOOLS = [
    {
        "name": "list_ships",
        "description": "List the names of all ships in the harbour",
        "inputSchema": {"type": "object", "properties": {}},
        "annotations": _READS,
    },
    {
        "name": "get_ship",
        "description": "Get captain and weight of a ship",
        "inputSchema": {
            "type": "object",
            "properties": {"ship": {"type": "string", "description": "The name of the ship"}},
            "required": ["ship"],
        },
        "annotations": _READS,
    },
]


def _call(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    found = {"ships": list(SHIPS)} if name == "list_ships" else SHIPS.get(arguments["ship"])
    content = [{"type": "text", "text": json.dumps(found)}]
    return (
        {"content": content, "isError": True}
        if found is None
        else {"content": content, "structuredContent": found}
    )


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "harbour", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": TOOLS}
        case "tools/call":
            return _call(params["name"], params.get("arguments") or {})
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
