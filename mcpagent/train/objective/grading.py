"""Trajectories become graded groups: rewards with penalties, costs and controls in force."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from mcpagent.core.trajectory import StopReason, Trajectory, TrajectoryGroup, Turn
from mcpagent.reward.rule import EXCESS_COST, INVALID_COST, PENALTY_WEIGHT, with_penalty
from mcpagent.train.batch.samples import sample_from_trajectory
from mcpagent.train.objective.advantages import CreditSettings, GradedAttempt, GradedBatch, graded_batch

TRUNCATED = (StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW)  # episodes that were cut off


@dataclass(frozen=True, kw_only=True)
class Overlong:
    """The cost of running long, in sampled tokens of an episode (DAPO, arXiv 2503.14476, section 3.4).

    `penalty` is the reward that is lost at `max_tokens`; it grows linearly over the `buffer_tokens` before.
    `mask_truncated` leaves out attempts that were cut off; their reward still counts for the group.
    """

    penalty: float = 0.0
    max_tokens: int = 1
    buffer_tokens: int = 1
    mask_truncated: bool = False

    def cost(self, tokens: int) -> float:
        """Return the reward that an episode of so many sampled tokens loses."""
        over = tokens - (self.max_tokens - self.buffer_tokens)
        return self.penalty * min(1.0, max(0.0, over / self.buffer_tokens))


@dataclass(frozen=True, kw_only=True)
class GradeSettings:
    """The settings by which attempts become rewards, and rewards credit.

    Controls: `random` draws the rewards instead of using them, which shows how much of a gain comes from the
    reward at all; `rejection` keeps the successes alone with advantage 1 (online rejection sampling, as in
    RAFT, arXiv 2304.06767), which shows what comparing attempts adds; `negated` rewards what fails, and must
    make the policy worse.
    """

    credit: CreditSettings = field(default_factory=CreditSettings)
    overlong: Overlong = field(default_factory=Overlong)
    control: Literal["none", "random", "rejection", "negated"] = "none"


def apply_penalty(
    trajectories: Sequence[Trajectory], *, active: bool, weight: float = PENALTY_WEIGHT
) -> list[Trajectory]:
    """Return the trajectories with penalties in force, by `weight` (`reward.weights.penalty`), or not."""
    return [
        t.model_copy(update={"reward_terms": with_penalty(t.reward_terms, active=active, weight=weight)})
        for t in trajectories
    ]


def grade_groups(groups: Sequence[TrajectoryGroup], *, settings: GradeSettings, seed: int = 0) -> GradedBatch:
    """Return what `update_policy` takes. `groups[i].has_signal` of the result says whether the i-th group can
    teach anything: dynamic sampling draws others in place of those that cannot."""
    credit = settings.credit
    if settings.control == "rejection":
        credit = replace(credit, advantage="given")
    graded: dict[str, list[GradedAttempt]] = {}
    for group in groups:
        rng = random.Random(f"{seed}/{group.group_id}")
        graded[group.group_id] = [_graded(t, settings, rng) for t in group.trajectories]
    return graded_batch(graded, credit)


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
    is_masked = settings.overlong.mask_truncated and trajectory.stop_reason in TRUNCATED
    sample = sample_from_trajectory(trajectory) if sampled and not is_masked else None
    cost_weight = -sum(t.weight for t in trajectory.reward_terms if t.name == "penalty")
    return GradedAttempt(
        reward=reward,
        sample=sample,
        turn_rewards_K=tuple(_turn_reward(turn, cost_weight=cost_weight) for turn in sampled),
    )


def _turn_reward(turn: Turn, *, cost_weight: float) -> float:
    """The share of the plan that the turn fulfilled, less what its calls cost by `cost_weight`, which is 0
    if penalties are not in force. A term that the turn does not have adds nothing."""
    values = {t.name: t.value for t in turn.reward_terms if t.value is not None}
    earned = values.get("coverage", 0.0)
    if cost_weight:
        costs = EXCESS_COST * values.get("excess", 0.0) + INVALID_COST * values.get("invalid_rate", 0.0)
        earned -= cost_weight * costs
    return earned
