"""From trajectories to the rewards that training uses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mcpagent.core.trajectory import StopReason, Trajectory, TrajectoryGroup, Turn
from mcpagent.reward.rule import EXCESS_COST, INVALID_COST, with_penalty
from mcpagent.train.batch.samples import sample_from_trajectory
from mcpagent.train.objective.advantages import (
    CreditSettings,
    GradedAttempt,
    GradedBatch,
    GradedGroup,
    has_signal,
    spread_of_batch,
)

_TRUNCATED = (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """What running long costs, in sampled tokens of an episode (DAPO, arXiv 2503.14476, section 3.4).

    `penalty` is the reward that is lost at `max_tokens`; it grows linearly over the `buffer_tokens` before.
    `mask_truncated` leaves out attempts that were cut off; their reward still counts for the group.
    """

    penalty: float = 0.0
    max_tokens: int = 1
    buffer_tokens: int = 1
    mask_truncated: bool = False

    def cost(self, tokens: int) -> float:
        """The reward that an episode of so many sampled tokens loses."""
        over = tokens - (self.max_tokens - self.buffer_tokens)
        return self.penalty * min(1.0, max(0.0, over / self.buffer_tokens))


@dataclass(frozen=True, kw_only=True)
class GradeSettings:
    """How attempts become rewards, and rewards become credit.

    Controls: `random` draws the rewards instead of using them, which shows how much of a gain comes from the
    reward at all; `rejection` keeps the successes alone with advantage 1 (online rejection sampling, as in
    RAFT, arXiv 2304.06767), which shows what comparing attempts adds; `negated` rewards what fails, and must
    make the policy worse.
    """

    credit: CreditSettings = field(default_factory=CreditSettings)
    overlong: Overlong = field(default_factory=Overlong)
    control: Literal["none", "random", "rejection", "negated"] = "none"


def apply_penalty(trajectories: Sequence[Trajectory], *, active: bool) -> list[Trajectory]:
    """The trajectories with penalties in force or not."""
    return [
        t.model_copy(update={"reward_terms": with_penalty(t.reward_terms, active=active)})
        for t in trajectories
    ]


def grade_groups(groups: Sequence[TrajectoryGroup], *, settings: GradeSettings, seed: int = 0) -> GradedBatch:
    """What `update_policy` takes. `groups[i].has_signal` of the result says whether the i-th group can teach
    anything: dynamic sampling draws others in place of those that cannot."""
    credit = settings.credit
    if settings.control == "rejection":
        credit = replace(credit, advantage="given")
    graded: list[GradedGroup] = []
    for group in groups:
        rng = random.Random(f"{seed}/{group.group_id}")
        attempts = tuple(_graded(t, settings, rng) for t in group.trajectories)
        graded.append(
            GradedGroup(group_id=group.group_id, attempts=attempts, has_signal=has_signal(attempts, credit))
        )
    batch_std = spread_of_batch([group.attempts for group in graded], credit)
    return GradedBatch(groups=tuple(graded), settings=credit, batch_std=batch_std)


def _graded(trajectory: Trajectory, settings: GradeSettings, rng: random.Random) -> GradedAttempt:
    sampled = [turn for turn in trajectory.turns if turn.completion.token_ids]
    reward = trajectory.reward
    if settings.control == "rejection":
        reward = 1.0 if trajectory.is_success else None
    elif reward is not None:
        if settings.control == "random":
            reward = rng.random()
        elif settings.control == "negated":
            reward = -reward
        reward -= settings.overlong.cost(sum(len(turn.completion.token_ids) for turn in sampled))
    # Without a sampled token (the prompt alone filled the context) there is nothing to reinforce.
    is_masked = settings.overlong.mask_truncated and trajectory.stop_reason in _TRUNCATED
    sample = sample_from_trajectory(trajectory) if sampled and not is_masked else None
    with_costs = any(t.name == "penalty" and t.weight for t in trajectory.reward_terms)
    return GradedAttempt(
        reward=reward,
        sample=sample,
        turn_rewards_K=tuple(_turn_reward(turn, with_costs=with_costs) for turn in sampled),
    )


def _turn_reward(turn: Turn, *, with_costs: bool) -> float:
    """The share of the plan that the turn fulfilled, less what its calls cost where penalties are in force.
    A term that the turn does not have adds nothing."""
    values = {t.name: t.value for t in turn.reward_terms if t.value is not None}
    earned = values.get("coverage", 0.0)
    if with_costs:
        earned -= EXCESS_COST * values.get("excess", 0.0) + INVALID_COST * values.get("invalid_rate", 0.0)
    return earned
