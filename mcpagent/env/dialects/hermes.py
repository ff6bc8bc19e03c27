"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several a turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, decode_json, end_of
from mcpagent.policy.scripted import call_text

_CLOSING = re.compile(r"\s*</tool_call>")


def _read(body: str, start: int, position: int, found: Found) -> int:
    """The JSON is decoded before the closing tag is looked for, since an argument may hold the tag's text."""
    try:
        value, end = decode_json(body, position)
    except NotACall as problem:
        end = end_of(body, position, "</tool_call>")
        reason = str(problem) if body.endswith("</tool_call>", start, end) else "<tool_call> is never closed"
        found.fail(body[start:end], reason)
        return end
    closing = _CLOSING.match(body, end)
    if closing is None:
        end = end_of(body, end, "</tool_call>")
        closed = body.endswith("</tool_call>", start, end)
        found.fail(body[start:end], "text after the JSON" if closed else "<tool_call> is never closed")
        return end
    raw = body[start : closing.end()]
    if not isinstance(value, dict):
        found.fail(raw, 'expected {"name": ..., "arguments": {...}}')
    else:
        found.add(raw, value.get("name", value.get("tool")), value.get("arguments", {}))
    return closing.end()


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "\n".join(call_text(name, arguments) for name, arguments in calls)


HERMES = Dialect(name="hermes", write=_write, blocks={"<tool_call>": _read}, strays=("</tool_call>",))
