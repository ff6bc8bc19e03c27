"""A server whose tool list is the JSON of its argument, or of the file that it names, page after page; a call
answers with its tool's name. Where that is a number, pages without end of a tool with a description of so
many characters."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def _result(method: str, params: dict[str, Any], pages: Any) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "lister", "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        case "tools/list":
            number = int(params.get("cursor", 0))
            if isinstance(pages, int):
                tool = {"name": f"t{number}", "description": "d" * pages, "inputSchema": {"type": "object"}}
                return {"tools": [tool], "nextCursor": str(number + 1)}
            page = {} if pages[number] is None else {"tools": pages[number]}
            return {**page, "nextCursor": str(number + 1)} if number + 1 < len(pages) else page
        case "tools/call":
            return {"content": [{"type": "text", "text": params["name"]}]}
    raise ValueError(method)


def main() -> None:
    text = sys.argv[1]
    pages = json.loads(Path(text[1:]).read_text() if text.startswith("@") else text)
    for line in sys.stdin:
        message = json.loads(line)
        if "id" not in message:
            continue
        try:
            answer = {"result": _result(message["method"], message.get("params") or {}, pages)}
        except ValueError:
            answer = {"error": {"code": -32601, "message": "no such method"}}
        print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **answer}), flush=True)


if __name__ == "__main__":
    main()
