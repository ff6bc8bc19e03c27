"""What is wrong with the plan of a dependent spec, found before anything runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jsonschema.validators import validator_for
from referencing import Registry

from mcpagent.core.placeholders import PlaceholderError, reference_texts, references
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.synth.spec import Fault, FaultCode, Scenario, SpecStep, SpecTask
from mcpagent.tools.catalog import near_match

_PATH = re.compile(r"\$\{\s*step(\d+)((?:\.\w+|\[-?\d+\])*)\s*\}")
_PART = re.compile(r"\.(\w+)|\[(-?\d+)\]")


def conversation_faults(task: SpecTask, pointer: str) -> Iterator[Fault]:
    """Somebody must ask, and what is said first must fit the compact prompt."""
    roles = [message.role for message in task.conversation]
    if "user" not in roles:
        yield Fault(
            code=FaultCode.CONVERSATION,
            pointer=f"{pointer}/conversation",
            message=f"has no user message (its roles are {', '.join(roles)}), so nobody asks for anything",
            remedy='add {"role": "user", "content": "..."}',
        )
    elif roles.count("system") > 1 or "system" in roles[1:]:
        yield Fault(
            code=FaultCode.CONVERSATION,
            pointer=f"{pointer}/conversation",
            message="a system message stands behind other messages, or there is more than one",
            remedy="keep one system message, as the first",
        )


def plan_faults(
    task: SpecTask,
    scenario: Scenario,
    pointer: str,
    *,
    catalog: Mapping[tuple[str, str], ToolSpec] | None,
) -> Iterator[Fault]:
    """Order, references and limits of the plan; with a `catalog` also its tools and their arguments."""
    steps = task.solution.tool_sequence
    where = f"{pointer}/solution/tool_sequence"
    seen: dict[int, SpecStep] = {}
    for index, step in enumerate(steps):
        at, number = f"{where}/{index}", step.step or index + 1
        if seen and number <= max(seen):
            yield Fault(
                code=FaultCode.STEP_ORDER,
                pointer=f"{at}/step",
                message=f"is {number}, but step {max(seen)} stands before it",
                remedy="number the steps 1, 2, 3, ... in the order in which they run",
            )
        last_turn = [m.role for m in task.conversation].count("user") - 1
        if step.user_turn > max(0, last_turn):
            yield Fault(
                code=FaultCode.CONVERSATION,
                pointer=f"{at}/user_turn",
                message=f"is {step.user_turn}, but the last user message is number {last_turn} (from 0)",
                remedy="name the user message that asks for this call",
            )
        yield from _reference_faults(step, f"{at}/params", seen, catalog)
        if catalog is not None:
            yield from _call_faults(step, at, catalog)
        seen[number] = step
    yield from _limit_faults(steps, scenario, where)


def _limit_faults(steps: Sequence[SpecStep], scenario: Scenario, where: str) -> Iterator[Fault]:
    servers = sorted({step.server for step in steps})
    uses = {"max_tools": len(steps), "max_servers": len(servers)}
    for name, used in uses.items():
        allowed = getattr(scenario.limits, name)
        if allowed is not None and used > allowed:
            what = f"{used} calls" if name == "max_tools" else f"{used} servers ({', '.join(servers)})"
            yield Fault(
                code=FaultCode.LIMITS,
                pointer=where,
                message=f"the plan uses {what}, but limits.{name} of its scenario is {allowed}",
                remedy=f"raise limits.{name} to {used}, or shorten the plan",
            )


def _reference_faults(
    step: SpecStep,
    pointer: str,
    earlier: Mapping[int, SpecStep],
    catalog: Mapping[tuple[str, str], ToolSpec] | None,
) -> Iterator[Fault]:
    for name, value in step.params.items():
        at = f"{pointer}/{name}"
        try:
            unknown = sorted(references(value) - earlier.keys())
        except PlaceholderError as error:
            yield Fault(
                code=FaultCode.REFERENCE,
                pointer=at,
                message=str(error),
                remedy="write a path into an earlier result: ${step1.field}",
            )
            continue
        if unknown:
            known = ", ".join(f"step{n}" for n in earlier) or "none, this is the first"
            yield Fault(
                code=FaultCode.REFERENCE,
                pointer=at,
                message=f"refers to step{unknown[0]}, which is no earlier step (earlier steps: {known})",
                remedy="refer to a step that has run before",
            )
        elif catalog is not None:
            yield from _path_faults(value, at, earlier, catalog)


def _path_faults(
    value: Any, pointer: str, earlier: Mapping[int, SpecStep], catalog: Mapping[tuple[str, str], ToolSpec]
) -> Iterator[Fault]:
    """Paths that the output schema of the referred tool rules out; without a schema only running tells."""
    for text in reference_texts(value):
        path = _PATH.fullmatch(text)
        if path is None:
            continue
        source = earlier[int(path[1])]
        tool = catalog.get((source.server, source.tool))
        if tool is None or tool.output_schema is None:
            continue
        problem = _missing_field(tool.output_schema, path[2])
        if problem is not None:
            yield Fault(
                code=FaultCode.REFERENCE_PATH,
                pointer=pointer,
                message=f"{text}: the result of {tool.dotted} has no {problem[0]!r}; it has "
                f"{', '.join(problem[1])}",
                remedy=near_match(problem[0], problem[1]) or "use one of its fields",
            )


def _missing_field(root: JsonObject, path: str) -> tuple[str, list[str]] | None:
    """The first part of `path` that the schema does not have, and what it has instead. Where the schema says
    nothing (no properties, several alternatives) everything is possible."""
    schema: Any = root
    for name, index in _PART.findall(path):
        schema = _followed(schema, root)
        if index:
            schema = schema.get("items", {})
            continue
        properties = schema.get("properties")
        if not properties:
            return None
        if name not in properties:
            return (name, sorted(properties)) if not schema.get("additionalProperties") else None
        schema = properties[name]
    return None


def _followed(schema: JsonObject, root: JsonObject) -> JsonObject:
    reference = schema.get("$ref", "")
    if reference.startswith("#/$defs/"):
        return root.get("$defs", {}).get(reference.removeprefix("#/$defs/"), {})
    return schema


def _call_faults(
    step: SpecStep, pointer: str, catalog: Mapping[tuple[str, str], ToolSpec]
) -> Iterator[Fault]:
    servers = {server for server, _ in catalog}
    if step.server not in servers:
        yield Fault(
            code=FaultCode.UNKNOWN_SERVER,
            pointer=f"{pointer}/server",
            message=f"there is no server {step.server!r}; there are {', '.join(sorted(servers))}",
            remedy=near_match(step.server, servers) or "name one of them, or add it to the mcp.json",
        )
        return
    tool = catalog.get((step.server, step.tool))
    if tool is None:
        names = sorted(name for server, name in catalog if server == step.server)
        yield Fault(
            code=FaultCode.UNKNOWN_TOOL,
            pointer=f"{pointer}/tool",
            message=f"server {step.server!r} has no tool {step.tool!r}",
            remedy=near_match(step.tool, names) or f"its tools are {', '.join(names)}",
        )
        return
    yield from _argument_faults(step, f"{pointer}/params", tool)


def _argument_faults(step: SpecStep, pointer: str, tool: ToolSpec) -> Iterator[Fault]:
    """The input schema, with every parameter that holds a reference left out: its value is not known yet."""
    properties = tool.input_schema.get("properties", {})
    for name in step.params.keys() - properties.keys() if properties else ():
        yield Fault(
            code=FaultCode.ARGUMENTS,
            pointer=f"{pointer}/{name}",
            message=f"{tool.dotted} has no parameter {name!r}",
            remedy=near_match(name, properties) or f"its parameters are {', '.join(properties)}",
        )
    kind = validator_for(tool.input_schema)
    for error in kind(tool.input_schema, registry=Registry()).iter_errors(step.params):
        if reference_texts(error.instance) and error.instance is not step.params:
            continue
        yield Fault(
            code=FaultCode.ARGUMENTS,
            pointer="/".join([pointer, *map(str, error.absolute_path)]),
            message=f"{tool.dotted}: {error.message}",
            remedy=f"mcpagent tools list --json shows the schema of {tool.dotted}",
        )
