"""XML around JSON: `<tool><name>{...}</name></tool>`, several a turn."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, decode_json, end_of, skip_space

_NAME = re.compile(r"\s*<([A-Za-z_][\w.-]*)>")


def _read(body: str, start: int, position: int, found: Found) -> int:
    name = _NAME.match(body, position)
    if name is None:
        end = end_of(body, position, "</tool>")
        found.fail(body[start:end], "expected <tool><name>{...}</name></tool>")
        return end
    try:
        value, end = decode_json(body, name.end())
    except NotACall as problem:
        return found.fail_block(body, start, position, "tool", str(problem))
    at = end
    for tag in (f"</{name[1]}>", "</tool>"):
        at = skip_space(body, at)
        if not body.startswith(tag, at):
            end = end_of(body, end, "</tool>")
            found.fail(body[start:end], f"expected </{name[1]}></tool> after the arguments")
            return end
        at += len(tag)
    found.add(body[start:at], name[1], value)
    return at


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "\n".join(
        f"<tool><{name}>{json.dumps(arguments, ensure_ascii=False)}</{name}></tool>"
        for name, arguments in calls
    )


XML = Dialect(name="xml", write=_write, blocks={"<tool>": _read}, strays=("</tool>",))
