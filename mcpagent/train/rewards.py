"""From trajectories to the rewards and advantages that training uses."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

from mcpagent.core.trajectory import Trajectory, TrajectoryGroup
from mcpagent.reward.rule import with_penalty
from mcpagent.train.advantages import group_advantages


@dataclass(frozen=True)
class Graded:
    """Trajectories that carry a gradient, with their advantages, and the groups they came from."""

    trajectories: list[Trajectory]
    advantages: list[float]
    uniform_groups: int


def apply_penalty(trajectories: Sequence[Trajectory], *, active: bool) -> list[Trajectory]:
    """The trajectories with penalties in force or not."""
    return [
        t.model_copy(update={"reward_terms": with_penalty(t.reward_terms, active=active)})
        for t in trajectories
    ]


def grade_groups(
    groups: Sequence[TrajectoryGroup], *, normalize: bool, control: str = "none", seed: int = 0
) -> Graded:
    """Advantages within each group. Uniform groups and unscored attempts carry no gradient and are left out.

    Controls: `random` draws the rewards instead of using them, which shows how much of a gain comes from the
    reward at all; `rejection` keeps the successes alone with advantage 1 (online rejection sampling, as in
    RAFT, arXiv 2304.06767), which shows what comparing attempts adds.
    """
    kept: list[Trajectory] = []
    advantages: list[float] = []
    uniform = 0
    for group in groups:
        rewards = [t.reward for t in group.trajectories]
        if control == "random":
            rng = random.Random(f"{seed}/{group.group_id}")
            rewards = [None if r is None else rng.random() for r in rewards]
        own = group_advantages(rewards, normalize=normalize)
        if control == "rejection":
            own = [1.0 if t.is_success else None for t in group.trajectories]
        if all(not a for a in own):
            uniform += 1
            continue
        for trajectory, advantage in zip(group.trajectories, own, strict=True):
            # Without a sampled token (the prompt alone filled the context) there is nothing to reinforce.
            if advantage is not None and any(t.completion.token_ids for t in trajectory.turns):
                kept.append(trajectory)
                advantages.append(advantage)
    return Graded(kept, advantages, uniform)
