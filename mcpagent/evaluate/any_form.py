"""Success in any form: an upper bound of what a model may know, for evaluations alone.

An untrained model loses by form what it may know. Here the right value may stand anywhere in the last
message, so that a list of guesses would pass too: no reward reads this.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from mcpagent.core.answer_line import NO_ANSWER, as_decimal, folded, roundings, written_answer
from mcpagent.core.placeholders import format_value
from mcpagent.core.tasks import AnswerCheck, Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.core.values import as_number, is_json_array, is_json_object
from mcpagent.reward.answer.shown import stands_in
from mcpagent.reward.answer.verdict import accepted_values
from mcpagent.reward.assignment import assign
from mcpagent.reward.record import grade, record_of


def success_in_any_form(task: Task, trajectory: Trajectory) -> float:
    """Return 1 for a success, and for an episode that would be one if its last message, in which the right
    value stands, were the answer line with that value; else 0, also for an unscored episode."""
    truth, check, message = task.truth, task.truth.final_answer, trajectory.final_answer
    if trajectory.is_success is not False or check is None or message is None or not truth.answer_line:
        return float(bool(trajectory.is_success))
    record = record_of(task, trajectory)
    for value in accepted_values(check, assign(truth.tool_sequence, record.calls).results):
        if _stands(check, value, message):
            told = replace(record, final_answer=f"Answer: {written_answer(check, value)}")
            return next(float(term.value == 1.0) for term in grade(task, told) if term.name == "success")
    return 0.0


def _stands(check: AnswerCheck, value: Any, message: str) -> bool:
    """Return True if a message has every part of a value, as it is or as the question asks for it."""
    if is_json_object(value):
        pairs = value.items()
        return all(stands_in(thing, message) and _stands(check, item, message) for thing, item in pairs)
    if is_json_array(value):
        return all(_stands(check, item, message) for item in value)
    if check.type in ("none", "abstention") or value is None:
        return stands_in(NO_ANSWER, message)
    if check.type == "yes_no" or isinstance(value, bool):
        words = ("yes", "true") if folded(format_value(value)) in ("yes", "true") else ("no", "false")
        return any(stands_in(word, message) for word in words)
    forms: list[Any] = [value, written_answer(check, value)]
    is_number = isinstance(value, int | float) or check.type == "number"
    if is_number and (number := as_number(value)) is not None:
        rounded = () if check.decimals is None else roundings(as_decimal(value), check.decimals)
        forms = [number, *map(float, rounded)]
    return any(stands_in(form, message, tolerance=check.tolerance) for form in forms)
