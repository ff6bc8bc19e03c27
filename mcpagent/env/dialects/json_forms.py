"""Calls as JSON: plain, in fences, as Llama 3 and as Mistral write them."""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.core.values import encode_model_json
from mcpagent.env.dialects.dialect import (
    ARGUMENT_KEYS,
    Dialect,
    NotACall,
    ParsedCalls,
    decode_json,
    each_call,
    skip_space,
)

_FENCE = re.compile(r"```(?:json|tool_call)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_CALL_LINE = re.compile(r'^\{\s*"(?:tool|name)"\s*:', re.MULTILINE)
_JSON_CALL_LIKE = re.compile(
    r'\{\s*"(?:tool|name)"\s*:\s*"[^"]*"\s*,\s*"(?:arguments|parameters)"\s*:|\{\s*"tool"\s*:'
)


def _read_json(text: str, parsed: ParsedCalls) -> str:
    fences = list(_FENCE.finditer(text))
    if not fences:
        if _add_if_calls(text, parsed):
            return ""
        line = _CALL_LINE.search(text)
        is_last = line is not None and _add_if_calls(text[line.start() :], parsed, tells=False)
        return text[: line.start()] if line is not None and is_last else text
    left: list[str] = []
    position = 0
    for fence in fences:
        if not parsed.is_full and _add_if_calls(fence[1], parsed):
            left.append(text[position : fence.start()])
            position = fence.end()
    return "".join([*left, text[position:]])


def _add_if_calls(text: str, parsed: ParsedCalls, *, tells: bool = True) -> bool:
    """Add `text` if the whole of it is calls, one behind the other, or, if it `tells` of those, begins like
    one and is broken; else it is only text."""
    text = text.strip()
    objects: list[tuple[str, JsonObject]] = []
    position, problem = 0, "text after the JSON"
    try:
        while text.startswith("{", position):
            value, end = decode_json(text, position)
            if not ("tool" in value or _is_call(value, parsed)):
                break
            objects.append((text[position:end], value))
            position = skip_space(text, end)
    except NotACall as reason:
        problem = str(reason)
    if objects and position == len(text):
        for raw, value in objects:
            if not parsed.is_full:
                parsed.add_object(raw, value)
    elif tells and (objects or _JSON_CALL_LIKE.match(text)):
        parsed.fail(text, problem)
    else:
        return False
    return True


JSON = Dialect(
    name="json",
    write=each_call(lambda name, arguments: encode_model_json({"tool": name, "arguments": arguments})),
    blocks={},
    read_text=_read_json,
)


_LLAMA3_CALL_LIKE = re.compile(
    r'\{\s*(?:"type"\s*:\s*"function"\s*,\s*)?"name"\s*:\s*"[^"]*"\s*,\s*"(?:parameters|arguments)"\s*:'
)


def _read_tagged(body: str, start: int, position: int, parsed: ParsedCalls) -> int:
    """Read what follows the tag: nothing but calls."""
    _read_objects(body, start, position, parsed)
    return len(body)


def _read_llama3(text: str, parsed: ParsedCalls) -> str:
    start = skip_space(text, 0)
    if not text.startswith("{", start):
        return text
    try:
        value, _ = decode_json(text, start)
    except NotACall:
        is_call = _LLAMA3_CALL_LIKE.match(text, start) is not None
    else:
        is_call = _is_call(value, parsed)
    if not is_call:
        return text
    _read_objects(text, start, start, parsed)
    return ""


def _read_objects(body: str, start: int, position: int, parsed: ParsedCalls) -> None:
    while True:
        try:
            value, end = decode_json(body, position)
        except NotACall as problem:
            parsed.fail(body[start:], str(problem))
            return
        after = skip_space(body, end)
        is_last = after == len(body)
        if not is_last and body[after] != ";":
            parsed.fail(body[start:], "text after the JSON")
            return
        parsed.add_object(body[start:end], value)
        start = position = skip_space(body, after + 1)
        if is_last or position == len(body) or parsed.is_full:
            return


def _is_call(value: object, parsed: ParsedCalls) -> bool:
    """Return whether a JSON object is meant as a call: its keys say so, or it names an offered tool and has
    more than that."""
    if not isinstance(value, dict) or not isinstance(name := value.get("name"), str):
        return False
    is_offered = len(value) > 1 and parsed.schema_of(name.strip()) is not None
    return is_offered or not value.keys().isdisjoint(ARGUMENT_KEYS)


def _write_llama3(name: str, arguments: JsonObject) -> str:
    return encode_model_json({"name": name, "parameters": arguments})


LLAMA3 = Dialect(
    name="llama3",
    write=each_call(_write_llama3, between="; "),
    blocks={"<|python_tag|>": _read_tagged},
    read_text=_read_llama3,
)


_OPENING = "[TOOL_CALLS]"
_NAME = re.compile(r"([^\[\]{}\s<>]++)(?:\[CALL_ID\][^\[\]{}\s]++)?\[ARGS\]")


def _read(body: str, start: int, position: int, parsed: ParsedCalls) -> int:
    position = skip_space(body, position)
    name = _NAME.match(body, position)
    try:
        if name is not None:
            value, end = decode_json(body, name.end())
            parsed.add(body[start:end], name[1], value)
            return end
        if not body.startswith(("[", "{"), position):
            raise NotACall("expected [TOOL_CALLS]name[ARGS]{...} or a list of calls")
        value, end = decode_json(body, position)
        calls = value if isinstance(value, list) and value else [value]
        while body.startswith("{", after := skip_space(body, end)):  # one behind the other, without a list
            value, end = decode_json(body, after)
            calls.append(value)
    except NotACall as problem:
        end = body.find(_OPENING, position)
        end = len(body) if end < 0 else end
        parsed.fail(body[start:end], str(problem))
        return end
    for call in calls:
        if isinstance(call, dict):
            parsed.add_object(body[start:end], call)
        else:
            parsed.fail(body[start:end], 'expected [{"name": ..., "arguments": {...}}]')
        if parsed.is_full:
            break
    return end


def _write_mistral(calls: Sequence[tuple[str, JsonObject]]) -> str:
    listed = [{"name": name, "arguments": arguments} for name, arguments in calls]
    return f"{_OPENING} {encode_model_json(listed)}"


MISTRAL = Dialect(name="mistral", write=_write_mistral, blocks={_OPENING: _read}, strays=("[ARGS]",))
