"""Qwen3-Coder, Qwen3.5 and Nemotron 3.

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
from mcpagent.env.dialects.tagged import TaggedBlock
from mcpagent.env.dialects.values import text_of

_BLOCK = TaggedBlock(
    name=re.compile(r"\s*<function=([^<>\n]+)>"),
    # One line break on either side of a value belongs to the form.
    key=re.compile(r"\s*<parameter=([^<>\n]+)>\n?"),
    value_end=re.compile(r"\n?</parameter>(?=\s*(?:<parameter=|</function>))"),
    closing=re.compile(r"\s*</function>\s*</tool_call>"),
    name_form="<function=name>",
    value_form="<parameter={}>",
    rest_form="</function></tool_call> after the parameters",
)


def _write(calls: Sequence[tuple[str, JsonObject]]) -> str:
    return "\n".join(_write_one(name, arguments) for name, arguments in calls)


def _write_one(name: str, arguments: JsonObject) -> str:
    values = "".join(f"<parameter={k}>\n{text_of(v)}\n</parameter>\n" for k, v in arguments.items())
    return f"<tool_call>\n<function={name}>\n{values}</function>\n</tool_call>"


QWEN3_CODER = Dialect(
    name="qwen3_coder",
    write=_write,
    blocks={"<tool_call>": _BLOCK.read},
    strays=("</tool_call>", "<function=", "</function>"),
)
