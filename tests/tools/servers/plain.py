"""A stdio MCP server on the standard library alone: it starts in a moment, and is another implementation."""

from __future__ import annotations

import json
import sys
import threading
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

    def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
        match method:
            case "tools/list":
                return {"tools": [tool.listed() for tool in by_name.values()]}
            case "tools/call":
                text = by_name[params["name"]].run(**params["arguments"])
                return {"content": [{"type": "text", "text": text}], "isError": False}
        return {} if method == "ping" else None

    answer_with(result_of)


def answer_with(
    result_of: Callable[[str, dict[str, Any]], dict[str, Any] | None], *, at_once: bool = False
) -> None:
    """Answer each request on stdio with the result of its method and parameters; None is an error. `at_once`
    gives each a thread of its own."""
    lock = threading.Lock()

    def answer(request: dict[str, Any]) -> None:
        if request["method"] == "initialize":
            info = {"name": "plain", "version": "1"}
            known = {"protocolVersion": "2025-06-18", "capabilities": {"tools": {}}, "serverInfo": info}
            result: dict[str, Any] | None = known
        else:
            result = result_of(request["method"], request.get("params") or {})
        refusal = {"error": {"code": -32601, "message": "no such method"}}
        body = refusal if result is None else {"result": result}
        with lock:
            print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **body}), flush=True)

    for line in sys.stdin:
        request = json.loads(line)
        if "id" in request and at_once:
            threading.Thread(target=answer, args=(request,), daemon=True).start()
        elif "id" in request:
            answer(request)
