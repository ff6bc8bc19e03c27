"""What the reward sees of an episode."""

from __future__ import annotations

import json
from dataclasses import dataclass

from mcpagent.core.tasks import GroundTruth, StateCheck, Task
from mcpagent.core.tools import FailureKind, ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import StopReason, Trajectory

_NOT_MADE = frozenset(
    {FailureKind.UNKNOWN_TOOL, FailureKind.INVALID_ARGUMENTS, FailureKind.LIMIT, FailureKind.DENIED}
)
_INVALID = frozenset({FailureKind.UNKNOWN_TOOL, FailureKind.INVALID_ARGUMENTS})


@dataclass(frozen=True, kw_only=True)
class RecordedTurn:
    """One model step: its calls with one result for each, in order."""

    user_turn: int
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    parse_failures: tuple[ParseFailure, ...] = ()

    def __post_init__(self) -> None:
        if len(self.calls) != len(self.results):
            raise ValueError(f"{len(self.calls)} calls, but {len(self.results)} results")


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call with its place: `turn` is the index of the model step."""

    turn: int
    user_turn: int
    call: ToolCall
    result: ToolResult

    @property
    def was_made(self) -> bool:
        """It reached a server."""
        return self.result.failure not in _NOT_MADE

    @property
    def is_invalid(self) -> bool:
        """It named no offered tool or broke the tool's schema."""
        return self.result.failure in _INVALID

    @property
    def identity(self) -> str:
        """Equal for two calls that ask for the same thing."""
        return json.dumps([self.call.server, self.call.tool, self.call.arguments], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """An ended episode. `state_results` has one result for each of `state_checks(truth)`, in order; empty
    where the state was not read."""

    turns: tuple[RecordedTurn, ...]
    final_answer: str | None
    stop_reason: StopReason
    state_results: tuple[ToolResult, ...] = ()

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        return tuple(
            RecordedCall(turn=index, user_turn=turn.user_turn, call=call, result=result)
            for index, turn in enumerate(self.turns)
            for call, result in zip(turn.calls, turn.results, strict=True)
        )

    @property
    def parse_failure_count(self) -> int:
        return sum(len(turn.parse_failures) for turn in self.turns)

    @property
    def is_unscorable(self) -> bool:
        """The machinery failed or was too slow somewhere: the outcome says nothing about the model."""
        results = [*(r for turn in self.turns for r in turn.results), *self.state_results]
        if self.stop_reason is StopReason.NOT_RECORDED:
            return False  # the model's own failure, whatever else broke
        return self.stop_reason in {StopReason.FAILED, StopReason.TIMEOUT} or any(r.is_lost for r in results)


def state_checks(truth: GroundTruth) -> list[tuple[str, StateCheck]]:
    """The state checks with their servers, in the order in which they are read: as user turns end, and then
    those of the end."""
    checks = [(server, check) for server, checks in truth.state.items() for check in checks]
    last = len(truth.user_turns) + 1
    return sorted(checks, key=lambda item: last if item[1].user_turn is None else item[1].user_turn)


def record_of(task: Task, trajectory: Trajectory) -> EpisodeRecord:
    """The record of a stored trajectory, to grade it anew."""
    setup_count = sum(len(calls) for calls in task.truth.setup.values())
    return EpisodeRecord(
        turns=tuple(
            RecordedTurn(
                user_turn=turn.user_turn,
                calls=turn.tool_calls,
                results=turn.tool_results,
                parse_failures=turn.parse_failures,
            )
            for turn in trajectory.turns
        ),
        final_answer=trajectory.final_answer,
        stop_reason=trajectory.stop_reason,
        state_results=trajectory.state_results[setup_count:],
    )


def attempts_by_user_turn(record: EpisodeRecord) -> dict[int, int]:
    """Attempts at a call in each user turn that has any: parsed or not, made or not."""
    attempts: dict[int, int] = {}
    for turn in record.turns:
        if count := len(turn.calls) + len(turn.parse_failures):
            attempts[turn.user_turn] = attempts.get(turn.user_turn, 0) + count
    return attempts
