"""A server whose tool list has pages of two tools, and a trait: the cursor stays the `same`, or counts on
before the `same pages`; it is `empty` or `none` (null) after the first; after three pages it goes back in a
`circle`; it goes on `counting`; or the second page is `refused`, or `broken`."""

from __future__ import annotations

import json
import sys
from typing import Any

TRAIT = sys.argv[1]
CURSORS: dict[str, Any] = {"same": "more", "empty": "", "none": None}


def write(request: dict[str, Any], body: dict[str, Any]) -> None:
    print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)


for line in sys.stdin:
    message = json.loads(line)
    cursor = (message.get("params") or {}).get("cursor", "0")
    number = int(cursor) if cursor.isdecimal() else 0
    match message["method"]:
        case "initialize":
            known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}}
            write(message, {"result": {**known, "serverInfo": {"name": "pager", "version": "1"}}})
        case "tools/list" if TRAIT == "refused" and number:
            write(message, {"error": {"code": -32602, "message": "no such cursor"}})
        case "tools/list" if TRAIT == "broken" and number:
            write(message, {"result": {"tools": 7}})
        case "tools/list":
            shown = 0 if TRAIT == "same pages" else 2 * number
            tools = [{"name": f"t{shown + i}", "inputSchema": {"type": "object"}} for i in range(2)]
            after = (number + 1) % 3 if TRAIT == "circle" else number + 1
            write(message, {"result": {"tools": tools, "nextCursor": CURSORS.get(TRAIT, str(after))}})
        case "server/discover":
            write(message, {"error": {"code": -32601, "message": "no such method"}})
