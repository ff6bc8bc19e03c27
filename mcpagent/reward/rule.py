"""The default reward: deterministic, pure, the same for training and evaluation.

    R = 0.6 * success + 0.4 * partial - min(0.15, 0.04 * excess + 0.1 * invalid_rate)

Since both lie in 0..1, every success is worth at least 0.45 and every failure at most 0.40.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Sequence
from typing import Any

from mcpagent.core.answer_line import folded
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import GroundTruth, PlanStep, StateCheck, Task
from mcpagent.core.trajectory import RewardTerm, StopReason
from mcpagent.core.values import scalars
from mcpagent.reward.answer.verdict import Verdict, verdict_on
from mcpagent.reward.assignment import Assignment, assign
from mcpagent.reward.evidence import showing_calls
from mcpagent.reward.record import EpisodeRecord, RecordedCall, attempted_turns, state_readings
from mcpagent.reward.state import state_holds


def required_calls(
    truth: GroundTruth,
    calls: Sequence[RecordedCall],
    assignment: Assignment,
    read_only: Collection[str] | None,
    seen: Sequence[int | None] = (),
) -> float | None:
    """Return 1 if every call that the task requires was made; None if it requires none.

    Required are the tools of `must_call_tool`, and for an answer or an end state each step of the plan that
    may change something which no state check reads. Besides, every fact of the evidence must have been seen
    (`seen`, as `showing_calls` gives it); without evidence, some call in every user turn of the plan. What
    the plan does not find must have been looked for.
    """
    demands = [_was_called(name, truth, calls, assignment) for name in truth.success.must_call]
    demands += [position is not None for position in seen]
    if truth.tool_sequence and (truth.final_answer is not None or truth.state):
        demands += [index in assignment.exact for index in writing_steps(truth, read_only)]
        absent = [(at, step) for at, step in enumerate(truth.tool_sequence) if step.finds_nothing]
        demands += [at in assignment.exact or _was_sought(step, calls) for at, step in absent]
        if not truth.evidence:
            answered = {made.user_turn for made in _ordinary(calls, assignment)}
            answered |= {step.user_turn for _, step in absent}
            demands += [user_turn in answered for user_turn in _turns_with_calls(truth)]
    return float(all(demands)) if demands else None


def _was_sought(step: PlanStep, calls: Sequence[RecordedCall]) -> bool:
    """Return True if a call looked for what `step` does not find: it asked the server for one of its values,
    whatever came back, or got an ordinary result that is of no other thing, such as the list that has no such
    item: its arguments are parts of what is sought (a folder), or numbers if a name is sought (a page)."""
    sought = {folded(format_value(value)) for value in step.params.values()}
    names = any(isinstance(value, str) for value in step.params.values())

    def is_of_no_other(value: Any) -> bool:
        if isinstance(value, str):
            return any(folded(value) in each for each in sought)
        return isinstance(value, bool) or value is None or names

    def looks(made: RecordedCall) -> bool:
        given = list(scalars(made.call.arguments))
        asked = not sought.isdisjoint(folded(format_value(value)) for value in given)
        return asked or (not made.result.is_error and all(map(is_of_no_other, given)))

    at = (step.user_turn, step.server)
    return any(made.was_made and (made.user_turn, made.call.server) == at and looks(made) for made in calls)


def writing_steps(truth: GroundTruth, read_only: Collection[str] | None) -> list[int]:
    """Return the steps (by index in the plan) whose call changes something that only the call itself
    shows."""
    return [
        index
        for index, step in enumerate(truth.tool_sequence)
        if not is_optional(step)
        and step.server not in truth.state
        and f"{step.server}.{step.tool}" not in (read_only or ())
    ]


def stray_writes(
    truth: GroundTruth,
    calls: Sequence[RecordedCall],
    assignment: Assignment,
    writing: Collection[str],
) -> list[int]:
    """Return the calls (by index) that wrote what was not asked for: on a server whose state is not checked,
    any but the gold calls; on one whose state is, as many as are more than the plan has there. A state of
    which nothing else may change says so itself."""
    gold = set(assignment.exact.values())
    left = Counter(step.server for step in truth.tool_sequence if step.server in truth.state)
    strict = {server for server, checks in truth.state.items() if all(c.nothing_else_changed for c in checks)}
    stray: list[int] = []
    for position, made in enumerate(calls):
        server = made.call.server
        is_write = f"{server}.{made.call.tool}" in writing and made.was_made and not made.result.is_error
        if not is_write or server in strict:
            continue
        if server in truth.state:
            left[server] -= 1
            if left[server] < 0:
                stray.append(position)
        elif position not in gold:
            stray.append(position)
    return stray


def quiet_turns(truth: GroundTruth) -> tuple[int, ...]:
    """User turns in which a call is a failure: those that the task names. Where it names none and no state
    says what was done, those before the first call of the plan: the user has not yet said what it takes."""
    if truth.quiet_turns is not None or truth.state or truth.final_answer is None:
        return truth.quiet_turns or ()
    first = min((step.user_turn for step in truth.tool_sequence), default=0)
    return tuple(range(first))


def _turns_with_calls(truth: GroundTruth) -> list[int]:
    """The user turns of the plan, those apart whose end a state check reads: it fails if nothing was
    called in them."""
    read = {check.user_turn for checks in truth.state.values() for check in checks}
    turns = {step.user_turn for step in truth.tool_sequence if not is_optional(step)}
    return sorted(turns - read)


def _was_called(
    required: str, truth: GroundTruth, calls: Sequence[RecordedCall], assignment: Assignment
) -> bool:
    """`required` is `server.tool`, a tool or a server; if the plan has it, only those user turns count."""
    planned = {
        step.user_turn
        for step in truth.tool_sequence
        for gold in (step, *step.alternatives)
        if _is_named(required, gold.server, gold.tool)
    }
    return any(
        _is_named(required, made.call.server, made.call.tool) and (not planned or made.user_turn in planned)
        for made in _ordinary(calls, assignment)
    )


def _ordinary(calls: Sequence[RecordedCall], assignment: Assignment) -> list[RecordedCall]:
    """Calls with an ordinary result (a name with junk arguments is not a call), and gold calls, whatever the
    server answered."""
    gold = set(assignment.exact.values())
    return [
        made
        for position, made in enumerate(calls)
        if made.was_made and (position in gold or not made.result.is_error)
    ]


def _is_named(required: str, server: str, tool: str) -> bool:
    return required in {f"{server}.{tool}", tool, server}


def is_optional(step: PlanStep) -> bool:
    """Return whether an episode may leave a step of the plan out."""
    return bool((step.model_extra or {}).get("optional"))


SUCCESS_WEIGHT = 0.6
PARTIAL_WEIGHT = 0.4
PENALTY_WEIGHT = -1.0
MAX_PENALTY = 0.15
EXCESS_COST = 0.04
INVALID_COST = 0.1
FREE_OTHER_CALLS = 1  # exploratory calls a user turn
FREE_SEARCHES = 2  # a user turn, besides one for each call of its plan

WEIGHTS = {"success": SUCCESS_WEIGHT, "partial": PARTIAL_WEIGHT, "penalty": PENALTY_WEIGHT}
_PARTIAL_SHARES = {"S": 0.5, "coverage": 0.25, "answer": 0.25}
TERM_NAMES = (
    *("success", "partial", "penalty", "S", "coverage", "answer", "answer_form", "must_call", "state"),
    *("abstain", "stray_writes", "excess", "invalid_rate", "sequence_exact"),
)


def grade_by_rule(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """Return the terms of an ended episode, named and ordered as TERM_NAMES; only the first three have a
    weight.

    None is the value of a term that the task does not have. An episode in which the machinery failed or the
    deadline passed is unscored: every term is None.
    """
    if record.is_unscorable:
        return tuple(RewardTerm(name=name, value=None, weight=WEIGHTS.get(name, 0.0)) for name in TERM_NAMES)
    truth, calls = task.truth, record.calls
    assignment = assign(truth.tool_sequence, calls)
    seen = showing_calls(truth.evidence, calls, assignment.results)
    values = _components(task, record, calls, assignment, seen)
    is_missing = record.stop_reason is StopReason.NOT_RECORDED
    values["success"] = 0.0 if is_missing else _success(truth, values)
    values["partial"] = _partial(truth, values)
    values["excess"] = float(sum(_excess_by_turn(truth, record, assignment, seen)))
    invalid_attempts = sum(turn.invalid_attempts for turn in record.turns)
    values["invalid_rate"] = _invalid_rate(calls, invalid_attempts) or 0.0
    values["penalty"] = min(
        MAX_PENALTY, EXCESS_COST * values["excess"] + INVALID_COST * values["invalid_rate"]
    )
    return tuple(
        RewardTerm(name=name, value=values[name], weight=WEIGHTS.get(name, 0.0)) for name in TERM_NAMES
    )


def with_penalty(
    terms: Sequence[RewardTerm], *, active: bool, weight: float = PENALTY_WEIGHT
) -> tuple[RewardTerm, ...]:
    """`terms` with the penalty in force, by `weight`, or not (training starts it once the policy succeeds
    often enough); its value is kept either way."""
    in_force = weight if active else 0.0
    return tuple(t.model_copy(update={"weight": in_force}) if t.name == "penalty" else t for t in terms)


def turn_terms(task: Task, record: EpisodeRecord) -> tuple[tuple[RewardTerm, ...], ...]:
    """Return what each model step contributed, without weight: `coverage` sums up to the episode's, as does
    `excess`; `invalid_rate` is that of the step, None if it called nothing."""
    if record.is_unscorable:
        return tuple(() for _ in record.turns)
    calls = record.calls
    assignment = assign(task.truth.tool_sequence, calls)
    seen = showing_calls(task.truth.evidence, calls, assignment.results)
    parts = _earned(task.truth, calls, assignment, record.read_only, seen)
    earned = [0.0] * len(record.turns)
    for credit, position in parts:
        if position is not None:
            earned[calls[position].turn] += credit / len(parts)
    excess = _excess_by_turn(task.truth, record, assignment, seen)
    return tuple(
        (
            RewardTerm(name="coverage", value=earned[index] if parts else None),
            RewardTerm(name="excess", value=float(excess[index])),
            RewardTerm(
                name="invalid_rate",
                value=_invalid_rate([c for c in calls if c.turn == index], turn.invalid_attempts),
            ),
        )
        for index, turn in enumerate(record.turns)
    )


def _components(
    task: Task,
    record: EpisodeRecord,
    calls: Sequence[RecordedCall],
    assignment: Assignment,
    seen: Sequence[int | None],
) -> dict[str, float | None]:
    """S, coverage and the gates; None if the task has no such component or it was not read."""
    truth = task.truth
    plan = truth.tool_sequence
    attempted = attempted_turns(record)
    values: dict[str, float | None] = dict.fromkeys(TERM_NAMES)
    if truth.abstain:
        spoke = record.final_answer is not None and re.search(r"\w", record.final_answer) is not None
        values["S"] = float(not attempted and spoke and record.stop_reason is StopReason.ANSWERED)
        values["abstain"] = values["S"]
        values["sequence_exact"] = float(not attempted)
    elif plan:
        quiet = attempted <= {step.user_turn for step in plan}
        earned = _earned(truth, calls, assignment, record.read_only, seen)
        values["coverage"] = sum(credit for credit, _ in earned) / len(earned)
        values["S"] = float(quiet and all(credit == 1.0 for credit, _ in earned))
        values["sequence_exact"] = float(_is_sequence_exact(truth, record, calls, assignment))
    if truth.final_answer is not None:
        verdict = verdict_on(
            truth.final_answer, record.final_answer, assignment.results, on_line=truth.answer_line
        )
        values["answer"] = float(verdict is Verdict.RIGHT)
        values["answer_form"] = float(verdict.is_in_form) if truth.answer_line else None
    values["must_call"] = required_calls(truth, calls, assignment, record.read_only, seen)
    if quiet := quiet_turns(truth):
        values["abstain"] = float(attempted.isdisjoint(quiet))
    values["state"] = _state(truth, record, assignment)
    values["stray_writes"] = float(len(stray_writes(truth, calls, assignment, record.writing)))
    if values["stray_writes"] and plan:
        values["S"] = 0.0
    return values


def _earned(
    truth: GroundTruth,
    calls: Sequence[RecordedCall],
    assignment: Assignment,
    read_only: Collection[str] | None,
    seen: Sequence[int | None],
) -> list[tuple[float, int | None]]:
    """Return what each part of the way to the answer earned, in 0..1, and the call (by index) that earned it.
    The parts are the facts of the evidence and the steps that write; without evidence, the steps of the
    plan."""
    steps = range(len(truth.tool_sequence))
    if truth.evidence:
        steps = writing_steps(truth, read_only)
    return [
        *((float(position is not None), position) for position in seen),
        *((assignment.credit[step], assignment.credited_call.get(step)) for step in steps),
    ]


def _state(truth: GroundTruth, record: EpisodeRecord, assignment: Assignment) -> float | None:
    """Return 1 if every state check holds; None if the task has none, or the state was not read."""
    readings = state_readings(truth, record.state_results, record.state_before)
    if not readings:
        return None
    return float(
        all(
            _may_hold(check, truth, record) and state_holds(check, result, assignment.results, was)
            for _, check, result, was in readings
        )
    )


def _may_hold(check: StateCheck, truth: GroundTruth, record: EpisodeRecord) -> bool:
    """Return True if the check's user turn was reached, and something was called in it if the plan has calls
    there: what an earlier user turn did counts for that one only."""
    at = check.user_turn
    if at is None:
        return True
    is_planned = any(step.user_turn == at for step in truth.tool_sequence)
    turns = [turn for turn in record.turns if turn.user_turn == at]
    return bool(turns) and (not is_planned or any(turn.calls for turn in turns))


def _success(truth: GroundTruth, values: dict[str, float | None]) -> float | None:
    """Return 1 if every gate that applies holds; None if one of them could not be read, or there is none."""
    outcome = [values["state"]] * bool(truth.state) + [values["answer"]] * (truth.final_answer is not None)
    gates = [*outcome, *(v for name in ("must_call", "abstain") if (v := values[name]) is not None)]
    if not outcome and not truth.abstain and truth.tool_sequence:
        gates.append(values["S"])
    if not gates or any(gate is None for gate in gates):
        return None
    if values["stray_writes"]:
        return 0.0
    return float(all(gate == 1.0 for gate in gates))


def _partial(truth: GroundTruth, values: dict[str, float | None]) -> float | None:
    """The shares of what the task has; if it has none of them, success is all that can be said. An answer
    counts if all else holds: one that is not earned is worth no more than none. If no call is right there is
    nothing to do by halves. Who writes what was not asked for has half of it."""
    present = {name: value for name in _PARTIAL_SHARES if (value := values[name]) is not None}
    if truth.abstain or values["success"] is None or not present:
        return values["success"]
    if "answer" in present:
        present["answer"] = values["success"]
    total = sum(_PARTIAL_SHARES[name] for name in present)
    share = min(1.0, sum(_PARTIAL_SHARES[name] * value for name, value in present.items()) / total)
    return share / 2 if values["stray_writes"] else share


def _excess_by_turn(
    truth: GroundTruth, record: EpisodeRecord, assignment: Assignment, seen: Sequence[int | None]
) -> list[int]:
    """Return, by model step, repeats of a call beyond what the gold needs, and others beyond one a user turn;
    and searches for tools beyond what finding those of the plan takes. With evidence, calls that first show a
    fact are no others, and the steps of the plan that were not taken are as many free ones."""
    calls = record.calls
    gold = set(assignment.exact.values())
    made_before = {calls[position].identity for position in gold}
    showing = {position for position in seen if position is not None}
    free: Counter[int] = Counter()
    if truth.evidence:
        left = (step for index, step in enumerate(truth.tool_sequence) if index not in assignment.exact)
        free.update(step.user_turn for step in left)
    others: Counter[int] = Counter()
    excess = _excess_searches(truth, record)
    for position, made in enumerate(calls):
        if position in gold:
            continue
        if made.identity in made_before:
            excess[made.turn] += 1
            continue
        made_before.add(made.identity)
        if position not in showing:
            others[made.user_turn] += 1
            excess[made.turn] += others[made.user_turn] > FREE_OTHER_CALLS + free[made.user_turn]
    return excess


def _excess_searches(truth: GroundTruth, record: EpisodeRecord) -> list[int]:
    """Return, by model step, searches that repeat one of the episode, and others past the free ones of their
    user turn. Broken ones are in `invalid_rate`."""
    asked: set[tuple[int, str]] = set()
    made: Counter[int] = Counter()
    excess = [0] * len(record.turns)
    for index, turn in enumerate(record.turns):
        offers = sum(begun <= turn.user_turn for begun in truth.tools_added)  # with more tools, ask again
        free = FREE_SEARCHES + sum(step.user_turn == turn.user_turn for step in truth.tool_sequence)
        for call, result in turn.searches:
            if result.is_error:
                continue
            # The words alone: neither their order nor another `limit` asks for anything else.
            words = sorted(re.findall(r"\w+", str(call.arguments.get("query")).casefold()))
            query = (offers, " ".join(words))
            made[turn.user_turn] += query not in asked
            excess[index] += query in asked or made[turn.user_turn] > free
            asked.add(query)
    return excess


def _invalid_rate(calls: Sequence[RecordedCall], invalid_attempts: int) -> float | None:
    attempts = len(calls) + invalid_attempts
    return (sum(made.is_invalid for made in calls) + invalid_attempts) / attempts if attempts else None


def _is_sequence_exact(
    truth: GroundTruth, record: EpisodeRecord, calls: Sequence[RecordedCall], assignment: Assignment
) -> bool:
    """The calls are the plan, no more and no less, in its order; only a parallel group has none."""
    plan, exact = truth.tool_sequence, assignment.exact
    if record.parse_failure_count or not len(calls) == len(plan) == len(exact):
        return False
    order = sorted(range(len(plan)), key=lambda index: (plan[index].user_turn, plan[index].step))
    for rank, first in enumerate(order):
        for second in order[rank + 1 :]:
            group = plan[first].parallel_group
            together = group is not None and group == plan[second].parallel_group
            if exact[first] > exact[second] and not together:
                return False
    return True
