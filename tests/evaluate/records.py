"""Trajectories built by hand for the tests of this folder."""

from __future__ import annotations

from collections.abc import Sequence

from mcpagent.core.records import JsonObject
from mcpagent.core.tools import NONCE_META_KEY, FailureKind, ParseFailure, ToolCall, ToolResult
from mcpagent.core.trajectory import Completion, RewardTerm, StopReason, Trajectory, Turn

QUESTION = "What did AAPL close at on 2024-03-01?"


def call(number: int, tool: str = "get_aggs", **arguments: object) -> ToolCall:
    return ToolCall(id=f"c{number}", server="polygon", tool=tool, arguments=dict(arguments))


def result(
    number: int,
    content: str = '{"close": 179.66}',
    *,
    failure: FailureKind | None = None,
    nonce: str | None = "n-4f1c",
) -> ToolResult:
    return ToolResult(
        call_id=f"c{number}",
        server="polygon",
        tool="get_aggs",
        content=content,
        is_error=failure is not None,
        failure=failure,
        latency_s=0.004,
        meta={} if nonce is None else {NONCE_META_KEY: nonce},
    )


def turn(
    index: int,
    text: str,
    *,
    calls: Sequence[ToolCall] = (),
    results: Sequence[ToolResult] = (),
    broken: Sequence[str] = (),
) -> Turn:
    return Turn(
        index=index,
        completion=Completion(text=text),
        tool_calls=tuple(calls),
        tool_results=tuple(results),
        parse_failures=tuple(ParseFailure(raw=raw, reason=f"not JSON: {raw}") for raw in broken),
    )


def terms(success: float | None, **others: float | None) -> tuple[RewardTerm, ...]:
    weights = {"partial": 0.4, "penalty": -1.0}
    return (
        RewardTerm(name="success", value=success, weight=0.6),
        *(RewardTerm(name=k, value=v, weight=weights.get(k, 0.0)) for k, v in others.items()),
    )


def trajectory(
    task_id: str,
    *,
    success: float | None = 1.0,
    attempt: int = 0,
    complexity: str = "simple",
    turns: Sequence[Turn] = (),
    stop_reason: StopReason = StopReason.ANSWERED,
    final_answer: str | None = "179.66",
    question: str = QUESTION,
    **others: float | None,
) -> Trajectory:
    prompt: tuple[JsonObject, ...] = (
        {"role": "system", "content": "Tools: polygon.get_aggs"},
        {"role": "user", "content": question},
    )
    return Trajectory(
        id=f"{task_id}-{attempt}",
        task_id=task_id,
        group_id=task_id,
        attempt=attempt,
        complexity=complexity,
        prompt=prompt,
        turns=tuple(turns) or (turn(0, "179.66"),),
        final_answer=final_answer,
        stop_reason=stop_reason,
        reward_terms=terms(success, **({"partial": success, "penalty": 0.0} | others)),
    )
