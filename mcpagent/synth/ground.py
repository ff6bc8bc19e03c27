"""A task is kept only after its gold plan has run for real: it is solvable, checkable and not yet done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from mcpagent.core.numbers import as_number
from mcpagent.core.placeholders import PlaceholderError, resolve, result_value
from mcpagent.core.tasks import AnswerCheck, PlanStep, StateCall, Task
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.core.trajectory import RewardTerm, StopReason
from mcpagent.reward.answer import state_holds
from mcpagent.reward.record import EpisodeRecord, RecordedTurn, state_checks
from mcpagent.reward.rule import grade
from mcpagent.synth.calls import CallCache, SynthSession
from mcpagent.synth.record import settle


class RejectCode(StrEnum):
    """Why a candidate did not become a task."""

    DUPLICATE = "duplicate"  # the same calls are asked for by a task that was tried before
    UNKNOWN_TOOL = "unknown_tool"  # the plan names a tool that no server offers
    SETUP_FAILED = "setup_failed"  # the initial state could not be made
    STEP_FAILED = "step_failed"  # a call of the plan did not succeed
    REFERENCE_UNRESOLVED = "reference_unresolved"  # a reference finds nothing in the real results
    ANSWER_INVALID = "answer_invalid"  # the computed answer is empty, or not a number where one is checked
    STATE_UNREADABLE = "state_unreadable"  # a state check's call did not succeed
    STATE_ALREADY_HOLDS = "state_already_holds"  # the end state is there before anything is done
    GOLD_FAILS = "gold_fails"  # the plan ran, but the reward does not give it 1.0


@dataclass(frozen=True)
class Rejection:
    """`detail` is for a person: which step, which value."""

    code: RejectCode
    detail: str


class _Rejected(Exception):
    def __init__(self, code: RejectCode, detail: str) -> None:
        super().__init__(detail)
        self.rejection = Rejection(code, detail)


_GoldCalls = tuple[tuple[PlanStep, ToolCall, ToolResult], ...]


@dataclass(frozen=True)
class _Run:
    """`results["step1"]` is what references to step 1 see."""

    results: dict[str, Any]
    calls: _GoldCalls


async def ground(draft: Task, cache: CallCache) -> Task | Rejection:
    """The settled task, or why there is none.

    The plan runs in a session of its own. Afterwards the end state must hold, in an untouched session it
    must not, and the gold episode must score exactly 1.0.
    """
    try:
        return await _ground(draft, cache)
    except _Rejected as rejected:
        return rejected.rejection
    except PlaceholderError as error:
        return Rejection(RejectCode.REFERENCE_UNRESOLVED, str(error))


async def _ground(draft: Task, cache: CallCache) -> Task:
    for step in draft.truth.tool_sequence:
        if cache.spec(step.server, step.tool) is None:
            raise _Rejected(RejectCode.UNKNOWN_TOOL, f"step {step.step}: {step.server}.{step.tool}")
    async with cache.session() as session:
        await _set_up(session, draft)
        run = await _run_plan(session, draft)
        task = settle(draft, run.results, verdicts={"executed_steps": len(run.calls), "gold_reward": 1.0})
        _check_answer(task.truth.final_answer)
        after = await _read_state(session, task)
    if task.truth.state:
        async with cache.session() as untouched:
            await _set_up(untouched, task)
            before = await _read_state(untouched, task)
        checks = [check for _, check in state_checks(task.truth)]
        if all(state_holds(c, r, run.results) for c, r in zip(checks, before, strict=True)):
            raise _Rejected(RejectCode.STATE_ALREADY_HOLDS, str(task.truth.state))
    terms = _terms(task, run.calls, after)
    if not math.isclose(_reward(terms), 1.0, abs_tol=1e-9):
        raise _Rejected(RejectCode.GOLD_FAILS, str({term.name: term.value for term in terms}))
    return task


def gold_record(task: Task, calls: _GoldCalls, *, state_results: tuple[ToolResult, ...]) -> EpisodeRecord:
    """The episode of a policy that makes the gold calls one a turn and gives the reference answer."""
    turns: list[RecordedTurn] = []
    for user_turn in range(len(task.truth.user_turns) + 1):
        for step, call, result in calls:
            if step.user_turn == user_turn:
                turns.append(RecordedTurn(user_turn=user_turn, calls=(call,), results=(result,)))
        turns.append(RecordedTurn(user_turn=user_turn, calls=(), results=()))
    return EpisodeRecord(
        turns=tuple(turns),
        final_answer=task.truth.reference_answer,
        stop_reason=StopReason.ANSWERED,
        state_results=state_results,
    )


async def _run_plan(session: SynthSession, task: Task) -> _Run:
    results: dict[str, Any] = {}
    calls: list[tuple[PlanStep, ToolCall, ToolResult]] = []
    for step in task.truth.tool_sequence:
        arguments = resolve(step.params, results)
        result = await session.call(server=step.server, tool=step.tool, arguments=arguments)
        if result.is_error or result.failure is not None:
            detail = f"step {step.step}: {step.server}.{step.tool}({arguments}): {result.content[:200]}"
            raise _Rejected(RejectCode.STEP_FAILED, detail)
        results[f"step{step.step}"] = result_value(result)
        call = ToolCall(id=result.call_id, server=step.server, tool=step.tool, arguments=arguments)
        calls.append((step, call, result))
    return _Run(results, tuple(calls))


async def _set_up(session: SynthSession, task: Task) -> None:
    for server, calls in task.truth.setup.items():
        for call in calls:
            await _ask(session, server, call, RejectCode.SETUP_FAILED)


async def _read_state(session: SynthSession, task: Task) -> tuple[ToolResult, ...]:
    """One result for each of `state_checks`, in order."""
    checks = state_checks(task.truth)
    return tuple([await _ask(session, s, c.call, RejectCode.STATE_UNREADABLE) for s, c in checks])


async def _ask(session: SynthSession, server: str, call: StateCall, code: RejectCode) -> ToolResult:
    result = await session.call(server=server, tool=call.tool, arguments=call.arguments)
    if result.is_error or result.failure is not None:
        raise _Rejected(code, f"{server}.{call.tool}({call.arguments}): {result.content[:200]}")
    return result


def _check_answer(check: AnswerCheck | None) -> None:
    if check is None:
        return
    values = check.value if isinstance(check.value, list) else [check.value]
    is_empty = not values or any(value is None or value == "" for value in values)
    if is_empty or (check.type == "number" and as_number(check.value) is None):
        raise _Rejected(RejectCode.ANSWER_INVALID, f"{check.type}: {check.value!r}")


def _terms(task: Task, calls: _GoldCalls, state_results: tuple[ToolResult, ...]) -> tuple[RewardTerm, ...]:
    return grade(task, gold_record(task, calls, state_results=state_results))


def _reward(terms: tuple[RewardTerm, ...]) -> float:
    """A term that did not run counts as nothing: gold that cannot be scored is not gold."""
    return sum(term.weight * (term.value or 0.0) for term in terms)
