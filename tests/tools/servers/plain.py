"""A stdio MCP server on the standard library alone: it starts in a moment, and is another implementation."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

READS = {"readOnlyHint": True, "openWorldHint": False}
ADDS = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": False}
DESTROYS = {"readOnlyHint": False, "destructiveHint": True, "openWorldHint": False}
MAILS = {"readOnlyHint": False, "destructiveHint": False, "openWorldHint": True}


@dataclass(frozen=True)
class PlainTool:
    """`run` takes the text parameters that `takes` names, and returns a text."""

    name: str
    run: Callable[..., str]
    takes: tuple[str, ...] = ()
    hints: dict[str, bool] = field(default_factory=dict)

    def listed(self) -> dict[str, Any]:
        properties = {name: {"type": "string"} for name in self.takes}
        schema = {"type": "object", "properties": properties, "required": list(self.takes)}
        hints = {"annotations": self.hints} if self.hints else {}
        return {"name": self.name, "description": "A tool.", "inputSchema": schema, **hints}


def serve(tools: Iterable[PlainTool]) -> None:
    """Answer on stdio until it ends."""
    by_name = {tool.name: tool for tool in tools}
    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request:
            answer = _answer(request["method"], request.get("params", {}), by_name)
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)


def _answer(method: str, params: dict[str, Any], tools: dict[str, PlainTool]) -> dict[str, Any]:
    match method:
        case "initialize":
            info = {"name": "plain", "version": "1"}
            known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            return {"result": known}
        case "tools/list":
            return {"result": {"tools": [tool.listed() for tool in tools.values()]}}
        case "tools/call":
            text = tools[params["name"]].run(**params["arguments"])
            return {"result": {"content": [{"type": "text", "text": text}], "isError": False}}
        case "ping":
            return {"result": {}}
        case _:
            return {"error": {"code": -32601, "message": f"no method {method}"}}
