"""The small servers that pages and help texts name in examples, and one that no template knows: a harbour
whose ships can be looked up. `python small_servers.py time|files|sqlite` or `python small_servers.py harbour
SHIPS`, which has so many.

Plain JSON-RPC over stdio, so that a start costs little.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_TABLES = {"ships": 11, "crews": 7, "docks": 5}
_NAMES = ["Aurora", "Borealis", "Caravel", "Dorado", "Esperanza", "Fortuna", "Galatea", "Halcyon", "Iris"]
_SHIPS = {
    f"{name} {chr(65 + n)}": {
        "captain": f"{name[::-1].title()}son {chr(65 + n)}",
        "tons": 1237 + 391 * i + 17 * n,
    }
    for n in range(8)
    for i, name in enumerate(_NAMES)
}
_READS = {"readOnlyHint": True, "openWorldHint": False}


def _tool(name: str, about: str = "", *, reads: bool = False, **parameters: str) -> dict[str, Any]:
    """A tool whose parameters are texts, each with its description."""
    properties = {key: {"type": "string", "description": text} for key, text in parameters.items()}
    return {
        "name": name,
        "description": about or name.replace("_", " "),
        "inputSchema": {"type": "object", "properties": properties, "required": list(parameters)},
        "annotations": _READS if reads else {},
    }


_SERVERS = {
    "time": [_tool("get_current_time", reads=True, timezone="")],
    "files": [_tool("write_file", path="", text="")],
    "sqlite": [
        _tool("list_tables"),
        _tool("describe_table", table=""),
        _tool("read_query", query=""),
    ],
    "harbour": [
        _tool("list_ships", "List the names of all ships in the harbour", reads=True),
        _tool("get_ship", "Get captain and weight of a ship", reads=True, ship="The name of the ship"),
    ],
}


def _ships() -> dict[str, dict[str, Any]]:
    return dict(list(_SHIPS.items())[: int(sys.argv[2])])


def _answer(name: str, given: dict[str, Any]) -> dict[str, Any] | None:
    match name:
        case "get_current_time":
            return {"timezone": given["timezone"], "datetime": "2026-11-20T10:00:00"}
        case "write_file":
            Path(given["path"]).write_text(given["text"])
            return {"written": len(given["text"])}
        case "list_tables":
            return {"tables": [{"table": name} for name in _TABLES]}
        case "describe_table":
            return {"columns": columns} if (columns := _TABLES.get(given["table"])) else None
        case "list_ships":
            return {"ships": list(_ships())}
        case "get_ship":
            return _ships().get(given["ship"])
        case _:
            return None


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": sys.argv[1], "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": _SERVERS[sys.argv[1]]}
        case "tools/call":
            found = _answer(params["name"], params.get("arguments") or {})
            content = [{"type": "text", "text": json.dumps(found)}]
            more = {"isError": True} if found is None else {"structuredContent": found}
            return {"content": content, **more}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
