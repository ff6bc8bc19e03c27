"""GLM 4.5 and later: the name, then keys and values as tagged text, whose types only the tool's schema tells.

<tool_call>name
<arg_key>key</arg_key>
<arg_value>value</arg_value>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, end_of
from mcpagent.env.dialects.values import text_of, typed_values

_NAME = re.compile(r"\s*([^<>{}\n]+)")
_KEY = re.compile(r"\s*<arg_key>([^<>]*)</arg_key>\s*<arg_value>")
# A value may hold the closing tag: only what a call goes on with after it makes it one.
_VALUE_END = re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))")
_CLOSING = re.compile(r"\s*</tool_call>")


def _read(body: str, start: int, position: int, found: Found) -> int:
    try:
        name, values, end = _fields(body, position)
        arguments = typed_values(values, found.schema_of(name))
    except NotACall as problem:
        end = end_of(body, position, "</tool_call>")
        reason = str(problem) if body.endswith("</tool_call>", start, end) else "<tool_call> is never closed"
        found.fail(body[start:end], reason)
        return end
    found.add(body[start:end], name, arguments)
    return end


def _fields(body: str, position: int) -> tuple[str, dict[str, str], int]:
    """Name, values as text, where the block ends. Raises NotACall."""
    name = _NAME.match(body, position)
    if name is None:
        raise NotACall("expected the name of a tool after <tool_call>")
    position = name.end()
    values: dict[str, str] = {}
    while (key := _KEY.match(body, position)) is not None:
        closing = _VALUE_END.search(body, key.end())
        if closing is None:
            raise NotACall(f"the <arg_value> of {key[1]} is never closed")
        if key[1] in values:
            raise NotACall(f"{key[1]} is given twice")
        values[key[1]] = body[key.end() : closing.start()]
        position = closing.end()
    closed = _CLOSING.match(body, position)
    if closed is None:
        raise NotACall("expected <arg_key> or </tool_call>")
    return name[1].strip(), values, closed.end()


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "\n".join(_write_one(name, arguments) for name, arguments in calls)


def _write_one(name: str, arguments: JsonObject) -> str:
    pairs = "".join(
        f"<arg_key>{key}</arg_key>\n<arg_value>{text_of(value)}</arg_value>\n"
        for key, value in arguments.items()
    )
    return f"<tool_call>{name}\n{pairs}</tool_call>"


GLM = Dialect(
    name="glm",
    write=_write,
    blocks={"<tool_call>": _read},
    strays=("</tool_call>", "<arg_key>", "<arg_value>"),
)
