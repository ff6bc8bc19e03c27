"""Tools over stdio without an SDK, so that a start costs little: what the scripts next to this file serve."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any


def tool(
    name: str, about: str, *, reads: bool = False, optional: tuple[str, ...] = (), **parameters: Any
) -> dict[str, Any]:
    """A tool whose parameters have a type, or a schema; it says that it only reads, or nothing."""
    properties = {key: kind if isinstance(kind, dict) else {"type": kind} for key, kind in parameters.items()}
    needed = [key for key in parameters if key not in optional]
    schema = {"type": "object", "properties": properties, "required": needed}
    hints = {"annotations": {"readOnlyHint": True, "openWorldHint": False}} if reads else {}
    return {"name": name, "description": about, "inputSchema": schema, **hints}


def serve(
    name: str,
    tools: list[dict[str, Any]],
    call: Callable[[str, dict[str, Any]], Any],
    *,
    refusal: str,
    hidden: dict[str, Any] | None = None,
) -> None:
    """Answer until stdin ends. What `call` gives is the text, None the refusal; `hidden` is returned as
    structured content that the text does not show."""

    def result(method: str, params: dict[str, Any]) -> dict[str, Any]:
        if method == "initialize":
            info = {"name": name, "version": "1"}
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
        if method == "tools/list":
            return {"tools": tools}
        if method != "tools/call":
            return {}
        answer = call(params["name"], params.get("arguments") or {})
        if answer is None:
            return {"content": [{"type": "text", "text": refusal}], "isError": True}
        text = answer if isinstance(answer, str) else json.dumps(answer)
        told = {"content": [{"type": "text", "text": text}]}
        if hidden is None:
            return told
        structured = answer if isinstance(answer, dict) else {"result": answer}
        return {**told, "structuredContent": {**structured, **hidden}}

    for line in sys.stdin:
        message = json.loads(line)
        if "id" in message:
            made = result(message["method"], message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": made}), flush=True)
