"""The dialects by the name that `rollout.tool_format` gives them."""

from __future__ import annotations

from collections.abc import Mapping

from mcpagent.core import registry
from mcpagent.env.dialects.contract import Dialect
from mcpagent.env.dialects.json_forms import JSON
from mcpagent.env.dialects.tagged import HERMES, XML

# The forms that need no template of their own: what scripted policies and the embedded model write.
AUTO = Dialect(
    name="auto",
    write=HERMES.write,
    blocks={**HERMES.blocks, **XML.blocks},
    strays=(*HERMES.strays, *XML.strays),
    read_text=JSON.read_text,
)
LOADED_DIALECTS: Mapping[str, Dialect] = {name: registry.DIALECTS.load(name) for name in registry.DIALECTS}
DIALECT_OF: Mapping[str, Dialect] = {"auto": AUTO, **LOADED_DIALECTS}
