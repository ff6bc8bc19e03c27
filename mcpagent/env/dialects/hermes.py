"""Hermes, Qwen2.5 and Qwen3: `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, several a turn."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, decode_json
from mcpagent.policy.scripted import call_text

_CLOSING = re.compile(r"\s*</tool_call>")


def _read(body: str, start: int, position: int, found: Found) -> int:
    """The JSON is decoded before the closing tag is looked for, since an argument may hold the tag's text."""
    try:
        value, end = decode_json(body, position)
    except NotACall as problem:
        return found.fail_block(body, start, position, "tool_call", str(problem))
    closing = _CLOSING.match(body, end)
    if closing is None:
        return found.fail_block(body, start, end, "tool_call", "text after the JSON")
    raw = body[start : closing.end()]
    if not isinstance(value, dict):
        found.fail(raw, 'expected {"name": ..., "arguments": {...}}')
    else:
        found.add(raw, value.get("name", value.get("tool")), value.get("arguments", {}))
    return closing.end()


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "\n".join(call_text(name, arguments) for name, arguments in calls)


HERMES = Dialect(name="hermes", write=_write, blocks={"<tool_call>": _read}, strays=("</tool_call>",))
