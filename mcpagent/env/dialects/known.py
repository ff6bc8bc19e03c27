"""The dialects by the name that `rollout.tool_format` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from mcpagent.env.dialects.dialect import Dialect
from mcpagent.env.dialects.glm import GLM
from mcpagent.env.dialects.hermes import HERMES
from mcpagent.env.dialects.json_text import JSON
from mcpagent.env.dialects.llama3 import LLAMA3
from mcpagent.env.dialects.mistral import MISTRAL
from mcpagent.env.dialects.qwen3_coder import QWEN3_CODER
from mcpagent.env.dialects.xml import XML

# The forms that need no template of their own: what scripted policies and the embedded model write.
AUTO = Dialect(
    name="auto",
    write=HERMES.write,
    blocks={**HERMES.blocks, **XML.blocks},
    strays=(*HERMES.strays, *XML.strays),
    read_text=JSON.read_text,
)
DIALECTS: Mapping[str, Dialect] = {
    dialect.name: dialect for dialect in (HERMES, QWEN3_CODER, LLAMA3, MISTRAL, GLM, JSON, XML)
}
TOOL_FORMATS: Mapping[str, Dialect] = {"auto": AUTO, **DIALECTS}
