"""JSON: `{"tool": "...", "arguments": {...}}` as the whole text, or in ```json fences, one call each."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, decode_json

_FENCE = re.compile(r"```(?:json|tool_call)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_CALL_LIKE = re.compile(r'\{\s*"(?:tool|name)"\s*:\s*"[^"]*"\s*,\s*"arguments"\s*:|\{\s*"tool"\s*:')


def _read_text(text: str, found: Found) -> str:
    fences = list(_FENCE.finditer(text))
    if not fences:
        return "" if _add_if_call(text, found) else text
    left: list[str] = []
    position = 0
    for fence in fences:
        if not found.is_full and _add_if_call(fence[1], found):
            left.append(text[position : fence.start()])
            position = fence.end()
    return "".join([*left, text[position:]])


def _add_if_call(text: str, found: Found) -> bool:
    """Add `text` if the whole of it is a call, or begins like one and is broken; else it is only text."""
    text = text.strip()
    if not text.startswith("{"):
        return False
    try:
        value, end = decode_json(text, 0)
    except NotACall as problem:
        if _CALL_LIKE.match(text):
            found.fail(text, str(problem))
            return True
        return False
    if not isinstance(value, dict) or not ("tool" in value or {"name", "arguments"} <= value.keys()):
        return False
    if end < len(text):
        found.fail(text, "text after the JSON")
    else:
        found.add(text, value.get("name", value.get("tool")), value.get("arguments", {}))
    return True


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    texts = [json.dumps({"tool": name, "arguments": a}, ensure_ascii=False) for name, a in calls]
    return texts[0] if len(texts) == 1 else "\n".join(f"```json\n{text}\n```" for text in texts)


JSON = Dialect(name="json", write=_write, blocks={}, read_text=_read_text)
