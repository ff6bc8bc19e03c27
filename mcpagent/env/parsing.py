"""From the text of a model step to calls, parse failures and plain text.

Accepted forms (what the system prompt teaches is what is accepted):

    <tool_call>{"name": "...", "arguments": {...}}</tool_call>       Hermes and Qwen, several a turn
    <tool><name>{...}</name></tool>                                  XML, several a turn
    {"tool": "...", "arguments": {...}}                              JSON, alone or in a ```json fence

Text never becomes a call: JSON counts only where it is the whole text or a fence and has a call's shape.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, NoReturn

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ParseFailure, ToolCall

_TAG = re.compile(r"<tool_call>|<tool>|</tool_call>|</tool>")
_XML_NAME = re.compile(r"\s*<([A-Za-z_][\w.-]*)>")
_FENCE = re.compile(r"```(?:json|tool_call)[ \t]*\n(.*?)(?:\n[ \t]*```|\Z)", re.DOTALL)
_CALL_LIKE = re.compile(r'\{\s*"(?:tool|name)"\s*:\s*"[^"]*"\s*,\s*"arguments"\s*:|\{\s*"tool"\s*:')
_MAX_DEPTH = 50  # serialisers and servers fail on deep nesting; no tool asks for it
_MAX_RAW_CHARS = 2000  # a failure is shown to the model and stored; a runaway text need not be


@dataclass(frozen=True, kw_only=True)
class ParsedAction:
    """`thinking` is None where there is none; `text` is what remains without thinking and calls, trimmed."""

    calls: tuple[ToolCall, ...] = ()
    failures: tuple[ParseFailure, ...] = ()
    text: str = ""
    thinking: str | None = None


def parse_action(action: str, *, first_id: int = 0) -> ParsedAction:
    """Parse one model step. Never raises. Calls get the ids `c{first_id}`, `c{first_id + 1}`, ..."""
    action = action.encode("utf-8", "replace").decode()  # lone surrogates cannot be stored or sent
    thinking, body = _split_thinking(action)
    found = _Found(next_id=first_id)
    text = _parse_tags(body, found)
    if not found:
        text = _parse_json(text, found)
    return ParsedAction(
        calls=tuple(found.calls), failures=tuple(found.failures), text=text.strip(), thinking=thinking
    )


class _Found:
    def __init__(self, *, next_id: int) -> None:
        self._next_id = next_id
        self.calls: list[ToolCall] = []
        self.failures: list[ParseFailure] = []

    def __bool__(self) -> bool:
        return bool(self.calls or self.failures)

    def add(self, raw: str, name: object, arguments: object) -> None:
        """Add the call, or the failure that it is."""
        try:
            call = ToolCall(
                id=f"c{self._next_id}", tool=_checked_name(name), arguments=_checked_arguments(arguments)
            )
        except _NotACall as problem:
            self.fail(raw, str(problem))
            return
        self._next_id += 1
        self.calls.append(call)

    def fail(self, raw: str, reason: str) -> None:
        self.failures.append(ParseFailure(raw=raw[:_MAX_RAW_CHARS], reason=reason))


class _NotACall(Exception):
    pass


def _split_thinking(action: str) -> tuple[str | None, str]:
    """Thinking and the rest. A template may have opened the block in the prompt, so that only its end is
    here; a block that never ends was cut off and holds no action."""
    close = action.find("</think>")
    if close >= 0 and "<think>" not in action[:close]:
        action = "<think>" + action
    thoughts: list[str] = []
    rest: list[str] = []
    while (start := action.find("<think>")) >= 0:
        rest.append(action[:start])
        thought, _, action = action[start + len("<think>") :].partition("</think>")
        thoughts.append(thought.strip())
    rest.append(action)
    return ("\n".join(thoughts) if thoughts else None), "".join(rest)


def _parse_tags(body: str, found: _Found) -> str:
    text: list[str] = []
    position = 0
    while match := _TAG.search(body, position):
        text.append(body[position : match.start()])
        tag = match[0]
        if tag.startswith("</"):
            found.fail(body[position : match.end()], f"{tag} without an opening tag")
            position = match.end()
        elif tag == "<tool_call>":
            position = _parse_hermes(body, match.start(), match.end(), found)
        else:
            position = _parse_xml(body, match.start(), match.end(), found)
    return "".join([*text, body[position:]])


def _parse_hermes(body: str, start: int, position: int, found: _Found) -> int:
    """Parse from after the opening tag; returns where to go on. The JSON is decoded before the closing tag is
    looked for, since an argument may hold the tag's text."""
    try:
        value, end = _decode(body, position)
    except _NotACall as problem:
        end = _end_of(body, position, "</tool_call>")
        reason = str(problem) if body[:end].endswith("</tool_call>") else "<tool_call> is never closed"
        found.fail(body[start:end], reason)
        return end
    closing = re.compile(r"\s*</tool_call>").match(body, end)
    if closing is None:
        end = _end_of(body, end, "</tool_call>")
        closed = body[:end].endswith("</tool_call>")
        found.fail(body[start:end], "text after the JSON" if closed else "<tool_call> is never closed")
        return end
    if not isinstance(value, dict):
        found.fail(body[start : closing.end()], 'expected {"name": ..., "arguments": {...}}')
    else:
        _add_object(body[start : closing.end()], value, found)
    return closing.end()


def _parse_xml(body: str, start: int, position: int, found: _Found) -> int:
    name = _XML_NAME.match(body, position)
    if name is None:
        end = _end_of(body, position, "</tool>")
        found.fail(body[start:end], "expected <tool><name>{...}</name></tool>")
        return end
    closing = re.compile(rf"\s*</{re.escape(name[1])}>\s*</tool>")
    try:
        value, end = _decode(body, name.end())
    except _NotACall as problem:
        end = _end_of(body, position, "</tool>")
        reason = str(problem) if body[:end].endswith("</tool>") else "<tool> is never closed"
        found.fail(body[start:end], reason)
        return end
    closed = closing.match(body, end)
    if closed is None:
        end = _end_of(body, end, "</tool>")
        found.fail(body[start:end], f"expected </{name[1]}></tool> after the arguments")
        return end
    found.add(body[start : closed.end()], name[1], value)
    return closed.end()


def _parse_json(text: str, found: _Found) -> str:
    """JSON calls of a text without tags; returns the text that is left."""
    fences = list(_FENCE.finditer(text))
    if fences:
        left = text
        for fence in fences:
            if _add_if_call(fence[1], found):
                left = left.replace(fence[0], "", 1)
        return left
    return "" if _add_if_call(text, found) else text


def _add_if_call(text: str, found: _Found) -> bool:
    """Add `text` if the whole of it is a call, or begins like one and is broken; else it is only text."""
    text = text.strip()
    if not text.startswith("{"):
        return False
    try:
        value, end = _decode(text, 0)
    except _NotACall as problem:
        if _CALL_LIKE.match(text):
            found.fail(text, str(problem))
            return True
        return False
    if not isinstance(value, dict) or not ("tool" in value or {"name", "arguments"} <= value.keys()):
        return False
    if text[end:].strip():
        found.fail(text, "text after the JSON")
        return True
    _add_object(text, value, found)
    return True


def _add_object(raw: str, value: JsonObject, found: _Found) -> None:
    found.add(raw, value.get("name", value.get("tool")), value.get("arguments", {}))


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise _NotACall('the call has no "name"')
    return name.strip()


def _checked_arguments(arguments: object) -> JsonObject:
    if isinstance(arguments, str):  # OpenAI-style: the arguments as a JSON string
        arguments = _decode(arguments, 0)[0] if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise _NotACall('"arguments" must be a JSON object')
    return arguments


def _end_of(body: str, position: int, tag: str) -> int:
    end = body.find(tag, position)
    return len(body) if end < 0 else end + len(tag)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


_DECODER = json.JSONDecoder(parse_constant=_refuse_constant)


def _decode(text: str, position: int) -> tuple[Any, int]:
    """The JSON value at `position` (after white space) and where it ends. Raises _NotACall."""
    while position < len(text) and text[position].isspace():
        position += 1
    try:
        value, end = _DECODER.raw_decode(text, position)
        # An escaped lone surrogate cannot be stored or sent, and 1e999 decodes to infinity.
        json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
        if _is_deeper(value, _MAX_DEPTH):
            raise _NotACall(f"the JSON is nested deeper than {_MAX_DEPTH}")
    except RecursionError:
        raise _NotACall(f"the JSON is nested deeper than {_MAX_DEPTH}") from None
    except json.JSONDecodeError as error:
        raise _NotACall(f"invalid JSON: {error.msg} at character {error.pos - position}") from None
    except ValueError as error:
        raise _NotACall(f"invalid JSON: {error}") from None
    return value, end


def _is_deeper(value: object, limit: int) -> bool:
    if isinstance(value, dict):
        value = list(value.values())
    if not isinstance(value, list):
        return False
    return limit == 0 or any(_is_deeper(item, limit - 1) for item in value)
