"""A library over stdio whose answers depend on the shelf that was opened last, though every tool says that it
only reads. `python -S shelves.py STARTS`: each process that starts adds a line to STARTS."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

READS = {"readOnlyHint": True}
OPEN = ["no shelf"]


def _tool(name: str, parameter: str) -> dict[str, Any]:
    schema = {"type": "object", "properties": {parameter: {"type": "string"}}, "required": [parameter]}
    return {"name": name, "description": name, "inputSchema": schema, "annotations": READS}


TOOLS = [_tool("open_shelf", "shelf"), _tool("read_book", "title"), _tool("weigh_book", "title")]


def _call(tool: str, given: dict[str, Any]) -> Any:
    match tool:
        case "open_shelf":
            OPEN[0] = given["shelf"]
            return {"done": True}
        case "read_book":
            return {"title": given["title"], "from": OPEN[0]}
    return {"grams": 100 + 7 * len(given["title"])}


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "shelves", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        answer = _call(params["name"], params["arguments"])
        return {"content": [{"type": "text", "text": json.dumps(answer)}]}
    return {}


if __name__ == "__main__":
    with Path(sys.argv[1]).open("a") as starts:
        starts.write("started\n")
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
