"""A server of 2025-06-18 on the standard library alone that asks for whatever it is told to: `ask` sends the
request of its argument (`method`, `params`) in the middle of the call, and returns what it got."""

from __future__ import annotations

import json
import sys
from typing import Any

waiting: dict[str, Any] = {}


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            info = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "f", "version": "1"}}
            say({"id": message["id"], "result": {**info, "capabilities": {"tools": {}}}})
        case "tools/list":
            say(
                {
                    "id": message["id"],
                    "result": {"tools": [{"name": "ask", "inputSchema": {"type": "object"}}]},
                }
            )
        case "tools/call":
            asked = message["params"]["arguments"]
            waiting[f"q{message['id']}"] = message["id"]
            say({"id": f"q{message['id']}", "method": asked["method"], "params": asked["params"]})
        case None if message["id"] in waiting:
            text = json.dumps(message.get("result") or {"refused": message["error"]["message"]})
            say(
                {
                    "id": waiting.pop(message["id"]),
                    "result": {"content": [{"type": "text", "text": text}]},
                }
            )
        case _ if "id" in message:
            say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
