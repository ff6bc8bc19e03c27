"""What a dialect is made of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from mcpagent.core.records import JsonObject
from mcpagent.env.dialects.found import Found

# From the text, where a block starts, and where its opening tag ends, to where reading goes on.
BlockReader = Callable[[str, int, int, Found], int]


@dataclass(frozen=True, kw_only=True)
class Dialect:
    """One way of writing calls.

    `blocks` are read wherever their opening tag stands, `strays` are tags that mean a broken call where no
    block has taken them; around both there may be text. `read_text` is asked where neither was found, and
    gives what is left of the text once its calls are out. `write` is what the parser reads back as the same
    calls, given their names and arguments.
    """

    name: str
    write: Callable[[Sequence[tuple[str, JsonObject]]], str]
    blocks: Mapping[str, BlockReader]
    strays: tuple[str, ...] = ()
    read_text: Callable[[str, Found], str] | None = None

    @property
    def instruction(self) -> str:
        """What tells a model how to call: an example of the writer, so that the parser reads it."""
        example = self.write([("TOOL_NAME", {"ARGUMENT_NAME": "VALUE"})])
        return f"To call a tool, write\n{example}\nwith the name and the arguments of one of these tools."
