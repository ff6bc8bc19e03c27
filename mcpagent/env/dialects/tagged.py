"""Calls whose arguments are text between tags: a name, keys with their values, and what closes the block."""

from __future__ import annotations

import re
from dataclasses import dataclass

from mcpagent.env.dialects.found import Found, NotACall
from mcpagent.env.dialects.values import typed_values


@dataclass(frozen=True, kw_only=True)
class TaggedBlock:
    """Reads what follows <tool_call>. `name` and `key` match the tags around theirs and hold them as group 1;
    a value is what stands between a `key` and a `value_end`, which must say what a call goes on with: a value
    may hold the closing tag. Only the tool's schema tells of which type a value is."""

    name: re.Pattern[str]
    key: re.Pattern[str]
    value_end: re.Pattern[str]
    closing: re.Pattern[str]
    # What a broken call is told: how the name, the value of a key and the rest of a call are written.
    name_form: str
    value_form: str
    rest_form: str

    def read(self, body: str, start: int, position: int, found: Found) -> int:
        """A `dialect.BlockReader`."""
        try:
            name, values, end = self._fields(body, position)
            arguments = typed_values(values, found.schema_of(name))
        except NotACall as problem:
            return found.fail_block(body, start, position, "tool_call", str(problem))
        found.add(body[start:end], name, arguments)
        return end

    def _fields(self, body: str, position: int) -> tuple[str, dict[str, str], int]:
        """Name, values as text, where the block ends. Raises NotACall."""
        name = self.name.match(body, position)
        if name is None:
            raise NotACall(f"expected {self.name_form} after <tool_call>")
        position = name.end()
        values: dict[str, str] = {}
        while (opening := self.key.match(body, position)) is not None:
            key = opening[1].strip()
            closing = self.value_end.search(body, opening.end())
            if closing is None:
                raise NotACall(f"{self.value_form.format(key)} is never closed")
            if key in values:
                raise NotACall(f"{self.value_form.format(key)} is given twice")
            values[key] = body[opening.end() : closing.start()]
            position = closing.end()
        closed = self.closing.match(body, position)
        if closed is None:
            raise NotACall(f"expected {self.rest_form}")
        return name[1].strip(), values, closed.end()
