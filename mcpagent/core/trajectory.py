"""What happened in an episode."""

from __future__ import annotations

from collections.abc import Sequence
from enum import StrEnum

from pydantic import ConfigDict, Field

from mcpagent.core.records import JsonObject, Record
from mcpagent.core.tools import ParseFailure, ToolCall, ToolResult

SCHEMA_VERSION = 1


class StopReason(StrEnum):
    """The reason why an episode ended."""

    ANSWERED = "answered"  # text without a call, and no user message remained
    MAX_TURNS = "max_turns"  # the task's limit of model turns
    MAX_TOOL_CALLS = "max_tool_calls"  # the environment's hard limit of calls
    MAX_TOKENS = "max_tokens"  # a turn was cut at max_new_tokens
    CONTEXT_OVERFLOW = "context_overflow"  # the next turn would not fit into the context
    NOT_RECORDED = "not_recorded"  # a strict cassette lacks a call that the model chose: never a success
    LIMIT = "limit"  # the task's own limits (servers, tools)
    TIMEOUT = "timeout"  # the episode's wall-clock deadline
    FAILED = "failed"  # infrastructure: unscored, never a reward


class FinishReason(StrEnum):
    """The reason why a completion ended."""

    STOP = "stop"
    LENGTH = "length"
    OVERFLOW = "overflow"  # the context left no room for a single token


class PolicySpan(Record):
    """Tokens [start, end) of a completion were sampled by policy `version`."""

    version: int
    start: int
    end: int


class TokenUsage(Record):
    """The tokens that a model behind an API used for one step; `cost_usd` is None if no prices are given."""

    input_tokens: int
    output_tokens: int
    cost_usd: float | None = None


class Completion(Record):
    """One model step. `token_ids` and `logprobs` (nats, of the actual sampling distribution, same length)
    are empty for policies that work on text; they are stored in a binary sidecar, not in the JSON."""

    text: str
    finish_reason: FinishReason = FinishReason.STOP
    token_ids: tuple[int, ...] = Field(default=(), exclude=True)
    logprobs: tuple[float, ...] = Field(default=(), exclude=True)
    policy_versions: tuple[PolicySpan, ...] = ()
    usage: TokenUsage | None = None  # of a model behind an API, if it says


class RewardTerm(Record):
    """One component of a reward. `value` None means that it did not run, which is not zero."""

    name: str
    value: float | None
    weight: float = 0.0


class Judgement(Record):
    """The verdict of a model about an episode. `identity` is that of the judge, `question_sha256` of what it
    was asked. `verdict` None: it did not answer or cannot be read, and `fault` says why."""

    model_config = ConfigDict(frozen=True, extra="ignore")  # records of older versions hold votes

    model: str
    identity: str
    question_sha256: str
    answer: str | None = None
    verdict: bool | None = None
    fault: str | None = None


class SimulatedUser(Record):
    """The record of how a model that plays the user came to a message: the reasons why earlier ones were
    `rejected`, and whether the script was said in the end."""

    model: str
    rejected: tuple[str, ...] = ()
    is_scripted: bool = False


class Turn(Record):
    """One model step and what the environment answered. `added_token_ids` is what the environment appended
    to the context since the last turn (the whole prompt at turn 0); sidecar, like the completion's tokens."""

    index: int
    user_turn: int = 0
    added_token_ids: tuple[int, ...] = Field(default=(), exclude=True)
    completion: Completion
    tool_calls: tuple[ToolCall, ...] = ()
    parse_failures: tuple[ParseFailure, ...] = ()
    tool_results: tuple[ToolResult, ...] = ()
    user_message: str | None = None  # the user message that the environment delivered after this turn
    simulated_user: SimulatedUser | None = None  # who said it; None: the script of the task
    reward_terms: tuple[RewardTerm, ...] = ()
    wall_s: float = 0.0


def total_reward(terms: Sequence[RewardTerm]) -> float | None:
    """Return the weighted sum; None if a weighted term did not run, or there is none."""
    weighted = [(term.weight, term.value) for term in terms if term.weight != 0.0]
    if not weighted:
        return None
    total = 0.0
    for weight, value in weighted:
        if value is None:
            return None
        total += weight * value
    return total


class Trajectory(Record):
    """One attempt at one task."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=1, le=SCHEMA_VERSION)
    id: str
    task_id: str
    group_id: str
    attempt: int = 0
    seed: int = 0
    complexity: str = "simple"
    prompt: tuple[JsonObject, ...] = ()
    turns: tuple[Turn, ...] = ()
    final_answer: str | None = None
    stop_reason: StopReason
    reward_terms: tuple[RewardTerm, ...] = ()
    state_results: tuple[ToolResult, ...] = ()  # the environment's own calls: set-up, state before and after
    read_only: tuple[str, ...] | None = None  # tools of the plan that only read, as their servers say
    # Tools called that may change something, on servers that say which only read.
    writing: tuple[str, ...] = ()
    judgement: Judgement | None = None  # None: no judge was asked
    grader: int = 1  # the version that graded it; the first did not name itself
    errors: tuple[str, ...] = ()

    @property
    def reward(self) -> float | None:
        """Weighted sum of the terms; None when the episode is unscored (a weighted term did not run)."""
        return None if self.stop_reason is StopReason.FAILED else total_reward(self.reward_terms)

    def term(self, name: str) -> float | None:
        """Value of a reward term; None when it is absent or did not run."""
        return next((t.value for t in self.reward_terms if t.name == name), None)

    @property
    def is_success(self) -> bool | None:
        """Return whether every gate of the task held; None when unscored."""
        value = self.term("success")
        return None if self.reward is None or value is None else value >= 1.0

    @property
    def tool_results(self) -> tuple[ToolResult, ...]:
        """Return the results of all turns, in order, without those of searches for tools."""
        return tuple(r for t in self.turns for r in t.tool_results if not r.is_search)

    @property
    def call_count(self) -> int:
        """Calls of all turns, without searches for tools."""
        return sum(len(t.tool_calls) for t in self.turns) - len(self.searches)

    @property
    def searches(self) -> tuple[ToolResult, ...]:
        """Return the results of the searches for tools, in order."""
        return tuple(r for t in self.turns for r in t.tool_results if r.is_search)


class TrajectoryGroup(Record):
    """G attempts at one task."""

    group_id: str
    trajectories: tuple[Trajectory, ...]
