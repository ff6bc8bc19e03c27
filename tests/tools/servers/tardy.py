"""A server of the newest protocol that answers calls with tasks, on the standard library alone:
`python tardy.py LOG`, where every request is a line."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

polls: dict[str, int] = {}
TOOLS = ["count", "fail", "never", "confirm"]


def task(name: str, **more: Any) -> dict[str, Any]:
    moment = "2026-08-01T00:00:00Z"
    times = {"createdAt": moment, "lastUpdatedAt": moment, "ttlMs": None, "pollIntervalMs": 5}
    return {"taskId": name, **times, **more}


def progress(name: str) -> dict[str, Any]:
    polls[name] = polls.get(name, 0) + 1
    if name == "never" or polls[name] < 3:
        return {"status": "working"}
    if name == "fail":
        return {"status": "failed", "error": {"code": -32602, "message": "cannot count that"}}
    if name == "confirm" and polls[name] < 1000:
        params = {
            "message": "Go on?",
            "requestedSchema": {"type": "object", "properties": {}},
            "mode": "form",
        }
        return {
            "status": "input_required",
            "inputRequests": {"q": {"method": "elicitation/create", "params": params}},
        }
    return {"status": "completed", "result": {"content": [{"type": "text", "text": f"{name} is done"}]}}


def answer(method: str, params: dict[str, Any]) -> dict[str, Any]:
    match method:
        case "server/discover":
            offers = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}}
            return {**offers, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]
            return {"tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "public"}
        case "tools/call":
            capabilities = params["_meta"]["io.modelcontextprotocol/clientCapabilities"]
            assert "io.modelcontextprotocol/tasks" in capabilities["extensions"]
            return task(params["name"], status="working", resultType="task")
        case "tasks/get":
            return task(params["taskId"], **progress(params["taskId"]), resultType="complete")
        case "tasks/update":
            polls[params["taskId"]] = 1000
    return {"resultType": "complete"}


for line in sys.stdin:
    request = json.loads(line)
    with Path(sys.argv[1]).open("a") as log:
        log.write(json.dumps({"method": request["method"], "params": request.get("params", {})}) + "\n")
    if "id" in request:
        reply = answer(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": reply}), flush=True)
