"""From graded attempts to what carries a gradient."""

from __future__ import annotations

import pytest

from mcpagent.core.trajectory import RewardTerm, TrajectoryGroup
from mcpagent.reward.rule import PENALTY_WEIGHT
from mcpagent.train.rewards import apply_penalty, grade_groups
from tests.train.world import trajectory


def group(name: str, *rewards: float | None, **options: object) -> TrajectoryGroup:
    return TrajectoryGroup(
        group_id=name, trajectories=tuple(trajectory(name, i, r) for i, r in enumerate(rewards))
    )


def test_uniform_groups_and_unscored_attempts_are_left_out() -> None:
    graded = grade_groups(
        [group("a", 1.0, 0.0, None, 1.0, 0.0), group("b", 1.0, 1.0), group("c", None, 0.5)], normalize=True
    )
    # Group a without its hole: mean 0.5, standard deviation 0.5.
    assert [t.id for t in graded.trajectories] == ["a#0", "a#1", "a#3", "a#4"]
    assert graded.advantages == [1.0, -1.0, 1.0, -1.0]
    assert graded.uniform_groups == 2


def test_an_attempt_without_a_sampled_token_counts_for_its_group_but_is_not_trained_on() -> None:
    silent = TrajectoryGroup(
        group_id="a", trajectories=(trajectory("a", 0, 1.0), trajectory("a", 1, 0.0, tokens=((),)))
    )
    graded = grade_groups([silent], normalize=True)
    assert ([t.id for t in graded.trajectories], graded.advantages) == (["a#0"], [1.0])


def test_random_rewards_depend_on_seed_and_group_and_not_on_the_real_ones() -> None:
    good, bad = group("a", 1.0, 1.0, 0.0), group("a", 0.0, 0.3, 0.3)
    draws = [grade_groups([g], normalize=True, control="random", seed=1).advantages for g in (good, bad)]
    assert draws[0] == draws[1]
    assert sum(draws[0]) == pytest.approx(0.0, abs=1e-9)
    assert draws[0] != grade_groups([good], normalize=True, control="random", seed=2).advantages
    assert (
        draws[0]
        != grade_groups([group("b", 1.0, 1.0, 0.0)], normalize=True, control="random", seed=1).advantages
    )


def test_a_penalty_enters_the_reward_only_while_it_is_in_force() -> None:
    plain = trajectory("a", 0, 1.0)
    punished = plain.model_copy(
        update={"reward_terms": (*plain.reward_terms, RewardTerm(name="penalty", value=0.1))}
    )
    (off,) = apply_penalty([punished], active=False)
    (on,) = apply_penalty([punished], active=True)
    assert off.reward == 1.0
    assert on.reward == pytest.approx(1.0 + PENALTY_WEIGHT * 0.1)
    assert off.term("penalty") == on.term("penalty") == 0.1
