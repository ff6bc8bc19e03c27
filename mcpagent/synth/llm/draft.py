"""What a model is asked to write, reading it, and why what it wrote did not become a task."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import Any, Literal, NoReturn, TypeVar

from pydantic import ValidationError, field_validator

from mcpagent.core.placeholders import PlaceholderError, numbers_by_place, references
from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.values import scalars
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
    FORMAT = "format"  # tools, arguments, references, class and limits hold
    EXECUTE = "execute"  # the plan runs, twice the same, and is worth 1.0 if doing nothing is not
    REVIEW = "review"  # what was computed is the answer
    SOLVE = "solve"  # another way, found from the question alone, ends in the same answer
    DISTINCT = "distinct"  # no earlier sample asks for the same calls


class DraftFaultCode(StrEnum):
    """Reasons besides those of `FailureReason` (no answer) and `RejectCode` (its form and its run)."""

    REFUSED = "refused"  # the model or a content filter declined
    TRUNCATED = "truncated"  # the answer stops at the token limit
    MALFORMED = "malformed"  # the answer is not a JSON object
    OTHER_CLASS = "other_class"  # not the class of task that was asked for
    BAD_REFERENCE = "bad_reference"  # unreadable, or not to an earlier step
    BY_PLACE = "by_place"  # a number of a text by its place, which another text has elsewhere
    UNUSED_STEP = "unused_step"  # a call that only reads and that nothing refers to
    UNGROUNDED = "ungrounded"  # the answer is the model's own words
    UNJUDGEABLE = "unjudgeable"  # the reward could not judge it
    NOT_THE_ANSWER = "not_the_answer"  # what was computed is not what the question asks
    NOT_SOLVED = "not_solved"


_FINAL = {DraftFaultCode.REFUSED}  # the model will decline again


@dataclass(frozen=True)
class DraftFault:
    """`detail` goes back to the model and into the report."""

    stage: DraftStage
    code: str
    detail: str

    @property
    def is_repairable(self) -> bool:
        """True if the model is told of the fault and may try again."""
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
    """`value` is an expression, or several in a JSON list or object as text; `would_be` is the type of an
    answer that the tools cannot tell."""

    type: Literal["number", "date", "name", "set", "list", "pairs", "choice", "yes_no", "none"]
    value: str
    unit: str
    decimals: int | None
    options: list[str]
    would_be: Literal["number", "date", "name", "set", "list", "pairs", "yes_no", ""]

    @field_validator("value", mode="before")
    @classmethod
    def _as_text(cls, value: Any) -> Any:
        return json.dumps(value) if isinstance(value, dict | list) else value


class DraftProof(DraftStep):
    """A call that reads what a change has done; `expect` is a JSON object of paths and values, as text."""

    expect: str


class Draft(Record):
    """A task as a model writes it. `follow_up` is what the user adds when asked back after `asks_after`
    calls; `missing` is a name in the arguments that nothing has."""

    user_prompt: str
    follow_up: str
    asks_after: int
    steps: list[DraftStep]
    answer: DraftAnswer
    missing: str
    proof: DraftProof | None


class Vote(Record):
    """A verdict on whether what was computed is the answer; the reason comes first, so that it is not made up
    afterwards."""

    reason: str
    accept: bool


class Solution(Record):
    """A way to the answer that is written from the question alone; `value` as in `DraftAnswer`."""

    steps: list[DraftStep]
    value: str


def read_reply(reply: ChatReply, form: type[_Form]) -> _Form:
    """Return the answer in its form. Raises FaultFound if it does not have it."""
    if reply.finish is Finish.REFUSED:
        _fail(DraftFaultCode.REFUSED, reply.text[:300], DraftStage.GENERATE)
    value = json_of(reply.text)
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

    def task(self, draft: Draft, *, kind: str, steps: tuple[int, int]) -> Task:
        """Return the record of a draft of a class, its checks still holding references to the results.
        Raises FaultFound."""
        low, high = min(steps[0], self.settings.max_tools), min(steps[1], self.settings.max_tools)
        if not low <= len(draft.steps) <= high:
            _fail(RejectCode.LIMITS, f"{len(draft.steps)} steps, but this task has {low} to {high}")
        turns = len(draft.steps) + 1 + bool(draft.follow_up)
        if turns > self.settings.max_turns:
            _fail(RejectCode.LIMITS, f"{turns} turns with the answers pass {self.settings.max_turns}")
        if not draft.user_prompt.strip() or len(draft.user_prompt) > _LONGEST_PROMPT:
            _fail(RejectCode.SCHEMA, f"user_prompt must have 1 to {_LONGEST_PROMPT} characters")
        plan = self.plan(draft.steps)
        if draft.follow_up:
            plan = [{**step, "user_turn": int(step["step"] > draft.asks_after)} for step in plan]
        self._check_class(draft, kind)
        value = self._checked_value(draft, plan)
        if draft.answer.type == "none" and not self._writes(plan) and plan:
            texts = {name: v for name, v in plan[-1]["params"].items() if isinstance(v, str)}
            # Of a query only the name that it looks for counts.
            name = draft.missing
            inside = [n for n, text in texts.items() if name and name in text and name != text]
            plan[-1] |= {"finds_nothing": True, "match": {n: {"contains": name} for n in inside}}
        task = self._record(draft, plan, value, kind)
        if problems := task_problems(task):
            _fail(DraftFaultCode.UNJUDGEABLE, "; ".join(problems))
        return task

    def plan(self, steps: Sequence[DraftStep]) -> list[JsonObject]:
        """Return the steps of a plan, each checked against the catalog. Raises FaultFound."""
        return [self._step(step, number) for number, step in enumerate(steps, start=1)]

    def value(self, text: str) -> Any:
        """Return what the value of an answer is written as: a text with references, or a list or an object of
        such."""
        if text[:1] not in ("[", "{"):
            return text
        try:
            return json.loads(text)
        except ValueError as error:
            _fail(RejectCode.SCHEMA, f"answer.value is neither an expression nor JSON: {error}")

    def _writes(self, plan: Sequence[JsonObject]) -> bool:
        return any(not self.shelf.is_read_only(step["server"], step["tool"]) for step in plan)

    def _check_class(self, draft: Draft, kind: str) -> None:
        is_none = draft.answer.type == "none"
        servers = {step.server for step in draft.steps}
        wrong = {
            "two servers": len(servers) < 2 and "its calls are of one server",
            "missing information": not draft.follow_up and "follow_up is empty",
            "does not exist": not (is_none and draft.missing) and "answer or missing is not so",
            "no tool": not is_none and "the answer is not none",
            "change": draft.proof is None and "there is no proof",
        }
        if detail := wrong.get(kind, is_none and "the answer is none"):
            _fail(DraftFaultCode.OTHER_CLASS, f"not a task of the class {kind!r}: {detail}")

    def _step(self, step: DraftStep, number: int) -> JsonObject:
        where = f"step {number}"
        spec = self.usable.get(f"{step.server}.{step.tool}")
        if spec is None:
            hint = near_match(f"{step.server}.{step.tool}", self.usable) or ""
            _fail(RejectCode.UNKNOWN_TOOL, f"{where}: there is no {step.server}.{step.tool}. {hint}".strip())
        arguments = _object(f"{where}: arguments", step.arguments)
        late = sorted(n for n in _references(where, arguments) if not 1 <= n < number)
        if late:
            _fail(
                DraftFaultCode.BAD_REFERENCE, f"{where} refers to step {late[0]}, which has not run by then"
            )
        if fault := self.shelf.argument_fault(step.server, step.tool, arguments):
            _fail(RejectCode.INVALID_ARGUMENTS, f"{where}, {spec.dotted}: {fault}")
        return {"step": number, "server": step.server, "tool": step.tool, "params": arguments}

    def _checked_value(self, draft: Draft, plan: Sequence[JsonObject]) -> Any:
        """Return the value of the answer: every part is computed, and every step that reads counts."""
        value = self.value(draft.answer.value)
        cited = _references("answer", value)
        if unknown := sorted(cited - {step["step"] for step in plan}):
            _fail(
                DraftFaultCode.BAD_REFERENCE, f"the answer refers to step {unknown[0]}, which the plan lacks"
            )
        if draft.answer.type != "none":
            bare = [part for part in scalars(value) if not _references("answer", part)]
            if bare or not cited:
                detail = f"{str(bare[0] if bare else value)!r} holds no reference such as ${{step1.field}}"
                _fail(DraftFaultCode.UNGROUNDED, detail)
        reads = [s["step"] for s in plan if self.shelf.is_read_only(s["server"], s["tool"])]
        if draft.answer.type == "none" and plan:
            cited |= {plan[-1]["step"]}
        used = cited.union(*(_references("step", step["params"]) for step in plan))
        unused = [step for step in reads if step not in used]
        asks = draft.asks_after if draft.follow_up else 0
        for step in plan:
            if step["step"] in unused and step["step"] <= asks:
                step["optional"] = True  # it shows why the agent asks, which it may ask without
        if late := [step for step in unused if step > asks]:
            detail = f"nothing uses the result of step {late[0]}: refer to it, or leave it out"
            _fail(DraftFaultCode.UNUSED_STEP, detail)
        if placed := numbers_by_place([value, *(step["params"] for step in plan)]):
            detail = f'{placed[0]} counts numbers in a text; write number(after(text, "name before it"), 0)'
            _fail(DraftFaultCode.BY_PLACE, detail)
        return value

    def _record(self, draft: Draft, plan: list[JsonObject], value: Any, kind: str) -> Task:
        key = json.dumps([draft.user_prompt, draft.follow_up, plan], sort_keys=True)
        names = {f"{step['server']}.{step['tool']}" for step in plan}
        needed = {*(step.server for step in draft.steps), *([draft.proof.server] if draft.proof else [])}
        is_unseen = not needed.isdisjoint(self.offer.unseen_servers)
        offer = self.offer if is_unseen else self.offer.seen
        tools = offer.tools_for(names, seed=derive_seed(self.settings.seed, "offer", key))
        truth: JsonObject = {
            "task_id": task_id("llm", key),
            "complexity": "simple" if len(plan) < 2 else "moderate" if len(plan) < 4 else "complex",
            "max_turns": self.settings.max_turns,
            "success": last_tool(plan),
            "tool_sequence": plan,
            "limits": {"max_tools": self.settings.max_tools},
        }
        if draft.follow_up:
            truth["user_turns"] = [draft.follow_up.strip()]
        if draft.proof is not None:
            (call,) = self.plan([draft.proof])
            state = {"tool": call["tool"], "arguments": call["params"]}
            check = {"call": state, "expect": _object("proof: expect", draft.proof.expect)}
            truth["state"] = {draft.proof.server: [check]}
        if draft.answer.type != "none":
            said = draft.answer
            given = {"unit": said.unit, "decimals": said.decimals, "options": said.options}
            held = {name: each for name, each in given.items() if each not in ("", None, [])}
            truth["final_answer"] = {"type": said.type, "value": value, **held}
        elif not self._writes(plan):
            form = {"form": draft.answer.would_be} if draft.answer.would_be else {}
            truth["final_answer"] = {"type": "none", **form}
            truth["success"] = {}  # looking in vain is asked for, not by which tool
        info = {"class": kind}
        if draft.missing:
            info["invented"] = draft.missing
        question = draft.user_prompt.strip()
        return build_task(offer, tools, truth, question, data_source="synthetic/llm", generator="llm", **info)


def _object(what: str, text: str) -> JsonObject:
    try:
        value = json.loads(text or "{}")
    except ValueError as error:
        _fail(RejectCode.INVALID_ARGUMENTS, f"{what} are not JSON: {error}")
    if not isinstance(value, dict):
        _fail(RejectCode.INVALID_ARGUMENTS, f"{what} are not a JSON object")
    return value


def _references(where: str, value: Any) -> set[int]:
    try:
        return references(value)
    except PlaceholderError as error:
        _fail(DraftFaultCode.BAD_REFERENCE, f"{where}: {error}")


def _fail(code: DraftFaultCode | RejectCode, detail: str, stage: DraftStage = DraftStage.FORMAT) -> NoReturn:
    raise FaultFound(DraftFault(stage, code, detail))
