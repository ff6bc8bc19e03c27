"""The grader of each reward method that a record may name (`core.registry.REWARD_METHODS`)."""

from __future__ import annotations

from collections.abc import Callable

from mcpagent.core.registry import REWARD_METHODS
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import RewardTerm
from mcpagent.errors import UserError
from mcpagent.reward.record import EpisodeRecord

Grader = Callable[[Task, EpisodeRecord], tuple[RewardTerm, ...]]


def grade(task: Task, record: EpisodeRecord) -> tuple[RewardTerm, ...]:
    """The terms of an ended episode, by the method that its task names. Raises UserError for a task that was
    built in code with a method that there is not; a record that is read cannot have one."""
    method = task.reward_spec.method
    if method not in REWARD_METHODS:
        raise UserError(
            f"{method!r} is not a reward method",
            where=f"task {task.id}: reward_spec.method",
            remedy=f"it is one of: {', '.join(REWARD_METHODS)}",
        )
    grader: Grader = REWARD_METHODS.load(method)
    return grader(task, record)
