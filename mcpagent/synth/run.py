"""The gold plan of a task, run for real: in a session of its own, whole or with steps left out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any

from mcpagent.core.placeholders import format_value, resolve, result_value
from mcpagent.core.tasks import PlanStep, StateCall, Task
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.core.trajectory import RewardTerm, StopReason
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, checks_with_before, state_checks
from mcpagent.reward.registry import grade
from mcpagent.reward.rule import total_reward
from mcpagent.synth.calls import CallCache, SynthSession
from mcpagent.synth.stages import RejectCode, Rejected

GoldCalls = tuple[tuple[PlanStep, ToolCall, ToolResult], ...]


@dataclass(frozen=True, kw_only=True)
class GoldRun:
    """`results["step1"]` is what references to step 1 see; `state` are the results of the state checks, in
    the order of `state_checks`."""

    results: dict[str, Any]
    calls: GoldCalls
    state: tuple[ToolResult, ...]
    before: tuple[ToolResult, ...] = ()  # the state before the first call, where a check compares with it

    def answers(self, is_read_only: Callable[[str, str], bool]) -> list[Any]:
        """What a repetition has to give again: everything that references see of what was read. The receipt
        of a change (an id, a time) may differ."""
        return [
            result_value(result) if is_read_only(call.server, call.tool) else "done"
            for _, call, result in self.calls
        ]


async def run_plan(session: SynthSession, task: Task, *, without: Collection[int] = ()) -> GoldRun:
    """Set the state up, and for each user turn make its gold calls, those of the steps in `without` apart,
    and read the state. Raises Rejected, and PlaceholderError for a reference that does not resolve."""
    truth = task.truth
    for server, calls in truth.setup.items():
        for call in calls:
            await ask(session, server, call, RejectCode.SETUP_FAILED)
    before = [
        await ask(session, server, check.call, RejectCode.STATE_UNREADABLE)
        for server, check in checks_with_before(truth)
    ]
    results: dict[str, Any] = {}
    made: list[tuple[PlanStep, ToolCall, ToolResult]] = []
    state: list[ToolResult] = []
    for user_turn in (*range(len(truth.user_turns) + 1), None):
        for step in truth.tool_sequence:
            if step.user_turn == user_turn and step.step not in without:
                made.append(await _carry_out(session, step, results))
        for server, check in state_checks(truth):
            if check.user_turn == user_turn:
                state.append(await ask(session, server, check.call, RejectCode.STATE_UNREADABLE))
    return GoldRun(results=results, calls=tuple(made), state=tuple(state), before=tuple(before))


async def replay(
    cache: CallCache, task: Task, *, generation: int = 0, without: Collection[int] = ()
) -> GoldRun:
    """The plan in a new session."""
    async with cache.session(generation=generation) as session:
        return await run_plan(session, task, without=without)


async def _carry_out(
    session: SynthSession, step: PlanStep, results: dict[str, Any]
) -> tuple[PlanStep, ToolCall, ToolResult]:
    """Make the call of a step; what it finds joins `results`."""
    arguments = resolve(step.params, results)
    result = await session.call(server=step.server, tool=step.tool, arguments=arguments)
    if result.is_error or result.failure is not None:
        detail = f"step {step.step}: {step.server}.{step.tool}({arguments}): {result.content[:200]}"
        raise Rejected(RejectCode.STEP_FAILED, detail)
    results[f"step{step.step}"] = result_value(result)
    return step, ToolCall(id=result.call_id, server=step.server, tool=step.tool, arguments=arguments), result


async def ask(session: SynthSession, server: str, call: StateCall, code: RejectCode) -> ToolResult:
    result = await session.call(server=server, tool=call.tool, arguments=call.arguments)
    if result.is_error or result.failure is not None:
        raise Rejected(code, f"{server}.{call.tool}({call.arguments}): {result.content[:200]}")
    return result


def gold_record(
    task: Task,
    run: GoldRun,
    *,
    answer: str | None,
    read_only: frozenset[str],
    extra: tuple[RecordedTurn, ...] = (),
) -> EpisodeRecord:
    """The episode of a policy that makes the calls of `run` one a turn and says `answer` at the end; `extra`
    are turns before those of the plan, `read_only` the tools (`server.tool`) that only read."""
    turns: list[RecordedTurn] = list(extra)
    for user_turn in range(len(task.truth.user_turns) + 1):
        for step, call, result in run.calls:
            if step.user_turn == user_turn:
                turns.append(RecordedTurn(user_turn=user_turn, calls=(call,), results=(result,)))
        turns.append(RecordedTurn(user_turn=user_turn, calls=(), results=()))
    return EpisodeRecord(
        turns=tuple(turns),
        final_answer=answer,
        stop_reason=StopReason.ANSWERED,
        state_results=run.state,
        state_before=run.before,
        read_only=read_only,
    )


def score(task: Task, record: EpisodeRecord) -> dict[str, float | None]:
    """The terms of an episode by name, and its `reward`."""
    terms: tuple[RewardTerm, ...] = grade(task, record)
    return {**{term.name: term.value for term in terms}, "reward": total_reward(terms)}


def final_words(task: Task, results: Mapping[str, Any]) -> str | None:
    """What a right episode says at the end: the reference answer, else what the check asks for. None for a
    task that asks for nothing in particular, or by a pattern only. Raises PlaceholderError."""
    truth = task.truth
    if truth.reference_answer is not None:
        return format_value(resolve(truth.reference_answer, results))
    check = truth.final_answer
    if check is None or check.type == "regex":
        return None
    value = resolve(check.value, results)
    return " ".join(map(format_value, value)) if isinstance(value, list) else format_value(value)
