"""A server of 2025-06-18 that asks by requests of its own, on the standard library alone: `delete` elicits,
`rhyme` samples."""

from __future__ import annotations

import json
import sys
from typing import Any

waiting: dict[str, dict[str, Any]] = {}


def say(message: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", **message}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    match message.get("method"):
        case "initialize":
            info = {"protocolVersion": "2025-06-18", "serverInfo": {"name": "c", "version": "1"}}
            say({"id": message["id"], "result": {**info, "capabilities": {"tools": {}}}})
        case "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in ("delete", "rhyme")]
            say({"id": message["id"], "result": {"tools": tools}})
        case "tools/call":
            word = message["params"]["arguments"]["title"]
            fields = {"size": {"type": "integer", "default": 30}, "why": {"type": "string"}}
            form = {"message": f"Delete {word}?", "requestedSchema": {"type": "object", "properties": fields}}
            said = {"role": "user", "content": {"type": "text", "text": f"What rhymes with {word}?"}}
            is_form = message["params"]["name"] == "delete"
            method = "elicitation/create" if is_form else "sampling/createMessage"
            waiting[f"q{message['id']}"] = message
            params = form if is_form else {"messages": [said], "maxTokens": 9}
            say({"id": f"q{message['id']}", "method": method, "params": params})
        case None if message["id"] in waiting:
            call = waiting.pop(message["id"])
            text = json.dumps(message.get("result") or {"refused": message["error"]["message"]})
            say({"id": call["id"], "result": {"content": [{"type": "text", "text": text}]}})
        case _ if "id" in message:
            say({"id": message["id"], "error": {"code": -32601, "message": "no such method"}})
