"""Dependent specs: scenarios whose tasks have a conversation and a plan of calls that build on each other.

    {"dependent_dataset": [{"scenario", "turns", "limits", "tasks": [{"task_id", "complexity",
     "conversation": [{"role", "message" | "content"}], "solution": {"tool_sequence": [...]}}]}]}

Reading collects every fault with its JSON pointer (RFC 6901) instead of stopping at the first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from pydantic import Field, ValidationError, field_validator, model_validator

from mcpagent.core.records import JsonObject, OpenRecord, describe
from mcpagent.core.tasks import TaskLimits
from mcpagent.errors import UserError
from mcpagent.storage.json_stream import decode_json, open_bytes, reading
from mcpagent.synth.tasks.inspect import FamiliarComplexity
from mcpagent.synth.tasks.stages import RejectCode

_KEY = "dependent_dataset"
_Form = TypeVar("_Form", bound=OpenRecord)


@dataclass(frozen=True, kw_only=True)
class SpecFault:
    """`pointer` is the JSON pointer of what is wrong; `remedy` is what to do about it."""

    code: RejectCode
    pointer: str
    message: str
    remedy: str = "correct the task"


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
    complexity: FamiliarComplexity = "simple"
    conversation: tuple[SpecMessage, ...]
    solution: SpecSolution

    @field_validator("conversation")
    @classmethod
    def _asks(cls, messages: tuple[SpecMessage, ...]) -> tuple[SpecMessage, ...]:
        if not any(message.role == "user" for message in messages):
            raise ValueError("has no user message, so no user asks for anything")
        return messages


class Scenario(OpenRecord):
    """A scenario: the limits that its tasks share; `tasks` are read one by one."""

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
    faults: tuple[SpecFault, ...]


def read_spec(path: Path) -> Iterator[ReadTask]:
    """Yield the tasks of the spec in order. Raises UserError for a file that is not a spec at all."""
    for number, raw in enumerate(_scenarios(path)):
        pointer = f"/{_KEY}/{number}"
        scenario, faults = _read(Scenario, raw, pointer)
        if scenario is None:
            yield ReadTask(pointer=pointer, raw=raw, scenario=None, task=None, faults=faults)
            continue
        for index, item in enumerate(scenario.tasks):
            place = f"{pointer}/tasks/{index}"
            task, faults = _read(SpecTask, item, place)
            yield ReadTask(pointer=place, raw=item, scenario=scenario, task=task, faults=faults)


def _read(form: type[_Form], raw: Any, pointer: str) -> tuple[_Form | None, tuple[SpecFault, ...]]:
    try:
        return form.model_validate(raw), ()
    except ValidationError as error:
        return None, tuple(_schema_faults(error, pointer))


def _scenarios(path: Path) -> list[Any]:
    with reading(path), open_bytes(path) as stream:
        document = decode_json(stream.read(), path=path, remedy="fix the file there")
    scenarios = document.get(_KEY) if isinstance(document, dict) else None
    if not isinstance(scenarios, list):
        raise UserError(
            "holds neither chats nor a dependent spec",
            where=str(path),
            remedy='chats are rows such as {"messages": [{"role": "user", "content": ...}, ...]}; a spec is '
            f'{{"{_KEY}": [{{"scenario": ..., "turns": ..., "tasks": [...]}}]}}',
        )
    if not scenarios:
        raise UserError("the spec holds no scenario", where=f"{path}: /{_KEY}", remedy="add one")
    return scenarios


def _schema_faults(error: ValidationError, pointer: str) -> Iterator[SpecFault]:
    for detail in error.errors():
        yield SpecFault(
            code=RejectCode.SCHEMA,
            pointer=pointer + "".join(f"/{_escaped(part)}" for part in detail["loc"]),
            message=describe(detail),
            remedy="add the field" if detail["type"] == "missing" else "correct the value",
        )


def _escaped(part: int | str) -> str:
    return str(part).replace("~", "~0").replace("/", "~1")
