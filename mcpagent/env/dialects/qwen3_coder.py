"""Qwen3-Coder, Qwen3.5 and Nemotron 3: arguments as tagged text, whose types only the tool's schema tells.

<tool_call>
<function=name>
<parameter=key>
value
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.found import Found, NotACall, end_of
from mcpagent.env.dialects.values import text_of, typed_values

_FUNCTION = re.compile(r"\s*<function=([^<>\n]+)>")
_PARAMETER = re.compile(r"\s*<parameter=([^<>\n]+)>")
# A value may hold the closing tag: only what a call goes on with after it makes it one.
_VALUE_END = re.compile(r"</parameter>(?=\s*(?:<parameter=|</function>))")
_CLOSING = re.compile(r"\s*</function>\s*</tool_call>")


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
    function = _FUNCTION.match(body, position)
    if function is None:
        raise NotACall("expected <function=name> after <tool_call>")
    position = function.end()
    values: dict[str, str] = {}
    while (parameter := _PARAMETER.match(body, position)) is not None:
        key = parameter[1].strip()
        closing = _VALUE_END.search(body, parameter.end())
        if closing is None:
            raise NotACall(f"<parameter={key}> is never closed")
        if key in values:
            raise NotACall(f"<parameter={key}> is given twice")
        # One line break on either side belongs to the form.
        values[key] = body[parameter.end() : closing.start()].removeprefix("\n").removesuffix("\n")
        position = closing.end()
    closed = _CLOSING.match(body, position)
    if closed is None:
        raise NotACall("expected </function></tool_call> after the parameters")
    return function[1].strip(), values, closed.end()


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "\n".join(_write_one(name, arguments) for name, arguments in calls)


def _write_one(name: str, arguments: JsonObject) -> str:
    values = "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


QWEN3_CODER = Dialect(
    name="qwen3_coder",
    write=_write,
    blocks={"<tool_call>": _read},
    strays=("</tool_call>", "<function=", "</function>"),
)
