"""Why what a model wrote did not become a task."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from enum import StrEnum

from mcpagent.core.records import JsonObject


class Stage(StrEnum):
    """The checks, in their order."""

    GENERATE = "generate"  # there is an answer, and it has the form of a task
    FORMAT = "format"  # tools, arguments, references and limits hold against the catalog
    EXECUTE = "execute"  # the plan runs, twice the same, and is worth 1.0 where doing nothing is not
    COMMITTEE = "committee"  # most votes accept it
    DISTINCT = "distinct"  # no earlier sample asks for the same calls


class FaultCode(StrEnum):
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
_FINAL = {FaultCode.REFUSED, FaultCode.DUPLICATE, FaultCode.VOTES_MISSING}


@dataclass(frozen=True)
class Fault:
    """`detail` goes back to the model and into the report."""

    stage: Stage
    code: str
    detail: str

    @property
    def is_repairable(self) -> bool:
        return self.code not in _FINAL

    def as_json(self) -> JsonObject:
        return {"stage": self.stage.value, "code": self.code, "detail": self.detail}

    @classmethod
    def from_json(cls, value: JsonObject) -> Fault:
        return cls(Stage(value["stage"]), value["code"], value["detail"])


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
