"""The stages that a task passes before it is kept, why it may fail each of them, and the yield of both."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum

from mcpagent.core.records import JsonObject


class RejectCode(StrEnum):
    """The reason why a candidate did not become a task, or a record is not fit to train on."""

    # As it is written
    JSON = "json"  # the line is not a JSON object
    SCHEMA = "schema"  # a field is missing or has a wrong type
    NOT_COMPACT = "not_compact"  # the prompt holds more than one system and one user message
    GROUND_TRUTH = "ground_truth"  # the reward could not judge it: references, match rules, checks
    DUPLICATE = "duplicate"  # the same calls are asked for by a task that was tried before
    UNKNOWN_TOOL = "unknown_tool"  # a plan or an offer names a tool that no server in use has
    INVALID_ARGUMENTS = "invalid_arguments"  # a gold call breaks the tool's input schema
    LIMITS = "limits"  # the plan does not fit into the limits or the turns of the episode
    ANSWER_IN_PROMPT = "answer_in_prompt"  # the question says what is asked for
    DUPLICATE_ID = "duplicate_id"  # the task_id of an earlier record
    # Of a chat
    NO_CALL = "no_call"  # nothing is called, or a result has no call
    NOT_TEXT = "not_text"  # the user sent an image or a file
    SECRET = "secret"  # a call takes what must not be in a dataset
    MAY_WRITE = "may_write"  # a call may change something that would stay changed
    # As it runs
    SETUP_FAILED = "setup_failed"  # the initial state could not be made
    STEP_FAILED = "step_failed"  # a call of the plan did not succeed
    REFERENCE_UNRESOLVED = "reference_unresolved"  # a reference finds nothing in the real results
    STATE_UNREADABLE = "state_unreadable"  # a state check's call did not succeed
    NO_ERROR = "no_error"  # the call that is meant to fail, and to be recovered from, did not fail
    EXISTS = "exists"  # what a question invents is known to a tool
    ANSWER_INVALID = "answer_invalid"  # the computed answer is empty, or not a number if one is checked
    NOT_REPEATABLE = "not_repeatable"  # the same calls gave other results the second time
    GOLD_FAILS = "gold_fails"  # the plan ran, but the reward does not give it 1.0
    WRONG_ANSWER_PASSES = "wrong_answer_passes"  # raw results, a denial or an invented answer succeeds
    STATE_ALREADY_HOLDS = "state_already_holds"  # the end state is there before anything is done
    NO_OP_PASSES = "no_op_passes"  # silence succeeds
    NOT_MINIMAL = "not_minimal"  # a step can be left out
    STILL_ANSWERABLE = "still_answerable"  # a function is missing, but an offered tool has the answer


# Each stage with what it rejects, in the order in which they are passed.
_WRITTEN = {
    "arguments": (RejectCode.INVALID_ARGUMENTS,),
    "limits": (RejectCode.LIMITS,),
}
_RUN = {
    "replays": (RejectCode.NOT_REPEATABLE,),
    "gold": (RejectCode.GOLD_FAILS, RejectCode.WRONG_ANSWER_PASSES),
    "no_op": (RejectCode.STATE_ALREADY_HOLDS, RejectCode.NO_OP_PASSES, RejectCode.STILL_ANSWERABLE),
    "minimal": (RejectCode.NOT_MINIMAL,),
}
_EXECUTES = (
    RejectCode.SETUP_FAILED,
    RejectCode.STEP_FAILED,
    RejectCode.REFERENCE_UNRESOLVED,
    RejectCode.STATE_UNREADABLE,
    RejectCode.NO_ERROR,
    RejectCode.EXISTS,
)
GENERATION_STAGES: Mapping[str, tuple[RejectCode, ...]] = {
    "distinct": (RejectCode.DUPLICATE,),
    "catalog": (RejectCode.UNKNOWN_TOOL,),
    "ground_truth": (RejectCode.GROUND_TRUTH,),
    **_WRITTEN,
    "executes": _EXECUTES,
    "answer": (RejectCode.ANSWER_INVALID, RejectCode.ANSWER_IN_PROMPT),
    **_RUN,
}
VALIDATION_STAGES: Mapping[str, tuple[RejectCode, ...]] = {
    "json": (RejectCode.JSON,),
    "schema": (RejectCode.SCHEMA,),
    "compact": (RejectCode.NOT_COMPACT,),
    "ground_truth": (RejectCode.GROUND_TRUTH,),
    "catalog": (RejectCode.UNKNOWN_TOOL,),
    **_WRITTEN,
    "prompt": (RejectCode.ANSWER_IN_PROMPT,),
    "ids": (RejectCode.DUPLICATE_ID,),
}
EXECUTION_STAGES: Mapping[str, tuple[RejectCode, ...]] = {"executes": _EXECUTES, **_RUN}


@dataclass(frozen=True)
class Rejection:
    """`detail` is for a person: which step, which value."""

    code: RejectCode
    detail: str


class RejectedTask(Exception):
    """Ends the examination of one candidate."""

    def __init__(self, code: RejectCode, detail: str) -> None:
        super().__init__(detail)
        self.rejection = Rejection(code, detail)


def by_stage(
    rejects: Mapping[RejectCode, int], stages: Mapping[str, Iterable[RejectCode]]
) -> dict[str, dict[str, int]]:
    """Return what each stage rejected, by code."""
    return {
        name: {code.value: rejects[code] for code in codes if rejects.get(code)}
        for name, codes in stages.items()
    }


def yield_table(count: int, rejects: Mapping[str, Mapping[str, int]]) -> list[JsonObject]:
    """Return what went into each stage and what came out. `rejects` has by stage what it rejected, `count`
    are those that entered the first one."""
    rows: list[JsonObject] = []
    for name, lost in rejects.items():
        left = count - sum(lost.values())
        rows.append({"name": name, "in": count, "out": left, "rejects": lost})
        count = left
    return rows
