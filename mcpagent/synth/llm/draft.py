"""What a model is asked to write, reading it, and why what it wrote did not become a task."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import ValidationError, field_validator

from mcpagent.core.placeholders import PlaceholderError, references
from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Complexity, Task
from mcpagent.core.tools import ToolSpec
from mcpagent.llm.contract import ChatReply, Finish
from mcpagent.llm.endpoint import json_of
from mcpagent.reward.validate import task_problems
from mcpagent.synth.llm.prompts import TaskSettings
from mcpagent.synth.tasks.record import ToolSelection, build_task, last_tool, task_id
from mcpagent.synth.tasks.run import ToolShelf
from mcpagent.synth.tasks.stages import RejectCode
from mcpagent.tools.catalog import near_match


class DraftStage(StrEnum):
    """The checks, in their order."""

    GENERATE = "generate"  # there is an answer, and it has the form of a task
    FORMAT = "format"  # tools, arguments, references and limits hold against the catalog
    EXECUTE = "execute"  # the plan runs, twice the same, and is worth 1.0 if doing nothing is not
    COMMITTEE = "committee"  # most votes accept it
    DISTINCT = "distinct"  # no earlier sample asks for the same calls


class DraftFaultCode(StrEnum):
    """Reasons besides those of `FailureReason` (no answer) and `RejectCode` (its form and its run)."""

    REFUSED = "refused"  # the model or a content filter declined
    TRUNCATED = "truncated"  # the answer stops at the token limit
    MALFORMED = "malformed"  # the answer is not a JSON object
    BAD_REFERENCE = "bad_reference"  # unreadable, or not to an earlier step
    UNUSED_STEP = "unused_step"  # a call that only reads and that nothing refers to
    UNGROUNDED = "ungrounded"  # the answer is the model's own words
    UNJUDGEABLE = "unjudgeable"  # the reward could not judge it
    VOTED_DOWN = "voted_down"
    VOTES_MISSING = "votes_missing"  # too few votes could be read for a majority


# The model will decline again, and a vote that is missing says nothing of the draft.
_FINAL = {DraftFaultCode.REFUSED, DraftFaultCode.VOTES_MISSING}


@dataclass(frozen=True)
class DraftFault:
    """`detail` goes back to the model and into the report."""

    stage: DraftStage
    code: str
    detail: str

    @property
    def is_repairable(self) -> bool:
        """Whether the model may try again, told of the fault."""
        return self.code not in _FINAL


class FaultFound(Exception):
    """Carries a fault out of a check."""

    def __init__(self, fault: DraftFault) -> None:
        super().__init__(fault.detail)
        self.fault = fault


_Form = TypeVar("_Form", bound=Record)


class DraftStep(Record):
    """`arguments` is a JSON object as text: strict structured outputs do not allow an object of open form."""

    server: str
    tool: str
    arguments: str

    @field_validator("arguments", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return json.dumps(value) if isinstance(value, dict) else value


class DraftAnswer(Record):
    """Each of `values` is a text with references to the steps."""

    type: Literal["number", "string", "must_include", "none"]
    values: list[str]
    tolerance: float


class Draft(Record):
    """A task as a model writes it."""

    user_prompt: str
    steps: list[DraftStep]
    answer: DraftAnswer
    final_answer: str


class Vote(Record):
    """What one member of the committee says; the reason comes first, so that it is not made up afterwards."""

    reason: str
    accept: bool


def read_reply(reply: ChatReply, form: type[_Form]) -> _Form:
    """Return the answer in its form. Raises FaultFound if it does not have it."""
    if reply.finish is Finish.REFUSED:
        _fail(DraftFaultCode.REFUSED, reply.text[:300], DraftStage.GENERATE)
    value = json_of(reply)
    if value is None and reply.finish is Finish.LENGTH:
        detail = "the answer was cut off at the token limit; be brief"
        _fail(DraftFaultCode.TRUNCATED, detail, DraftStage.GENERATE)
    if value is None:
        detail = f"the answer is not one JSON object: {reply.text[:100]!r}"
        _fail(DraftFaultCode.MALFORMED, detail, DraftStage.GENERATE)
    try:
        return form.model_validate(value)
    except ValidationError as error:
        problems = "; ".join(describe(detail, root="the answer") for detail in error.errors()[:5])
        _fail(RejectCode.SCHEMA, problems, DraftStage.GENERATE)


_LONGEST_PROMPT = 2000  # characters


@dataclass(frozen=True, kw_only=True)
class FormatCheck:
    """`usable` are the tools that a plan may call, by `server.tool`; the offer may hold more."""

    usable: Mapping[str, ToolSpec]
    offer: ToolSelection
    settings: TaskSettings

    @cached_property
    def shelf(self) -> ToolShelf:
        """The usable tools."""
        return ToolShelf(self.usable.values())

    def task(self, draft: Draft, *, complexity: Complexity) -> Task:
        """Return the record, its checks still holding references to the results. Raises FaultFound."""
        low, high = self.settings.steps(complexity)
        if not low <= len(draft.steps) <= high:
            range_text = f"{low}" if low == high else f"{low} to {high}"
            _fail(
                RejectCode.LIMITS,
                f"{len(draft.steps)} steps, but a {complexity} task has {range_text} here",
            )
        if len(draft.steps) + 1 > self.settings.max_turns:
            _fail(
                RejectCode.LIMITS,
                f"{len(draft.steps)} steps and an answer pass {self.settings.max_turns} turns",
            )
        if not draft.user_prompt.strip() or len(draft.user_prompt) > _LONGEST_PROMPT:
            _fail(RejectCode.SCHEMA, f"user_prompt must have 1 to {_LONGEST_PROMPT} characters")
        plan = [self._step(step, number) for number, step in enumerate(draft.steps, start=1)]
        self._check_answer(draft, plan)
        task = self._record(draft, plan, complexity)
        if problems := task_problems(task):
            _fail(DraftFaultCode.UNJUDGEABLE, "; ".join(problems))
        return task

    def _step(self, step: DraftStep, number: int) -> JsonObject:
        where = f"step {number}"
        spec = self.usable.get(f"{step.server}.{step.tool}")
        if spec is None:
            hint = near_match(f"{step.server}.{step.tool}", self.usable) or ""
            _fail(RejectCode.UNKNOWN_TOOL, f"{where}: there is no {step.server}.{step.tool}. {hint}".strip())
        try:
            arguments = json.loads(step.arguments or "{}")
        except ValueError as error:
            _fail(RejectCode.INVALID_ARGUMENTS, f"{where}: arguments are not JSON: {error}")
        if not isinstance(arguments, dict):
            _fail(RejectCode.INVALID_ARGUMENTS, f"{where}: arguments are not a JSON object")
        late = sorted(n for n in _references(where, arguments) if not 1 <= n < number)
        if late:
            _fail(
                DraftFaultCode.BAD_REFERENCE, f"{where} refers to step {late[0]}, which has not run by then"
            )
        if fault := self.shelf.argument_fault(step.server, step.tool, arguments):
            _fail(RejectCode.INVALID_ARGUMENTS, f"{where}, {spec.dotted}: {fault}")
        return {"step": number, "server": step.server, "tool": step.tool, "params": arguments}

    def _check_answer(self, draft: Draft, plan: list[JsonObject]) -> None:
        answer, numbers = draft.answer, {step["step"] for step in plan}
        cited = _references("answer", answer.values) | _references("final_answer", draft.final_answer)
        if unknown := sorted(cited - numbers):
            _fail(
                DraftFaultCode.BAD_REFERENCE, f"the answer refers to step {unknown[0]}, which the plan lacks"
            )
        reads = {s["step"] for s in plan if self.shelf.is_read_only(s["server"], s["tool"])}
        if answer.type == "none" and plan[-1]["step"] in reads:
            _fail(
                DraftFaultCode.UNGROUNDED, "answer.type none is for a plan whose last step changes something"
            )
        if answer.type != "none":
            bare = [value for value in answer.values if not _references("answer", value)]
            if bare or not answer.values or not _references("final_answer", draft.final_answer):
                what = repr(bare[0]) if bare else "answer.values or final_answer"
                _fail(DraftFaultCode.UNGROUNDED, f"{what} holds no reference such as ${{step1.field}}")
            if answer.type != "must_include" and len(answer.values) != 1:
                _fail(RejectCode.SCHEMA, f"answer.type {answer.type} takes one value")
        used = cited.union(*(_references("step", step["params"]) for step in plan))
        if unused := sorted(reads - used):
            detail = f"nothing uses the result of step {unused[0]}: refer to it, or leave it out"
            _fail(DraftFaultCode.UNUSED_STEP, detail)

    def _record(self, draft: Draft, plan: list[JsonObject], complexity: Complexity) -> Task:
        key = json.dumps([draft.user_prompt, plan], sort_keys=True)
        names = {f"{step['server']}.{step['tool']}" for step in plan}
        tools = self.offer.tools_for(names, seed=derive_seed(self.settings.seed, "offer", key))
        truth: JsonObject = {
            "task_id": task_id("llm", key),
            "complexity": complexity,
            "max_turns": self.settings.max_turns,
            "success": last_tool(plan),
            "tool_sequence": plan,
            "reference_answer": draft.final_answer,
            "limits": {"max_tools": self.settings.max_tools},
        }
        if draft.answer.type != "none":
            values = draft.answer.values
            is_list = draft.answer.type == "must_include"
            truth["final_answer"] = {"type": draft.answer.type, "value": values if is_list else values[0]}
            if draft.answer.type == "number":
                truth["final_answer"]["tolerance"] = abs(draft.answer.tolerance)
        return build_task(
            self.offer,
            tools,
            truth,
            draft.user_prompt.strip(),
            data_source="synthetic/llm",
            generator="llm",
            **{"class": "single" if len(plan) == 1 else "sequential"},
        )


def _references(where: str, value: Any) -> set[int]:
    try:
        return references(value)
    except PlaceholderError as error:
        _fail(DraftFaultCode.BAD_REFERENCE, f"{where}: {error}")


def _fail(code: DraftFaultCode | RejectCode, detail: str, stage: DraftStage = DraftStage.FORMAT) -> NoReturn:
    raise FaultFound(DraftFault(stage, code, detail))
