"""What exists on the servers: a few real results, so that a model need not invent what it asks about."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from random import Random
from typing import Any

from mcpagent.core.placeholders import result_value
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.tasks.run import CallCache
from mcpagent.tools.probes.arguments import harmless_arguments, known_values

_ROUNDS = 3  # the second calls what the first one found values for
_LIST_SHOWN = 3  # items of a list in one excerpt, drawn anew for each sample
_EXCERPT_CHARS = 500
_PLACEHOLDER = "example"


@dataclass(frozen=True)
class Observation:
    """A read-only call and its result."""

    tool: str
    arguments: JsonObject
    value: Any

    def excerpt(self, rng: Random) -> str:
        """One line; of each long list a few items, so that samples differ."""
        shown = json.dumps(_thinned(self.value, rng), ensure_ascii=False)[:_EXCERPT_CHARS]
        return f"- {self.tool}({json.dumps(self.arguments)}) answers {shown}"


async def observe(cache: CallCache, tools: Iterable[ToolSpec]) -> tuple[Observation, ...]:
    """Each read-only tool of `tools` that can be called with what is known, once; failures are left out."""
    waiting = [tool for tool in tools if tool.annotations.read_only]
    known: dict[str, Any] = {}
    seen: list[Observation] = []
    for _ in range(_ROUNDS):
        ready = [tool for tool in waiting if set(tool.input_schema.get("required", ())) <= known.keys()]
        if not ready:
            break
        waiting = [tool for tool in waiting if tool not in ready]
        for tool in ready:
            arguments = harmless_arguments(tool.input_schema, text=_PLACEHOLDER, known=known)
            if arguments is None:
                continue
            async with cache.session() as session:
                result = await session.call(server=tool.server, tool=tool.name, arguments=arguments)
            if not result.is_error and result.failure is None:
                seen.append(Observation(tool.dotted, arguments, result_value(result)))
        for observation in seen:
            known = {**known_values(observation.value), **_leaves(observation.value), **known}
    return tuple(seen)


def shape(schema: Any, root: JsonObject | None = None) -> str:
    """A JSON schema in few words: `{ticker: string, bars: [{date: string, close: number}]}`."""
    root = schema if root is None else root
    if not isinstance(schema, dict) or not isinstance(root, dict):
        return "any"
    if "$ref" in schema:
        name = str(schema["$ref"]).rpartition("/")[2]
        target = root.get("$defs", {}).get(name, {})
        return name if "$ref" in target else shape(target, _without(root, name))
    if "enum" in schema:
        return " or ".join(json.dumps(value) for value in schema["enum"])
    if "properties" in schema:
        required = set(schema.get("required", ()))
        fields = (
            f"{name}{'' if name in required else '?'}: {shape(below, root)}"
            for name, below in schema["properties"].items()
        )
        return "{" + ", ".join(fields) + "}"
    if schema.get("type") == "array":
        return f"[{shape(schema.get('items'), root)}]"
    kinds = schema.get("anyOf") or schema.get("oneOf")
    if kinds:
        return " or ".join(shape(kind, root) for kind in kinds)
    kind = schema.get("type", "any")
    return " or ".join(kind) if isinstance(kind, list) else str(kind)


def _without(root: JsonObject, name: str) -> JsonObject:
    """The schema in which `name` is spelt out no further: it may contain itself."""
    return {**root, "$defs": {**root.get("$defs", {}), name: {"type": name}}}


def _leaves(value: Any) -> JsonObject:
    """The first text of each field name, wherever it stands."""
    found: JsonObject = {}
    pending = [value]
    while pending:
        node = pending.pop(0)
        if isinstance(node, list):
            pending += node
        elif isinstance(node, dict):
            for name, below in node.items():
                if isinstance(below, str):
                    found.setdefault(name, below)
                else:
                    pending.append(below)
    return found


def _thinned(value: Any, rng: Random) -> Any:
    if isinstance(value, dict):
        return {name: _thinned(below, rng) for name, below in value.items()}
    if isinstance(value, list):
        chosen = sorted(rng.sample(range(len(value)), min(_LIST_SHOWN, len(value))))
        return [_thinned(value[index], rng) for index in chosen]
    return value
