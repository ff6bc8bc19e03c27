"""Mistral: `[TOOL_CALLS] [{"name": ..., "arguments": {...}}, ...]`, and since 2025 one
`[TOOL_CALLS]name[ARGS]{...}` a call."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, decode_json, skip_space

_OPENING = "[TOOL_CALLS]"
_NAME = re.compile(r"([^\[\]{}\s<>]++)(?:\[CALL_ID\][^\[\]{}\s]++)?\[ARGS\]")


def _read(body: str, start: int, position: int, found: Found) -> int:
    position = skip_space(body, position)
    name = _NAME.match(body, position)
    try:
        if name is not None:
            value, end = decode_json(body, name.end())
            found.add(body[start:end], name[1], value)
            return end
        if not body.startswith(("[", "{"), position):
            raise NotACall("expected [TOOL_CALLS]name[ARGS]{...} or a list of calls")
        value, end = decode_json(body, position)
    except NotACall as problem:
        end = body.find(_OPENING, position)
        end = len(body) if end < 0 else end
        found.fail(body[start:end], str(problem))
        return end
    for call in value if isinstance(value, list) and value else [value]:
        if isinstance(call, dict):
            found.add(body[start:end], call.get("name"), call.get("arguments", {}))
        else:
            found.fail(body[start:end], 'expected [{"name": ..., "arguments": {...}}]')
        if found.is_full:
            break
    return end


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"{_OPENING} {json.dumps(listed, ensure_ascii=False)}"


MISTRAL = Dialect(name="mistral", write=_write, blocks={_OPENING: _read}, strays=("[ARGS]",))
