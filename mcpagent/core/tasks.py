"""The dataset record: SkyRL-compatible, one task each."""

from __future__ import annotations

from contextlib import suppress
from typing import Any, Literal, Self

from pydantic import Field, ValidationError, field_validator

from mcpagent.core.records import JsonObject, OpenRecord, Record
from mcpagent.core.registry import RewardMethodName

ENV_ID = "MCPToolEnv"  # the name under which SkyRL finds the environment of a record
Complexity = Literal["simple", "moderate", "complex"]


class Message(Record):
    """One chat message of a prompt."""

    role: Literal["system", "user", "assistant", "tool"]
    content: str


class PlanCall(OpenRecord):
    """A call by server, tool and parameters; parameters may hold `${stepN.path}` references."""

    server: str
    tool: str
    params: JsonObject = {}


class PlanStep(PlanCall):
    """One gold call. `match` holds acceptance rules by parameter name (see `core.matching`). A call that
    `finds_nothing` names what does not exist; its right result is that the tool says so, or fails."""

    step: int
    finds_nothing: bool = False
    user_turn: int = 0
    alternatives: tuple[PlanCall, ...] = ()
    parallel_group: int | str | None = None
    match: dict[str, JsonObject] = {}


class Success(OpenRecord):
    """`must_call_tool`: `server.tool`, a bare tool name, or a bare server name (any of its tools); a list of
    these asks for each of them."""

    must_call_tool: str | tuple[str, ...] | None = None

    @property
    def must_call(self) -> tuple[str, ...]:
        """Every name in `must_call_tool`; an empty text names none."""
        names = self.must_call_tool
        listed = () if names is None else (names,) if isinstance(names, str) else names
        return tuple(filter(None, listed))


class TaskLimits(OpenRecord):
    """Limits of one episode; None means no limit."""

    max_servers: int | None = None
    max_tools: int | None = None


AnswerType = Literal[
    "number",
    "date",
    "name",
    "set",
    "list",
    "pairs",
    "choice",
    "yes_no",
    "none",
    "string",
    "regex",
    "must_include",
    "abstention",
]


class AnswerCheck(OpenRecord):
    """The rule by which the final answer is judged, by the kind of thing that it is; the question states the
    form of it (`mcpagent.core.answer_line`), and the answer line is read in that form
    (`mcpagent.reward.answer`).

    number: equals `value`, within `tolerance` (absolute); with `decimals`, it is rounded to that many. `unit`
    is what it is counted in. date: a date, a time or both, in ISO form; `precision` says how much of it.
    name: a short text, as the tools write it. set, list: items of one type in any order, or in this one.
    pairs: an object of things and their values, of one type. choice: one of `options`. yes_no: true or false.
    none: the tools cannot tell; `form` is the type that the question asks for all the same.
    `accept` holds other right values of the same type.

    Datasets of others also have string: equal as names are. regex: `value` is found. must_include: every fact
    of `value` is found. abstention: no tool is right, as `none`.
    Values may hold `${stepN.path}` references, resolved against the real results of the episode.
    """

    type: AnswerType
    value: Any = None
    tolerance: float = 0.0
    decimals: int | None = Field(default=None, ge=0, le=10)
    unit: str | None = None
    precision: Literal["year", "month", "day", "minute", "second"] | None = None
    options: tuple[Any, ...] = ()
    accept: tuple[Any, ...] = ()
    form: AnswerType | None = None


class EvidenceFact(OpenRecord):
    """A fact that an episode must have seen before its answer: `value`, in what a result shows, of the thing
    that `about` identifies. Each entry of `about` is an identifier, or several of the same thing; one of them
    stands in the arguments of the call, or in the same record (object, row or line) as the value. `instead`
    holds what, if results show all of it, counts as well: the sum of what is added up.
    """

    value: Any
    about: tuple[str | tuple[str, ...], ...] = ()
    instead: tuple[Any, ...] = ()


class StateCall(OpenRecord):
    """A call that the environment itself makes, to set up or to read a stateful server."""

    tool: str
    arguments: JsonObject = {}


class StateCheck(OpenRecord):
    """Read the state with `call`; every path of `expect` must hold its value in the structured result, or
    what a rule says of it (see `core.matching`).

    It is read when `user_turn` ends (None: the episode) and fails if the plan has calls in that user turn,
    but nothing was called in it. `nothing_else_changed`: every value that `expect` does not name is as it was
    before the episode.
    """

    call: StateCall
    expect: JsonObject
    user_turn: int | None = Field(default=None, ge=0)
    nothing_else_changed: bool = False


class GroundTruth(OpenRecord):
    """The definition of a right episode. Unknown fields are kept.

    With `evidence` any calls that show its facts are a way to the answer, and `tool_sequence` is one of them;
    what is required besides are the calls of `success`, and those of the plan that write.
    """

    task_id: str
    complexity: Complexity = "simple"
    max_turns: int = Field(default=8, ge=1)
    success: Success = Success()
    tool_sequence: tuple[PlanStep, ...] = ()
    limits: TaskLimits = TaskLimits()
    final_answer: AnswerCheck | None = None
    answer_line: bool = False  # the last line of the last message is `Answer: ...`, and it alone is graded
    evidence: tuple[EvidenceFact, ...] = ()
    state: dict[str, tuple[StateCheck, ...]] = {}
    setup: dict[str, tuple[StateCall, ...]] = {}
    user_turns: tuple[str, ...] = ()
    # By user turn, `server.tool` names that are offered from it on.
    tools_added: dict[int, tuple[str, ...]] = {}
    abstain: bool = False
    quiet_turns: tuple[int, ...] | None = None  # in which no call is right; None: see `reward.rule`
    reference_answer: str | None = None  # what a right final message says; may hold references
    judge_rubric: str | JsonObject | None = None  # what a judge goes by, also as criteria; None: any task's

    @property
    def is_refusal(self) -> bool:
        """Return True if no tool can do what is asked: the right answer is none, or a word without a call."""
        check = self.final_answer
        return self.abstain or (
            not self.tool_sequence and check is not None and check.type in ("none", "abstention")
        )


class RewardSpec(OpenRecord):
    """`method` names the scoring: `rule` is the deterministic reward of `mcpagent.reward`, `judge` asks a
    model, `rule+judge` asks it about an answer without a type."""

    method: RewardMethodName = "rule"
    ground_truth: GroundTruth


def _without_null_keys(value: Any) -> Any:
    match value:
        case [*items]:
            return [_without_null_keys(item) for item in items]
        case {**members}:
            return {key: _without_null_keys(item) for key, item in members.items() if item is not None}
        case _:
            return value


class Task(OpenRecord):
    """One record of a dataset. The prompt is compact: at most one system and exactly one user message."""

    data_source: str = "unknown"
    env_class: str = ENV_ID
    prompt: tuple[Message, ...]
    reward_spec: RewardSpec
    extra_info: JsonObject = {}

    @field_validator("prompt")
    @classmethod
    def _compact(cls, prompt: tuple[Message, ...]) -> tuple[Message, ...]:
        roles = [m.role for m in prompt]
        if roles not in (["user"], ["system", "user"]):
            raise ValueError(
                f"prompt has roles {roles}, but it must be one optional system message and one user message; "
                "tool results and later turns arrive at run time (reward_spec.ground_truth.user_turns)"
            )
        return prompt

    @classmethod
    def read(cls, record: JsonObject) -> Self:
        """Return the task of a record. If null stands where it cannot, a library has filled absent keys with
        it, and every null key is read as absent. Raises ValidationError for the record as it is."""
        try:
            return cls.model_validate(record)
        except ValidationError:
            with suppress(ValidationError):
                return cls.model_validate(_without_null_keys(record))
            raise

    @property
    def truth(self) -> GroundTruth:
        """Return what a right episode looks like."""
        return self.reward_spec.ground_truth

    @property
    def id(self) -> str:
        """Return the task id of the ground truth."""
        return self.truth.task_id

    @property
    def kind(self) -> str:
        """Return the class of the task if it says one, else its template, else its source."""
        return str(self.extra_info.get("class") or self.extra_info.get("template") or self.data_source)

    @property
    def servers_called(self) -> str:
        """Return the servers that the gold plan calls."""
        return " + ".join(sorted({step.server for step in self.truth.tool_sequence})) or "none"

    @property
    def is_generated(self) -> bool:
        """True if `mcpagent gen-data` made the task."""
        return self.extra_info.get("generator") in ("rules", "explore", "llm")

    @property
    def offered_tools(self) -> tuple[str, ...] | None:
        """`server.tool` names that the task offers at the start; None offers the whole catalog."""
        tools = self.extra_info.get("tools")
        return tuple(tools) if tools is not None else None

    def offered_in(self, user_turn: int) -> tuple[str, ...] | None:
        """`server.tool` names that the task offers once `user_turn` has begun; the last user turn has all."""
        if self.offered_tools is None:
            return None
        added = [names for turn, names in sorted(self.truth.tools_added.items()) if turn <= user_turn]
        return (*self.offered_tools, *(name for names in added for name in names))
