"""An MCP server whose tools need a shelf that nothing gives. `python archive.py FOLDER`; every call is
noted in FOLDER/calls.log. Plain JSON-RPC over stdio, so that a start costs little."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(sys.argv[1])
READS = {"readOnlyHint": True, "openWorldHint": False}


def _tool(name: str, text: str, parameters: dict[str, Any], *, reads: bool = True) -> dict[str, Any]:
    schema = {"type": "object", "properties": parameters, "required": list(parameters)}
    return {
        "name": name,
        "description": text,
        "inputSchema": schema,
        "annotations": READS if reads else {},
    }


TOOLS = [
    _tool("list_records", "List the records of a shelf", {"shelf": {"type": "string"}}),
    _tool("get_record", "Weight and keeper of a record", {"record": {"type": "string"}}),
    _tool(
        "count_records",
        "Count the records that weigh so much",
        {"grams": {"type": "integer", "minimum": 100}},
    ),
    _tool("burn_record", "Burn a record", {"record": {"type": "string"}}, reads=False),
    _tool("seal", "Seal a shelf", {"shelf": {"type": "string"}}, reads=False),
]
RECORDS = {f"record-{n:02}": {"grams": 300 + 17 * n, "keeper": f"Keeper {chr(65 + n)}"} for n in range(20)}


def _call(name: str, given: dict[str, Any]) -> Any:
    match name:
        case "list_records" if given["shelf"] == "north/7":
            return {"records": [{"record": key} for key in RECORDS]}
        case "get_record":
            return RECORDS.get(given["record"])
        case "count_records":
            return {"lighter": 100 + sum(record["grams"] < given["grams"] for record in RECORDS.values())}
    return None


def _result(method: str, params: dict[str, Any]) -> dict[str, Any]:
    if method == "initialize":
        info = {"name": "archive", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": TOOLS}
    if method == "tools/call":
        with (FOLDER / "calls.log").open("a") as log:
            log.write(json.dumps([params["name"], params.get("arguments")]) + "\n")
        answer = _call(params["name"], params.get("arguments") or {})
        if answer is None:
            return {"content": [{"type": "text", "text": "the archive has no such thing"}], "isError": True}
        return {"content": [{"type": "text", "text": json.dumps(answer)}]}
    return {}


if __name__ == "__main__":
    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            result = _result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}), flush=True)
