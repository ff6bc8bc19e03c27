"""A server of which most calls never end: `python slow_server.py CALLED`.

It makes the file CALLED with the first call that it does not answer, and answers `look` of "quick", or every
`look` once there is a file `answers` beside CALLED. Plain JSON-RPC over stdio, so that a start costs little.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

_READS = {"readOnlyHint": True}


def _tool(tool: str, **properties: Any) -> dict[str, Any]:
    return {
        "name": tool,
        "inputSchema": {"type": "object", "properties": properties},
        "annotations": _READS,
    }


_TOOLS = [
    _tool("look", name={"type": "string"}),
    _tool("list_all"),
    _tool("slow", text={"type": "string", "pattern": "^(a+)+$"}),
]


def _result(method: str, params: dict[str, Any], called: Path) -> dict[str, Any] | None:
    match method:
        case "initialize":
            info = {"name": "slow", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            return {"tools": _TOOLS}
        case "tools/call":
            name = params["arguments"].get("name")
            if name != "quick" and not called.with_name("answers").exists():
                called.touch()
                return None
            return {"content": [{"type": "text", "text": name}]}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message["method"], message.get("params") or {}, Path(sys.argv[1]))
            if result is not None:
                print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
