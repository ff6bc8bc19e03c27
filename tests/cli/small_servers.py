"""The small servers that pages and help texts name in examples. `python small_servers.py time|files|sqlite`.

Plain JSON-RPC over stdio, so that a start costs little.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_TABLES = {"ships": 11, "crews": 7, "docks": 5}
_SERVERS: dict[str, dict[str, tuple[str, ...]]] = {
    "time": {"get_current_time": ("timezone",)},
    "files": {"write_file": ("path", "text")},
    "sqlite": {"list_tables": (), "describe_table": ("table",), "read_query": ("query",)},
}
MINE = _SERVERS[sys.argv[1]]


def _tool(name: str, parameters: tuple[str, ...]) -> dict[str, Any]:
    properties = {parameter: {"type": "string"} for parameter in parameters}
    schema = {"type": "object", "properties": properties, "required": list(parameters)}
    reads = {"readOnlyHint": True} if name == "get_current_time" else {}
    return {"name": name, "description": name.replace("_", " "), "inputSchema": schema, "annotations": reads}


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
        case _:
            return None


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": sys.argv[1], "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [_tool(name, parameters) for name, parameters in MINE.items()]}
    if method == "tools/call":
        found = _answer(params["name"], params.get("arguments") or {})
        content = [{"type": "text", "text": json.dumps(found)}]
        return {"content": content, "isError": True} if found is None else {"content": content}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
