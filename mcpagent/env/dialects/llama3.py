"""Llama 3: `{"name": ..., "parameters": {...}}` as the whole text or after `<|python_tag|>`; several are
separated by semicolons."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, decode_json, skip_space

_EXPECTED = 'expected {"name": ..., "parameters": {...}}'
_CALL_LIKE = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:'
)


def _read_tagged(body: str, start: int, position: int, found: Found) -> int:
    """After the tag there is nothing but calls."""
    _read_objects(body, start, position, found)
    return len(body)


def _read_text(text: str, found: Found) -> str:
    start = skip_space(text, 0)
    if not text.startswith("{", start):
        return text
    try:
        value, _ = decode_json(text, start)
    except NotACall:
        is_call = _CALL_LIKE.match(text, start) is not None
    else:
        is_call = _is_call(value)
    if not is_call:
        return text
    _read_objects(text, start, start, found)
    return ""


def _read_objects(body: str, start: int, position: int, found: Found) -> None:
    while True:
        try:
            value, end = decode_json(body, position)
        except NotACall as problem:
            found.fail(body[start:], str(problem))
            return
        after = skip_space(body, end)
        is_last = after == len(body)
        if not is_last and body[after] != ";":
            found.fail(body[start:], "text after the JSON")
            return
        if not _is_call(value):
            found.fail(body[start:end], _EXPECTED)
            return
        found.add(body[start:end], value["name"], value.get("parameters", value.get("arguments")))
        start = position = skip_space(body, after + 1)
        if is_last or position == len(body):
            return


def _is_call(value: object) -> bool:
    return isinstance(value, dict) and "name" in value and ("parameters" in value or "arguments" in value)


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "; ".join(
        f'{{"name": {json.dumps(name, ensure_ascii=False)}, '
        f'"parameters": {json.dumps(arguments, ensure_ascii=False)}}}'
        for name, arguments in calls
    )


LLAMA3 = Dialect(name="llama3", write=_write, blocks={"<|python_tag|>": _read_tagged}, read_text=_read_text)
