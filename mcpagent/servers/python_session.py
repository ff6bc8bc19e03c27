"""One episode of the python server: its stored results, and its runs in the sandbox."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR
from pydantic import JsonValue

from mcpagent.servers.sandbox.contract import Outcome, Sandbox, SandboxBroken
from mcpagent.servers.sandbox.jail.values import jsonable
from mcpagent.servers.text import clean_text

_MAX_CODE_CHARS = 100_000
_MAX_DATA_BYTES = 1_000_000
_MAX_STORED_BYTES = 1_000_000  # of all stored results together
_MAX_KEY_CHARS = 100

_STEPS = {
    "filter": "data = [item for item in data if ({})]",
    "map": "data = [({}) for item in data]",
    "sort": "data = sorted(data, key=lambda item: ({}))",
    "apply": "data = ({})",
}
_COUNT = "counts.append(len(data) if isinstance(data, list) else None)"


class PythonSession:
    """The stored results live here, never where the code runs: each run gets a copy, as `stored`."""

    def __init__(self, sandbox: Sandbox) -> None:
        self.sandbox = sandbox
        self._stored: dict[str, JsonValue] = {}
        self._stored_bytes: dict[str, int] = {}

    @property
    def stored(self) -> Mapping[str, JsonValue]:
        return MappingProxyType(self._stored)

    def store(self, key: str, value: JsonValue) -> None:
        """Raises ToolError where the key or the value cannot be kept."""
        if not key or len(key) > _MAX_KEY_CHARS or key != clean_text(key):
            raise ToolError(f"key must be a text of 1 to {_MAX_KEY_CHARS} characters.")
        kept = jsonable(value, clean=clean_text)
        sizes = self._stored_bytes | {key: len(key) + _json_bytes("value", kept)}
        if sum(sizes.values()) > _MAX_STORED_BYTES:
            raise ToolError(f"The stored results would have more than {_MAX_STORED_BYTES} bytes.")
        self._stored[key] = kept
        self._stored_bytes = sizes

    async def run(self, code: str, **names: JsonValue) -> Outcome:
        """Run `code` with `names` and `stored` defined. Raises ToolError if it fails."""
        outcome = await self._outcome(code, names)
        if outcome.error is not None:
            printed = f"\nPrinted before:\n{outcome.output}" if outcome.output else ""
            raise ToolError(outcome.error + _place(code, outcome.line) + printed)
        return outcome

    async def run_steps(
        self, data: JsonValue, steps: Sequence[tuple[str, str]]
    ) -> tuple[list[int | None], JsonValue]:
        """Take `data` through (operation, expression) steps: how many items each left, the last result."""
        lines: list[str] = []
        for number, (operation, expression) in enumerate(steps, start=1):
            if len(expression.splitlines()) != 1:
                raise ToolError(f"step {number} ({operation}): expression must be one line.")
            lines.append(f"{_STEPS[operation].format(expression)}; {_COUNT}")
        outcome = await self._outcome("\n".join([*lines, "[counts, data]"]), {"data": data, "counts": []})
        if outcome.error is not None:
            line = outcome.line or 0  # each step is a line
            place = f"step {line} ({steps[line - 1][0]}): " if 0 < line <= len(steps) else ""
            raise ToolError(place + outcome.error)
        return _unpacked(outcome.value, n_steps=len(steps))

    async def _outcome(self, code: str, names: Mapping[str, JsonValue]) -> Outcome:
        if len(code) > _MAX_CODE_CHARS:
            raise ToolError(f"The code has more than {_MAX_CODE_CHARS} characters.")
        for name, value in names.items():
            if _json_bytes(name, value) > _MAX_DATA_BYTES:
                raise ToolError(f"{name} has more than {_MAX_DATA_BYTES} bytes.")
        try:
            return await self.sandbox.run(code, {"stored": self._stored, **names})
        except SandboxBroken as error:
            raise MCPError(code=INTERNAL_ERROR, message=str(error)) from error


def _place(code: str, line: int | None) -> str:
    lines = code.splitlines()
    if line is None or not 0 < line <= len(lines):
        return ""
    return f" (line {line}: {clean_text(lines[line - 1].strip()[:200])})"


def _unpacked(value: Any, *, n_steps: int) -> tuple[list[int | None], JsonValue]:
    """The expressions may have redefined what the last line shows."""
    match value:
        case [list() as counts, data] if len(counts) == n_steps:
            return [n if isinstance(n, int) else None for n in counts], data
        case _:
            raise ToolError("The steps changed `counts`, which is not theirs.")


def _json_bytes(name: str, value: JsonValue) -> int:
    try:
        return len(json.dumps(value))
    except RecursionError:
        raise ToolError(f"{name} is nested too deeply.") from None
    except ValueError:
        raise ToolError(f"{name} holds a number with too many digits.") from None
