"""What a parser finds: calls, and failures where a call was meant and is broken; and the JSON inside them."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from mcpagent.core.model_json import decode_model_json
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ParseFailure, ToolCall

_MAX_RAW_CHARS = 2000  # a failure is shown to the model and stored; a runaway text need not be
# Each failure is answered, and reading on after one may mean reading the same text again: this bounds both.
_MAX_FAILURES = 32
_SPACE = re.compile(r"\s*")


class NotACall(Exception):
    """Why something that begins like a call is none."""


class Found:
    """Calls and failures in the order of the text. `schema_of` gives the input schema of a tool by the name
    that the model uses, None where it is not offered."""

    def __init__(self, *, next_id: int, schema_of: Callable[[str], JsonObject | None]) -> None:
        self._next_id = next_id
        self.schema_of = schema_of
        self.calls: list[ToolCall] = []
        self.failures: list[ParseFailure] = []

    def __bool__(self) -> bool:
        return bool(self.calls or self.failures)

    @property
    def is_full(self) -> bool:
        return len(self.failures) >= _MAX_FAILURES

    def add(self, raw: str, name: object, arguments: object) -> None:
        """Add the call, or the failure that it is."""
        try:
            call = ToolCall(
                id=f"c{self._next_id}", tool=_checked_name(name), arguments=_checked_arguments(arguments)
            )
        except NotACall as problem:
            self.fail(raw, str(problem))
            return
        self._next_id += 1
        self.calls.append(call)

    def fail(self, raw: str, reason: str) -> None:
        self.failures.append(ParseFailure(raw=raw[:_MAX_RAW_CHARS], reason=reason))

    def fail_block(self, body: str, start: int, position: int, name: str, reason: str) -> int:
        """Fail the block <name> that stands at `start`, up to where it is closed after `position`, which is
        returned. That it never is would be the reason."""
        end = end_of(body, position, f"</{name}>")
        is_closed = body.endswith(f"</{name}>", start, end)
        self.fail(body[start:end], reason if is_closed else f"<{name}> is never closed")
        return end


def _checked_name(name: object) -> str:
    if not isinstance(name, str) or not name.strip():
        raise NotACall('the call has no "name"')
    return name.strip()


def _checked_arguments(arguments: object) -> JsonObject:
    if isinstance(arguments, str):  # OpenAI-style: the arguments as a JSON string
        arguments = decode_json(arguments, 0)[0] if arguments.strip() else {}
    if not isinstance(arguments, dict):
        raise NotACall("the arguments must be a JSON object")
    return arguments


def end_of(body: str, position: int, tag: str) -> int:
    """Where `tag` ends that comes next; the end of the text where none does."""
    end = body.find(tag, position)
    return len(body) if end < 0 else end + len(tag)


def skip_space(body: str, position: int) -> int:
    return _SPACE.match(body, position).end()  # type: ignore[union-attr]  # it matches the empty string


def decode_json(text: str, position: int) -> tuple[Any, int]:
    """The JSON value at `position` (after white space) and where it ends. Raises NotACall."""
    try:
        return decode_model_json(text, skip_space(text, position))
    except ValueError as error:
        raise NotACall(str(error)) from None
