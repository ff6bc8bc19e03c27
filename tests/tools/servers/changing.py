"""A server whose tools change in mid-run: `python changing.py FOLDER REFUSAL`.

It offers `look`, `take` and `keep`. A call of `keep` with the argument `then`, the JSON of other tools,
makes them its tools; it sends `notifications/tools/list_changed` before it answers, if FOLDER has the file
`tells`. A call of a tool that it does not have, with an argument that its tool does not take, or of `take`
with `nothing`, is answered by REFUSAL, the JSON of a result or an error. It writes a letter to the file
`lists` for each list.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

FOLDER, REFUSAL = Path(sys.argv[1]), json.loads(sys.argv[2])
TOOLS: dict[str, list[str]] = {"look": ["at"], "take": ["what"], "keep": ["then"]}


def _listed(name: str, takes: list[str]) -> dict[str, Any]:
    schema = {"type": "object", "properties": {t: {"type": "string"} for t in takes}, "required": takes}
    return {"name": name, "inputSchema": schema}


def _answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    global TOOLS
    match method:
        case "initialize":
            info = {"name": "changing", "version": "1"}
            capabilities = {"tools": {"listChanged": True}}
            return {
                "result": {"protocolVersion": "2025-06-18", "capabilities": capabilities, "serverInfo": info}
            }
        case "tools/list":
            with (FOLDER / "lists").open("a") as lists:
                lists.write("x")
            return {"result": {"tools": [_listed(*tool) for tool in TOOLS.items()]}}
        case "tools/call":
            if set(params["arguments"]) != set(TOOLS.get(params["name"], ["-"])):
                return REFUSAL
            if params["name"] == "keep":
                TOOLS = json.loads(params["arguments"]["then"])
                if (FOLDER / "tells").exists():
                    _say({"method": "notifications/tools/list_changed"})
            if params["name"] == "take" and params["arguments"]["what"] == "nothing":
                return REFUSAL
            return {"result": {"content": [{"type": "text", "text": "done"}]}}
    return {"result": {}} if method == "ping" else {"error": {"code": -32601, "message": "no such method"}}


def _say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


if __name__ == "__main__":
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            _say({"id": request["id"], **_answer(request["method"], request.get("params") or {})})
