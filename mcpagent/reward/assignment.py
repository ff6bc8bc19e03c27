"""Which call of an episode plays which gold call: each used once, inside its user turn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from mcpagent.core.matching import (
    argument_score,
    call_matches,
    inputs_are_known,
    match_rules,
    resolve_params,
    resolve_rules,
    same_tool,
)
from mcpagent.core.placeholders import PlaceholderError, references
from mcpagent.core.shown_values import shown_value
from mcpagent.core.tasks import PlanCall, PlanStep
from mcpagent.reward.record import RecordedCall

NAME_CREDIT = 0.2
ARGUMENT_CREDIT = 0.8
_SEARCH_NODES = 500  # bounds the search where loose rules meet many calls; the first dive is already good


@dataclass(frozen=True, kw_only=True)
class Assignment:
    """`exact` maps gold steps (by index in the plan) to the calls (by index) that carry them out; `credit`
    holds for every gold step what its best call earned, in 0..1 (1 for the exact ones)."""

    exact: Mapping[int, int]
    credit: tuple[float, ...]
    credited_call: Mapping[int, int]
    results: Mapping[str, Any]  # "step1": the result of the call that carried out step 1


def assign(plan: Sequence[PlanStep], calls: Sequence[RecordedCall]) -> Assignment:
    """Return the assignment with the most gold calls carried out exactly; the rest is credited by best match.

    References in gold parameters are resolved against the results of the calls assigned to earlier steps.
    Order matters only there: a call that uses a result has to come in a later model step.
    """
    exact = _Search(plan, calls).best()
    credit = dict.fromkeys(exact, 1.0)
    credited = dict(exact)
    _credit_rest(plan, calls, exact, credit, credited)
    return Assignment(
        exact=exact,
        credit=tuple(credit.get(index, 0.0) for index in range(len(plan))),
        credited_call=credited,
        results=_results(plan, calls, exact),
    )


class _Search:
    """Depth-first over the gold steps in order of execution, calls first and skipping last, with a bound."""

    def __init__(self, plan: Sequence[PlanStep], calls: Sequence[RecordedCall]) -> None:
        self._plan = plan
        self._calls = calls
        self._order = sorted(range(len(plan)), key=lambda i: (plan[i].user_turn, plan[i].step))
        self._best: dict[int, int] = {}
        self._nodes_left = _SEARCH_NODES
        self._independent: dict[int, list[int]] = {}

    def best(self) -> dict[int, int]:
        self._descend(0, {})
        return self._best

    def _descend(self, depth: int, assigned: dict[int, int]) -> None:
        if len(assigned) > len(self._best):
            self._best = dict(assigned)
        remaining = len(self._order) - depth
        if self._nodes_left <= 0 or len(assigned) + remaining <= len(self._best):
            return
        self._nodes_left -= 1
        index = self._order[depth]
        for call in self._candidates(index, assigned):
            self._descend(depth + 1, {**assigned, index: call})
        self._descend(depth + 1, assigned)

    def _candidates(self, index: int, assigned: Mapping[int, int]) -> list[int]:
        """Unused calls that carry out the step, those without an error first. Of calls that are equal in
        question and answer only the first is tried."""
        used = set(assigned.values())
        seen: set[tuple[str, str]] = set()
        candidates: list[int] = []
        for position in self._fitting(index, assigned):
            made = self._calls[position]
            twin = (made.identity, made.result.content)
            if position not in used and twin not in seen:
                seen.add(twin)
                candidates.append(position)
        return sorted(candidates, key=lambda position: (self._calls[position].result.is_error, position))

    def _fitting(self, index: int, assigned: Mapping[int, int]) -> list[int]:
        """Calls that carry out the step; the same under every choice if it refers to no other step."""
        if index in self._independent:
            return self._independent[index]
        step = self._plan[index]
        fitting = [
            position
            for position, made in enumerate(self._calls)
            if made.user_turn == step.user_turn
            and made.was_made
            and _carries_out(step, made, _results(self._plan, self._calls, assigned, before_turn=made.turn))
        ]
        if not _uses_results(step):
            self._independent[index] = fitting
        return fitting


def _credit_rest(
    plan: Sequence[PlanStep],
    calls: Sequence[RecordedCall],
    exact: Mapping[int, int],
    credit: dict[int, float],
    credited: dict[int, int],
) -> None:
    """Give each step that no call carried out the best call that is left, highest credit first."""
    taken = set(exact.values())
    offers: list[tuple[float, int, int]] = []
    for index, step in enumerate(plan):
        if index in exact:
            continue
        for position, made in enumerate(calls):
            if position in taken or made.user_turn != step.user_turn:
                continue
            results = _results(plan, calls, exact, before_turn=made.turn)
            earned = max(_partial_credit(step, gold, made, results) for gold in _golds(step))
            if earned > 0:
                offers.append((-earned, index, position))
    for negative, index, position in sorted(offers):
        if index not in credited and position not in taken:
            credit[index] = -negative
            credited[index] = position
            taken.add(position)


def _carries_out(step: PlanStep, made: RecordedCall, results: Mapping[str, Any]) -> bool:
    """`results` are those that were known when the call was written: a right guess does not count."""
    return any(
        inputs_are_known(gold, results) and call_matches(gold, *_resolved(step, gold, results), made.call)
        for gold in _golds(step)
    )


def _partial_credit(step: PlanStep, gold: PlanCall, made: RecordedCall, results: Mapping[str, Any]) -> float:
    if not same_tool(gold, made.call):
        return 0.0
    score = argument_score(*_resolved(step, gold, results), made.call.arguments)
    return NAME_CREDIT + ARGUMENT_CREDIT * score


def _golds(step: PlanStep) -> tuple[PlanCall, ...]:
    return (step, *step.alternatives)


def _resolved(
    step: PlanStep, gold: PlanCall, results: Mapping[str, Any]
) -> tuple[dict[str, Any], Mapping[str, Any]]:
    return resolve_params(gold.params, results), resolve_rules(match_rules(step, gold), results)


def _results(
    plan: Sequence[PlanStep],
    calls: Sequence[RecordedCall],
    assigned: Mapping[int, int],
    *,
    before_turn: int | None = None,
) -> dict[str, Any]:
    return {
        f"step{plan[index].step}": shown_value(calls[position].result)
        for index, position in assigned.items()
        if before_turn is None or calls[position].turn < before_turn
    }


def depends_on(step: PlanStep) -> set[int]:
    """Return numbers of the steps whose results `step` or one of its alternatives uses. Raises
    PlaceholderError."""
    used: set[int] = set()
    for gold in _golds(step):
        used |= references(gold.params) | references(dict(match_rules(step, gold)))
    return used


def _uses_results(step: PlanStep) -> bool:
    """A malformed reference counts as one: it never resolves, and its step is never carried out."""
    try:
        return bool(depends_on(step))
    except PlaceholderError:
        return True
