"""Tasks and episode records written by hand: a stock server whose quotes have a close, a chat server."""

from __future__ import annotations

import json
from typing import Any

from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind, ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import RewardTerm, StopReason, total_reward
from mcpagent.reward.record import EpisodeRecord, RecordedTurn
from mcpagent.reward.rule import grade_by_rule

QUOTE = {"step": 1, "server": "stocks", "tool": "quote", "params": {"ticker": "AAPL"}}
SEND = {"step": 2, "server": "chat", "tool": "send", "params": {"message": "${step1.close}"}}
CLOSE = 187.2


def make_task(**truth: Any) -> Task:
    return Task.model_validate(
        {
            "prompt": [{"role": "user", "content": "What did AAPL close at?"}],
            "reward_spec": {"ground_truth": {"task_id": "t", **truth}},
        }
    )


Made = tuple[ToolCall, ToolResult]


def made(
    tool: str = "quote",
    *,
    structured: dict[str, Any] | None = None,
    failure: FailureKind | None = None,
    server: str | None = None,
    **arguments: Any,
) -> Made:
    """A call with its result: a quote has a close, anything else an empty object."""
    server = server or ("stocks" if tool == "quote" else "chat")
    result = structured if structured is not None else ({"close": CLOSE} if tool == "quote" else {})
    call = ToolCall(id="c", server=server, tool=tool, arguments=arguments)
    return call, ToolResult(
        call_id="c",
        server=server,
        tool=tool,
        content="error" if failure else json.dumps(result),
        structured=None if failure else result,
        is_error=failure is not None,
        failure=failure,
    )


def turn(*calls: Made, user_turn: int = 0, parse_failures: int = 0) -> RecordedTurn:
    return RecordedTurn(
        user_turn=user_turn,
        calls=tuple(call for call, _ in calls),
        results=tuple(result for _, result in calls),
        parse_failures=(ParseFailure(raw="<tool_call>", reason="never closed"),) * parse_failures,
    )


def episode(
    *turns: RecordedTurn,
    answer: str | None = "Done.",
    stop: StopReason = StopReason.ANSWERED,
    state: tuple[ToolResult, ...] = (),
) -> EpisodeRecord:
    return EpisodeRecord(turns=turns, final_answer=answer, stop_reason=stop, state_results=state)


def values(task: Task, record: EpisodeRecord) -> dict[str, float | None]:
    return {term.name: term.value for term in grade_by_rule(task, record)}


def reward(task: Task, record: EpisodeRecord) -> float:
    total = total_reward(grade_by_rule(task, record))
    assert total is not None
    return total


def term(terms: tuple[RewardTerm, ...], name: str) -> RewardTerm:
    return next(term for term in terms if term.name == name)
