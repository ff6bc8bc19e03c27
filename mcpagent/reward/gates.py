"""Which calls a task cannot be passed without, and in which user turns nothing may be called."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mcpagent.core.tasks import GroundTruth, PlanStep
from mcpagent.reward.assignment import Assignment
from mcpagent.reward.record import RecordedCall


def required_calls(
    truth: GroundTruth,
    calls: Sequence[RecordedCall],
    assignment: Assignment,
    read_only: Collection[str] | None,
) -> float | None:
    """1 where every call that the task requires was made; None where it requires none.

    Required are the tools of `must_call_tool`, and beside an answer or an end state: each step of the plan
    that may change something which no state check reads, and some call in every user turn of the plan.
    """
    demands = [_was_called(name, truth, calls, assignment) for name in truth.success.must_call]
    if truth.tool_sequence and (truth.final_answer is not None or truth.state):
        demands += [index in assignment.exact for index in writing_steps(truth, read_only)]
        answered = {made.user_turn for made in _ordinary(calls, assignment)}
        demands += [user_turn in answered for user_turn in _turns_with_calls(truth)]
    return float(all(demands)) if demands else None


def writing_steps(truth: GroundTruth, read_only: Collection[str] | None) -> list[int]:
    """The steps (by index in the plan) whose call changes something that only the call itself shows."""
    return [
        index
        for index, step in enumerate(truth.tool_sequence)
        if not _is_optional(step)
        and step.server not in truth.state
        and f"{step.server}.{step.tool}" not in (read_only or ())
    ]


def quiet_turns(truth: GroundTruth) -> tuple[int, ...]:
    """User turns in which a call is a failure: those that the task names. Where it names none and no state
    says what was done, those before the first call of the plan: the user has not yet said what it takes."""
    if truth.quiet_turns is not None or truth.state or truth.final_answer is None:
        return truth.quiet_turns or ()
    first = min((step.user_turn for step in truth.tool_sequence), default=0)
    return tuple(range(first))


def _turns_with_calls(truth: GroundTruth) -> list[int]:
    """The user turns of the plan, those apart whose end a state check reads: it fails where nothing was
    called in them."""
    read = {check.user_turn for checks in truth.state.values() for check in checks}
    turns = {step.user_turn for step in truth.tool_sequence if not _is_optional(step)}
    return sorted(turns - read)


def _was_called(
    wanted: str, truth: GroundTruth, calls: Sequence[RecordedCall], assignment: Assignment
) -> bool:
    """`wanted` is `server.tool`, a tool or a server; where the plan has it, it counts in those user turns."""
    planned = {
        step.user_turn
        for step in truth.tool_sequence
        for gold in (step, *step.alternatives)
        if _is_named(wanted, gold.server, gold.tool)
    }
    return any(
        _is_named(wanted, made.call.server, made.call.tool) and (not planned or made.user_turn in planned)
        for made in _ordinary(calls, assignment)
    )


def _ordinary(calls: Sequence[RecordedCall], assignment: Assignment) -> list[RecordedCall]:
    """Calls with an ordinary result (a name with junk arguments is no call), and gold calls, whatever the
    server answered."""
    gold = set(assignment.exact.values())
    return [
        made
        for position, made in enumerate(calls)
        if made.was_made and (position in gold or not made.result.is_error)
    ]


def _is_named(wanted: str, server: str, tool: str) -> bool:
    return wanted in {f"{server}.{tool}", tool, server}


def _is_optional(step: PlanStep) -> bool:
    return bool((step.model_extra or {}).get("optional"))
