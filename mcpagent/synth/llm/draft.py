"""What a model is asked to write, and reading it."""

from __future__ import annotations

import json
from typing import Any, Literal, TypeVar

from pydantic import ValidationError, field_validator

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.validation import describe
from mcpagent.llm.contract import ChatReply, Finish
from mcpagent.llm.endpoint import json_of
from mcpagent.synth.llm.faults import Fault, FaultCode, Stage

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


def read_reply(reply: ChatReply, form: type[_Form]) -> _Form | Fault:
    """The answer in its form, or why it is none."""
    if reply.finish is Finish.REFUSED:
        return Fault(Stage.GENERATE, FaultCode.REFUSED, reply.text[:300])
    value = json_of(reply)
    if value is None:
        if reply.finish is Finish.LENGTH:
            detail = "the answer was cut off at the token limit; be brief"
            return Fault(Stage.GENERATE, FaultCode.TRUNCATED, detail)
        detail = f"the answer is not one JSON object: {reply.text[:100]!r}"
        return Fault(Stage.GENERATE, FaultCode.MALFORMED, detail)
    try:
        return form.model_validate(value)
    except ValidationError as error:
        found = "; ".join(describe(detail, root="the answer") for detail in error.errors()[:5])
        return Fault(Stage.GENERATE, FaultCode.SCHEMA, found)
