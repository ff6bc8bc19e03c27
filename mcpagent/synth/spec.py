"""Dependent specs: scenarios whose tasks have a conversation and a plan of calls that build on each other.

    {"dependent_dataset": [{"scenario", "turns", "limits", "tasks": [{"task_id", "complexity",
     "conversation": [{"role", "message" | "content"}], "solution": {"tool_sequence": [...]}}]}]}

Reading collects every fault with its JSON pointer (RFC 6901) instead of stopping at the first.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, ValidationError, model_validator

from mcpagent.core.records import JsonObject, OpenRecord
from mcpagent.core.tasks import Complexity, Limits
from mcpagent.core.validation import describe
from mcpagent.errors import UserError
from mcpagent.storage.compression import open_bytes
from mcpagent.storage.records import reading

_KEY = "dependent_dataset"
# The words of other datasets for the same three levels.
_COMPLEXITY = {"easy": "simple", "medium": "moderate", "difficult": "complex", "hard": "complex"}


class FaultCode(StrEnum):
    """What is wrong with a task of a spec."""

    SCHEMA = "schema"  # a field is missing or has a wrong type
    DUPLICATE_ID = "duplicate_id"  # the task_id of an earlier task
    CONVERSATION = "conversation"  # nobody asks for anything
    STEP_ORDER = "step_order"  # step numbers do not count upwards
    REFERENCE = "reference"  # a reference is malformed or names no earlier step
    REFERENCE_PATH = "reference_path"  # the result that it points into has no such field
    LIMITS = "limits"  # the plan itself breaks the limits
    UNKNOWN_SERVER = "unknown_server"
    UNKNOWN_TOOL = "unknown_tool"
    ARGUMENTS = "arguments"  # the parameters break the tool's input schema
    GROUND_TRUTH = "ground_truth"  # the reward could not judge it
    EXECUTION = "execution"  # the plan was run and failed


@dataclass(frozen=True, kw_only=True)
class Fault:
    """`pointer` is the JSON pointer of what is wrong; `remedy` is what to do about it."""

    code: FaultCode
    pointer: str
    message: str
    remedy: str

    def as_json(self) -> JsonObject:
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
    limits: Limits = Limits()
    tasks: list[Any]


@dataclass(frozen=True, kw_only=True)
class ReadTask:
    """A task as far as it could be read: `task` is None where its structure is wrong."""

    pointer: str
    raw: Any
    scenario: Scenario | None
    task: SpecTask | None
    faults: tuple[Fault, ...] = ()


def read_spec(path: Path) -> Iterator[ReadTask]:
    """The tasks of the spec in order. Raises UserError for a file that is no spec at all."""
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
            f'is no dependent spec: it must be an object with "{_KEY}", a list of scenarios',
            where=str(path),
            remedy='{"dependent_dataset": [{"scenario": ..., "turns": ..., "tasks": [...]}]}',
        )
    if not scenarios:
        raise UserError("the spec holds no scenario", where=f"{path}: /{_KEY}", remedy="add one")
    return scenarios


def _schema_faults(error: ValidationError, pointer: str) -> Iterator[Fault]:
    for detail in error.errors():
        yield Fault(
            code=FaultCode.SCHEMA,
            pointer=pointer + "".join(f"/{_escaped(part)}" for part in detail["loc"]),
            message=describe(detail),
            remedy="add the field" if detail["type"] == "missing" else "correct the value",
        )


def _escaped(part: int | str) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")
