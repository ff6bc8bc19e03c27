"""Whether a tool tells the answer of a question if it is called with what the question names."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.explore.candidates import argument_shape
from mcpagent.synth.tasks.inspect import stands_in
from mcpagent.synth.tasks.run import SynthSession

_MOST = 60  # calls of a tool


def naming(spec: ToolSpec, values: Sequence[str | int]) -> Iterator[JsonObject]:
    """Yield arguments in which each parameter that the tool needs is one of the values, or of its schema's;
    of a tool that needs nothing also with one parameter that it may be given."""
    shape = argument_shape(spec)
    more = [] if shape.required else shape.optional
    for each in (shape, *(shape.requiring([slot]) for slot in more)):
        columns = [
            slot.schema.get("enum")
            or [slot.taking(v) for v in map(str, values) if slot.type == "string"]
            or [int(v) for v in map(str, values) if slot.type != "string" and v.isdecimal()]
            for slot in each.required
            if slot.type in ("string", "integer", "number")
        ]
        if len(columns) == len(each.required):
            yield from map(each.filled, itertools.islice(itertools.product(*columns), _MOST))


async def telling_call(
    session: SynthSession, spec: ToolSpec, named: Sequence[str | int], facts: Sequence[Any]
) -> JsonObject | None:
    """Return arguments, made of what a question names, with which the tool gives all of the facts; None if
    there are none."""
    for arguments in naming(spec, named):
        result = await session.call(server=spec.server, tool=spec.name, arguments=arguments)
        if not result.is_error and all(stands_in(fact, result.content) for fact in facts):
            return arguments
    return None
