"""What the verdict of a judge is worth: the methods `judge` and `rule+judge`, and whom they ask.

All of it is pure: the verdict is part of the record. `mcpagent.judge` asks the model.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Protocol

from mcpagent.core.tasks import GroundTruth, Task
from mcpagent.core.trajectory import Judgement, RewardTerm, StopReason
from mcpagent.reward.record import EpisodeRecord
from mcpagent.reward.rule import INVALID_COST, MAX_PENALTY, grade_by_rule

JUDGE_TERM = "judge"  # the verdict; it counts by the success that it decides
JUDGED_METHODS = ("judge", "rule+judge")


class Judge(Protocol):
    """Judges an ended episode."""

    async def judge(self, task: Task, record: EpisodeRecord) -> Judgement | None:
        """Return None if the judge has no say in the episode. Errors are in the result, not raised."""
        ...


def rubric_text(task: Task) -> str:
    """Return the task's own rubric: its text, or its criteria as JSON. Empty if it has none."""
    rubric = task.truth.judge_rubric
    if isinstance(rubric, dict):
        return json.dumps(rubric, ensure_ascii=False, indent=1) if rubric else ""
    return (rubric or "").strip()


def is_left_to_judge(task: Task) -> bool:
    """Return whether a judge decides about a success: with `rule+judge`, if the answer has no type."""
    method = task.reward_spec.method
    return method == "judge" or (method == "rule+judge" and task.truth.final_answer is None)


def is_open_to_judge(task: Task, record: EpisodeRecord) -> bool:
    """Return whether a judge has a say: it decides about the task, the episode can be scored, and with
    `rule+judge` the rule finds nothing wrong with what it checks."""
    if not is_left_to_judge(task) or record.is_unscorable or record.stop_reason is StopReason.NOT_RECORDED:
        return False
    return _is_judge_alone(task) or _value(grade_by_rule(task, record), "success") == 1.0


def grade_by_judge(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """Return the terms if the judge decides success; without a verdict the episode is unscored. Calls beyond
    a plan are counted if there is a plan."""
    terms, verdict = grade_by_rule(task, record), _verdict(record)
    if record.is_unscorable:
        return _decided(terms, None)
    success = 0.0 if record.stop_reason is StopReason.NOT_RECORDED else verdict
    values = {"success": success, "partial": success}
    if not task.truth.tool_sequence:
        values["excess"] = None
        values["penalty"] = min(MAX_PENALTY, INVALID_COST * (_value(terms, "invalid_rate") or 0.0))
    return _decided(terms, verdict, **values)


def grade_by_rule_and_judge(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """Return the terms of the rule, which alone decides about calls, evidence, state and an answer with a
    type. The success that it finds without one is the judge's to grant; without a verdict the episode is
    unscored."""
    if not is_left_to_judge(task):
        return grade_by_rule(task, record)
    if _is_judge_alone(task):
        return grade_by_judge(task, record)
    if not is_open_to_judge(task, record):
        return _decided(grade_by_rule(task, record), None)
    verdict = _verdict(record)
    return _decided(grade_by_rule(task, record), verdict, success=verdict)


def _is_judge_alone(task: Task) -> bool:
    return task.reward_spec.method == "judge" or not _has_checks(task.truth)


def _has_checks(truth: GroundTruth) -> bool:
    return any((truth.tool_sequence, truth.final_answer, truth.state, truth.success.must_call, truth.abstain))


def _decided(
    terms: Sequence[RewardTerm], verdict: float | None, **values: float | None
) -> tuple[RewardTerm, ...]:
    changed = (t.model_copy(update={"value": values[t.name]}) if t.name in values else t for t in terms)
    return (*changed, RewardTerm(name=JUDGE_TERM, value=verdict))


def _verdict(record: EpisodeRecord) -> float | None:
    judgement = record.judgement
    return None if judgement is None or judgement.verdict is None else float(judgement.verdict)


def _value(terms: Sequence[RewardTerm], name: str) -> float | None:
    return next((term.value for term in terms if term.name == name), None)
