"""What the reward sees of an episode, and the grade by the method that its task names."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from mcpagent.core.matching import needs_before
from mcpagent.core.records import JsonObject
from mcpagent.core.registry import REWARD_METHODS
from mcpagent.core.tasks import GroundTruth, StateCheck, Task
from mcpagent.core.tools import FailureKind, ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import Judgement, RewardTerm, StopReason, Trajectory

_NOT_MADE = frozenset(
    {FailureKind.UNKNOWN_TOOL, FailureKind.INVALID_ARGUMENTS, FailureKind.LIMIT, FailureKind.DENIED}
)
_INVALID = frozenset({FailureKind.UNKNOWN_TOOL, FailureKind.INVALID_ARGUMENTS})


@dataclass(frozen=True, kw_only=True)
class RecordedTurn:
    """One model step: its calls with one result for each, in order. `searches` are its searches for tools,
    which are no calls: they do nothing that a task could ask for or forbid."""

    user_turn: int
    calls: tuple[ToolCall, ...] = ()
    results: tuple[ToolResult, ...] = ()
    parse_failures: tuple[ParseFailure, ...] = ()
    searches: tuple[tuple[ToolCall, ToolResult], ...] = ()

    def __post_init__(self) -> None:
        if len(self.calls) != len(self.results):
            raise ValueError(f"{len(self.calls)} calls, but {len(self.results)} results")

    @classmethod
    def of(
        cls,
        calls: Sequence[ToolCall],
        results: Sequence[ToolResult],
        *,
        user_turn: int,
        parse_failures: Sequence[ParseFailure] = (),
    ) -> RecordedTurn:
        """Return the record of a step that called and searched."""
        made = list(zip(calls, results, strict=True))
        return cls(
            user_turn=user_turn,
            calls=tuple(call for call, result in made if not result.is_search),
            results=tuple(result for _, result in made if not result.is_search),
            parse_failures=tuple(parse_failures),
            searches=tuple(item for item in made if item[1].is_search),
        )

    @property
    def invalid_attempts(self) -> int:
        """Attempts that became neither a call nor a search: what does not parse, and searches with arguments
        that the search does not take."""
        return len(self.parse_failures) + sum(result.is_error for _, result in self.searches)


@dataclass(frozen=True, kw_only=True)
class RecordedCall:
    """One call with its place: `turn` is the index of the model step."""

    turn: int
    user_turn: int
    call: ToolCall
    result: ToolResult

    @property
    def was_made(self) -> bool:
        """True if the call reached a server."""
        return self.result.failure not in _NOT_MADE

    @property
    def is_invalid(self) -> bool:
        """True if the call named no offered tool or broke the tool's schema."""
        return self.result.failure in _INVALID

    @property
    def identity(self) -> str:
        """Equal for two calls that ask for the same thing."""
        return json.dumps([self.call.server, self.call.tool, self.call.arguments], sort_keys=True)


@dataclass(frozen=True, kw_only=True)
class EpisodeRecord:
    """An ended episode. `state_results` has one result for each of `state_checks(truth)`, in order; empty
    if the state was not read. `state_before` has those of `checks_with_before(truth)` before the episode.
    `read_only` are the tools of the plan (`server.tool`) of which their servers say that they only read; None
    if that was not kept: as in MCP, a tool of which nothing is known may change something. `writing`
    are the tools called that do not only read, on servers that say of some of theirs that they do.
    `judgement` is what a judge said, if one was asked."""

    turns: tuple[RecordedTurn, ...]
    final_answer: str | None
    stop_reason: StopReason
    state_results: tuple[ToolResult, ...] = ()
    state_before: tuple[ToolResult, ...] = ()
    read_only: frozenset[str] | None = None
    writing: frozenset[str] = frozenset()
    judgement: Judgement | None = None

    @property
    def calls(self) -> tuple[RecordedCall, ...]:
        """Every call with its result, in the order of the turns."""
        return tuple(
            RecordedCall(turn=index, user_turn=turn.user_turn, call=call, result=result)
            for index, turn in enumerate(self.turns)
            for call, result in zip(turn.calls, turn.results, strict=True)
        )

    @property
    def parse_failure_count(self) -> int:
        """The number of calls, over all turns, that did not parse."""
        return sum(len(turn.parse_failures) for turn in self.turns)

    @property
    def is_unscorable(self) -> bool:
        """The machinery failed or was too slow somewhere: the outcome says nothing about the model."""
        state = (*self.state_before, *self.state_results)
        results = [*(r for turn in self.turns for r in turn.results), *state]
        if self.stop_reason is StopReason.NOT_RECORDED:
            return False  # the model's own failure, whatever else broke
        return self.stop_reason in {StopReason.FAILED, StopReason.TIMEOUT} or any(r.is_lost for r in results)


def state_checks(truth: GroundTruth) -> list[tuple[str, StateCheck]]:
    """Return the state checks with their servers, in the order in which they are read: as user turns end, and
    then those of the end."""
    checks = [(server, check) for server, checks in truth.state.items() for check in checks]
    last = len(truth.user_turns) + 1
    return sorted(checks, key=lambda item: last if item[1].user_turn is None else item[1].user_turn)


def checks_with_before(truth: GroundTruth) -> list[tuple[str, StateCheck]]:
    """Return those state checks that compare with the state before the episode, in the same order."""
    return [
        (server, check)
        for server, check in state_checks(truth)
        if check.nothing_else_changed or needs_before(check.expect)
    ]


def state_readings(
    truth: GroundTruth, after: Sequence[ToolResult], before: Sequence[ToolResult]
) -> list[tuple[str, StateCheck, ToolResult, ToolResult | None]] | None:
    """Return each state check with its server, what was read at its time, and what was read before the
    episode if it compares with that; None if the state was not read."""
    checks, compared = state_checks(truth), checks_with_before(truth)
    if len(checks) != len(after) or len(compared) != len(before):
        return None
    was = {id(check): result for (_, check), result in zip(compared, before, strict=True)}
    return [
        (server, check, result, was.get(id(check)))
        for (server, check), result in zip(checks, after, strict=True)
    ]


def record_of(task: Task, trajectory: Trajectory) -> EpisodeRecord:
    """Return the record of a stored trajectory, to grade it anew."""
    setup_count = sum(len(calls) for calls in task.truth.setup.values())
    before_count = len(checks_with_before(task.truth))
    readings = trajectory.state_results[setup_count:]
    return EpisodeRecord(
        turns=tuple(
            RecordedTurn.of(
                turn.tool_calls,
                turn.tool_results,
                user_turn=turn.user_turn,
                parse_failures=turn.parse_failures,
            )
            for turn in trajectory.turns
        ),
        final_answer=trajectory.final_answer,
        stop_reason=trajectory.stop_reason,
        state_results=readings[before_count:],
        state_before=readings[:before_count],
        read_only=None if trajectory.read_only is None else frozenset(trajectory.read_only),
        writing=frozenset(trajectory.writing),
        judgement=trajectory.judgement,
    )


def user_messages(task: Task) -> list[str]:
    """Return what the user says, in all turns."""
    return [*(m.content for m in task.prompt if m.role == "user"), *task.truth.user_turns]


def attempted_turns(record: EpisodeRecord) -> set[int]:
    """Return the user turns with an attempt at a call: parsed or not, made or not."""
    return {turn.user_turn for turn in record.turns if turn.calls or turn.parse_failures}


@dataclass(frozen=True)
class Graded:
    """The terms of an episode, and why terms of one's own did not run."""

    terms: tuple[RewardTerm, ...]
    errors: tuple[str, ...] = ()


class Reward(Protocol):
    """Says what an ended episode is worth. Pure: the same for the same task and record."""

    def grade(self, task: Task, record: EpisodeRecord) -> Graded:
        """Return the terms of an ended episode; their weighted sum is the reward."""
        ...

    def as_json(self) -> JsonObject:
        """Return what the manifest of a run says of the reward."""
        ...


def grade(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """Return the terms of an ended episode, by the method that its task names."""
    return REWARD_METHODS.load(task.reward_spec.method)(task, record)
