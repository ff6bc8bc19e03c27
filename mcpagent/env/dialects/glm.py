"""GLM 4.5 and later.

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
from mcpagent.env.dialects.tagged import TaggedBlock
from mcpagent.env.dialects.values import text_of

_BLOCK = TaggedBlock(
    name=re.compile(r"\s*([^<>{}\n]+)"),
    key=re.compile(r"\s*<arg_key>([^<>]*)</arg_key>\s*<arg_value>"),
    value_end=re.compile(r"</arg_value>(?=\s*(?:<arg_key>|</tool_call>))"),
    closing=re.compile(r"\s*</tool_call>"),
    name_form="the name of a tool",
    value_form="the <arg_value> of {}",
    rest_form="<arg_key> or </tool_call>",
)


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
    blocks={"<tool_call>": _BLOCK.read},
    strays=("</tool_call>", "<arg_key>", "<arg_value>"),
)
