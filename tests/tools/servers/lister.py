"""A server whose tool list is the JSON of its argument, or of the file that it names, page after page. A call
answers with its tool's name: that of `fail` as an error, that of `hang` never. If the argument is a number,
pages have no end, and each a tool with a description of so many characters."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from plain import answer_with

_TEXT = sys.argv[1]
PAGES = json.loads(Path(_TEXT[1:]).read_text() if _TEXT.startswith("@") else _TEXT)


def _result(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    match method:
        case "tools/list":
            number = int(params.get("cursor", 0))
            if isinstance(PAGES, int):
                tool = {"name": f"t{number}", "description": "d" * PAGES, "inputSchema": {"type": "object"}}
                return {"tools": [tool], "nextCursor": str(number + 1)}
            page = {} if PAGES[number] is None else {"tools": PAGES[number]}
            return {**page, "nextCursor": str(number + 1)} if number + 1 < len(PAGES) else page
        case "tools/call":
            time.sleep(600 if params["name"] == "hang" else 0)
            content = [{"type": "text", "text": params["name"]}]
            return {"content": content, "isError": params["name"] == "fail"}
    return None


if __name__ == "__main__":
    answer_with(_result)
