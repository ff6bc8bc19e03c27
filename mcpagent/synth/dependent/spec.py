"""Dependent specs: scenarios whose tasks have a conversation and a plan of calls that build on each other.

    {"dependent_dataset": [{"scenario", "turns", "limits", "tasks": [{"task_id", "complexity",
     "conversation": [{"role", "message" | "content"}], "solution": {"tool_sequence": [...]}}]}]}

Reading collects every fault with its JSON pointer (RFC 6901) instead of stopping at the first.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from mcpagent.core.placeholders import PlaceholderError, reference_texts, references
from mcpagent.core.records import JsonObject, OpenRecord, describe
from mcpagent.core.tasks import Complexity, TaskLimits
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.storage.json_stream import open_bytes, reading
from mcpagent.tools.catalog import near_match
from mcpagent.tools.schemas import SchemaCheck

_KEY = "dependent_dataset"
# The words of other datasets for the same three levels.
_COMPLEXITY = {"easy": "simple", "medium": "moderate", "difficult": "complex", "hard": "complex"}


class SpecFaultCode(StrEnum):
    """What is wrong with a task of a spec."""

    SCHEMA = "schema"  # a field is missing or has a wrong type
    DUPLICATE_ID = "duplicate_id"  # the task_id of an earlier task
    CONVERSATION = "conversation"  # nobody asks for anything
    STEP_ORDER = "step_order"  # step numbers do not count upwards
    REFERENCE = "reference"  # a reference is malformed or does not name an earlier step
    REFERENCE_PATH = "reference_path"  # the result that it points into does not have this field
    LIMITS = "limits"  # the plan itself breaks the limits
    UNKNOWN_SERVER = "unknown_server"
    UNKNOWN_TOOL = "unknown_tool"
    ARGUMENTS = "arguments"  # the parameters break the tool's input schema
    GROUND_TRUTH = "ground_truth"  # the reward could not judge it
    EXECUTION = "execution"  # the plan was run and failed


@dataclass(frozen=True, kw_only=True)
class SpecFault:
    """`pointer` is the JSON pointer of what is wrong; `remedy` is what to do about it."""

    code: SpecFaultCode
    pointer: str
    message: str
    remedy: str

    def as_json(self) -> JsonObject:
        """Return the fault as `convert --json` shows it."""
        return {
            "code": self.code.value,
            "pointer": self.pointer,
            "message": self.message,
            "remedy": self.remedy,
        }


class SpecMessage(OpenRecord):
    """One message; its text may be called `message` or `content`."""

    role: Literal["system", "user", "assistant", "tool"]
    content: Annotated[str, Field(min_length=1)]

    @model_validator(mode="before")
    @classmethod
    def _one_text(cls, value: Any) -> Any:
        if not isinstance(value, dict) or "message" not in value:
            return value
        rest = {k: v for k, v in value.items() if k != "message"}
        if rest.setdefault("content", value["message"]) != value["message"]:
            raise ValueError("message and content say different things; keep one of them")
        return rest


class SpecStep(OpenRecord):
    """One gold call; without a number it has its position in the plan."""

    server: Annotated[str, Field(min_length=1)]
    tool: Annotated[str, Field(min_length=1)]
    step: Annotated[int, Field(ge=1, strict=True)] | None = None
    params: JsonObject = {}
    user_turn: Annotated[int, Field(ge=0, strict=True)] = 0


class SpecSolution(OpenRecord):
    """The plan; other fields of a ground truth (`final_answer`, `state`, `setup`, ...) are taken over."""

    tool_sequence: tuple[SpecStep, ...]


class SpecTask(OpenRecord):
    """One task of a scenario."""

    task_id: Annotated[str, Field(min_length=1)]
    complexity: Complexity = "simple"
    conversation: Annotated[tuple[SpecMessage, ...], Field(min_length=1)]
    solution: SpecSolution

    @model_validator(mode="before")
    @classmethod
    def _familiar_levels(cls, value: Any) -> Any:
        if isinstance(value, dict) and isinstance(level := value.get("complexity"), str):
            return {**value, "complexity": _COMPLEXITY.get(level.lower(), level.lower())}
        return value


class Scenario(OpenRecord):
    """What the tasks of a scenario share; `tasks` are read one by one."""

    scenario: Annotated[str, Field(min_length=1)]
    turns: Annotated[int, Field(ge=1, le=20, strict=True)]
    limits: TaskLimits = TaskLimits()
    tasks: list[Any]


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """A task as far as it could be read: `task` is None if its structure is wrong."""

    pointer: str
    raw: Any
    scenario: Scenario | None
    task: SpecTask | None
    faults: tuple[SpecFault, ...] = ()


def read_spec(path: Path) -> Iterator[ReadTask]:
    """Yield the tasks of the spec in order. Raises UserError for a file that is not a spec at all."""
    for number, raw in enumerate(_scenarios(path)):
        pointer = f"/{_KEY}/{number}"
        try:
            scenario = Scenario.model_validate(raw)
        except ValidationError as error:
            faults = tuple(_schema_faults(error, pointer))
            yield ReadTask(pointer=pointer, raw=raw, scenario=None, task=None, faults=faults)
            continue
        for index, item in enumerate(scenario.tasks):
            yield _read_task(item, scenario, f"{pointer}/tasks/{index}")


def _read_task(raw: Any, scenario: Scenario, pointer: str) -> ReadTask:
    try:
        task = SpecTask.model_validate(raw)
    except ValidationError as error:
        faults = tuple(_schema_faults(error, pointer))
        return ReadTask(pointer=pointer, raw=raw, scenario=scenario, task=None, faults=faults)
    return ReadTask(pointer=pointer, raw=raw, scenario=scenario, task=task)


def _scenarios(path: Path) -> list[Any]:
    with reading(path), open_bytes(path) as stream:
        raw = stream.read()
    try:
        document = json.loads(raw.decode("utf-8-sig"))
    except UnicodeDecodeError as error:
        raise UserError(
            f"is not UTF-8 text (byte {error.start})", where=str(path), remedy="save it as UTF-8"
        ) from None
    except json.JSONDecodeError as error:
        raise UserError(
            f"broken JSON, {error.msg.removesuffix(' at')} at column {error.colno}",
            where=f"{path}:{error.lineno}",
            remedy="fix the file there",
        ) from None
    except (RecursionError, ValueError) as error:
        raise UserError(f"broken JSON: {error}", where=str(path), remedy="fix the file") from None
    scenarios = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(scenarios, list):
        raise UserError(
            f'is not a dependent spec: it must be an object with "{_KEY}", a list of scenarios',
            where=str(path),
            remedy='{"dependent_dataset": [{"scenario": ..., "turns": ..., "tasks": [...]}]}',
        )
    if not scenarios:
        raise UserError("the spec holds no scenario", where=f"{path}: /{_KEY}", remedy="add one")
    return scenarios


def _schema_faults(error: ValidationError, pointer: str) -> Iterator[SpecFault]:
    for detail in error.errors():
        yield SpecFault(
            code=SpecFaultCode.SCHEMA,
            pointer=pointer + "".join(f"/{_escaped(part)}" for part in detail["loc"]),
            message=describe(detail),
            remedy="add the field" if detail["type"] == "missing" else "correct the value",
        )


def _escaped(part: int | str) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")


_PATH = re.compile(r"\$\{\s*step(\d+)((?:\.\w+|\[-?\d+\])*)\s*\}")
_PART = re.compile(r"\.(\w+)|\[(-?\d+)\]")


def conversation_faults(task: SpecTask, pointer: str) -> Iterator[SpecFault]:
    """Somebody must ask, and what is said first must fit the compact prompt."""
    roles = [message.role for message in task.conversation]
    if "user" not in roles:
        yield SpecFault(
            code=SpecFaultCode.CONVERSATION,
            pointer=f"{pointer}/conversation",
            message=f"has no user message (its roles are {', '.join(roles)}), so no user asks for anything",
            remedy='add {"role": "user", "content": "..."}',
        )
    elif roles.count("system") > 1 or "system" in roles[1:]:
        yield SpecFault(
            code=SpecFaultCode.CONVERSATION,
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
) -> Iterator[SpecFault]:
    """Order, references and limits of the plan; with a `catalog` also its tools and their arguments."""
    steps = task.solution.tool_sequence
    where = f"{pointer}/solution/tool_sequence"
    seen: dict[int, SpecStep] = {}
    for index, step in enumerate(steps):
        at, number = f"{where}/{index}", step.step or index + 1
        if seen and number <= max(seen):
            yield SpecFault(
                code=SpecFaultCode.STEP_ORDER,
                pointer=f"{at}/step",
                message=f"is {number}, but step {max(seen)} stands before it",
                remedy="number the steps 1, 2, 3, ... in the order in which they run",
            )
        last_turn = [m.role for m in task.conversation].count("user") - 1
        if step.user_turn > max(0, last_turn):
            yield SpecFault(
                code=SpecFaultCode.CONVERSATION,
                pointer=f"{at}/user_turn",
                message=f"is {step.user_turn}, but the last user message is number {last_turn} (from 0)",
                remedy="name the user message that asks for this call",
            )
        yield from _reference_faults(step, f"{at}/params", seen, catalog)
        if catalog is not None:
            yield from _call_faults(step, at, catalog)
        seen[number] = step
    yield from _limit_faults(steps, scenario, where)


def _limit_faults(steps: Sequence[SpecStep], scenario: Scenario, where: str) -> Iterator[SpecFault]:
    servers = sorted({step.server for step in steps})
    uses = {"max_tools": len(steps), "max_servers": len(servers)}
    for name, used in uses.items():
        allowed = getattr(scenario.limits, name)
        if allowed is not None and used > allowed:
            what = f"{used} calls" if name == "max_tools" else f"{used} servers ({', '.join(servers)})"
            yield SpecFault(
                code=SpecFaultCode.LIMITS,
                pointer=where,
                message=f"the plan uses {what}, but limits.{name} of its scenario is {allowed}",
                remedy=f"raise limits.{name} to {used}, or shorten the plan",
            )


def _reference_faults(
    step: SpecStep,
    pointer: str,
    earlier: Mapping[int, SpecStep],
    catalog: Mapping[tuple[str, str], ToolSpec] | None,
) -> Iterator[SpecFault]:
    for name, value in step.params.items():
        at = f"{pointer}/{name}"
        try:
            unknown = sorted(references(value) - earlier.keys())
        except PlaceholderError as error:
            yield SpecFault(
                code=SpecFaultCode.REFERENCE,
                pointer=at,
                message=str(error),
                remedy="write a path into an earlier result: ${step1.field}",
            )
            continue
        if unknown:
            before = ", ".join(f"step{n}" for n in earlier) or "none, this is the first"
            yield SpecFault(
                code=SpecFaultCode.REFERENCE,
                pointer=at,
                message=f"refers to step{unknown[0]}, which is not an earlier step (earlier steps: {before})",
                remedy="refer to a step that has run before",
            )
        elif catalog is not None:
            yield from _path_faults(value, at, earlier, catalog)


def _path_faults(
    value: Any, pointer: str, earlier: Mapping[int, SpecStep], catalog: Mapping[tuple[str, str], ToolSpec]
) -> Iterator[SpecFault]:
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
            yield SpecFault(
                code=SpecFaultCode.REFERENCE_PATH,
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
) -> Iterator[SpecFault]:
    servers = {server for server, _ in catalog}
    if step.server not in servers:
        yield SpecFault(
            code=SpecFaultCode.UNKNOWN_SERVER,
            pointer=f"{pointer}/server",
            message=f"there is no server {step.server!r}; there are {', '.join(sorted(servers))}",
            remedy=near_match(step.server, servers) or "name one of them, or add it to the mcp.json",
        )
        return
    tool = catalog.get((step.server, step.tool))
    if tool is None:
        names = sorted(name for server, name in catalog if server == step.server)
        yield SpecFault(
            code=SpecFaultCode.UNKNOWN_TOOL,
            pointer=f"{pointer}/tool",
            message=f"server {step.server!r} has no tool {step.tool!r}",
            remedy=near_match(step.tool, names) or f"its tools are {', '.join(names)}",
        )
        return
    yield from _argument_faults(step, f"{pointer}/params", tool)


def _argument_faults(step: SpecStep, pointer: str, tool: ToolSpec) -> Iterator[SpecFault]:
    """The input schema, with every parameter that holds a reference left out: its value is not known yet."""
    properties = tool.input_schema.get("properties", {})
    for name in step.params.keys() - properties.keys() if properties else ():
        yield SpecFault(
            code=SpecFaultCode.ARGUMENTS,
            pointer=f"{pointer}/{name}",
            message=f"{tool.dotted} has no parameter {name!r}",
            remedy=near_match(name, properties) or f"its parameters are {', '.join(properties)}",
        )
    for error in SchemaCheck(tool.input_schema).errors(step.params):
        if reference_texts(error.instance) and error.instance is not step.params:
            continue
        yield SpecFault(
            code=SpecFaultCode.ARGUMENTS,
            pointer="/".join([pointer, *map(str, error.absolute_path)]),
            message=f"{tool.dotted}: {error.message}",
            remedy=f"mcpagent tools list --json shows the schema of {tool.dotted}",
        )
