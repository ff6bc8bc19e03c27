"""What a model is asked to write, reading it, and why what it wrote did not become a task."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, Literal, TypeVar

from pydantic import ValidationError, field_validator

from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.llm.contract import ChatReply, Finish
from mcpagent.llm.endpoint import json_of


class DraftStage(StrEnum):
    """The checks, in their order."""

    GENERATE = "generate"  # there is an answer, and it has the form of a task
    FORMAT = "format"  # tools, arguments, references and limits hold against the catalog
    EXECUTE = "execute"  # the plan runs, twice the same, and is worth 1.0 where doing nothing is not
    COMMITTEE = "committee"  # most votes accept it
    DISTINCT = "distinct"  # no earlier sample asks for the same calls


class DraftFaultCode(StrEnum):
    """Reasons beside those of `llm.FailureReason` (no answer) and `ground.RejectCode` (the plan's run)."""

    REFUSED = "refused"  # the model or a content filter declined
    TRUNCATED = "truncated"  # the answer stops at the token limit
    MALFORMED = "malformed"  # the answer is no JSON object
    SCHEMA = "schema"  # a JSON object of another form
    UNKNOWN_TOOL = "unknown_tool"
    INVALID_ARGUMENTS = "invalid_arguments"  # they break the tool's input schema
    BAD_REFERENCE = "bad_reference"  # unreadable, or to no earlier step
    LIMITS = "limits"  # too many calls, or too few for the complexity asked for
    UNUSED_STEP = "unused_step"  # a call that only reads and that nothing refers to
    UNGROUNDED = "ungrounded"  # the answer is the model's own words
    UNJUDGEABLE = "unjudgeable"  # the reward could not judge it
    VOTED_DOWN = "voted_down"
    VOTES_MISSING = "votes_missing"  # too few votes could be read for a majority
    DUPLICATE = "duplicate"


# The model will decline again, and a copy cannot be fixed.
_FINAL = {DraftFaultCode.REFUSED, DraftFaultCode.DUPLICATE, DraftFaultCode.VOTES_MISSING}


@dataclass(frozen=True)
class DraftFault:
    """`detail` goes back to the model and into the report."""

    stage: DraftStage
    code: str
    detail: str

    @property
    def is_repairable(self) -> bool:
        return self.code not in _FINAL

    def as_json(self) -> JsonObject:
        return {"stage": self.stage.value, "code": self.code, "detail": self.detail}

    @classmethod
    def from_json(cls, value: JsonObject) -> DraftFault:
        return cls(DraftStage(value["stage"]), value["code"], value["detail"])


@dataclass(frozen=True)
class Failures:
    """Requests without an answer, by reason (`llm.FailureReason`), with what was said first for each."""

    counts: Counter[str] = field(default_factory=Counter[str])
    examples: dict[str, str] = field(default_factory=dict[str, str])

    def count(self, reason: str, text: str) -> None:
        self.counts[reason] += 1
        self.examples.setdefault(reason, text)

    def as_json(self) -> JsonObject:
        reasons = sorted(self.counts)
        return {
            "total": self.counts.total(),
            "reasons": {reason: self.counts[reason] for reason in reasons},
            "examples": {reason: self.examples[reason] for reason in reasons},
        }


_Form = TypeVar("_Form", bound=Record)


class DraftStep(Record):
    """`arguments` is a JSON object as text: strict structured outputs know no object of open form."""

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


def form_of(form: type[Record]) -> JsonObject:
    """The JSON schema of an answer: every field required, no other allowed, as strict outputs want it."""
    return form.model_json_schema()


def read_reply(reply: ChatReply, form: type[_Form]) -> _Form | DraftFault:
    """The answer in its form, or why it is none."""
    if reply.finish is Finish.REFUSED:
        return DraftFault(DraftStage.GENERATE, DraftFaultCode.REFUSED, reply.text[:300])
    value = json_of(reply)
    if value is None:
        if reply.finish is Finish.LENGTH:
            detail = "the answer was cut off at the token limit; be brief"
            return DraftFault(DraftStage.GENERATE, DraftFaultCode.TRUNCATED, detail)
        detail = f"the answer is not one JSON object: {reply.text[:100]!r}"
        return DraftFault(DraftStage.GENERATE, DraftFaultCode.MALFORMED, detail)
    try:
        return form.model_validate(value)
    except ValidationError as error:
        found = "; ".join(describe(detail, root="the answer") for detail in error.errors()[:5])
        return DraftFault(DraftStage.GENERATE, DraftFaultCode.SCHEMA, found)
