"""From graded attempts to what carries a gradient."""

from __future__ import annotations

import pytest

from mcpagent.core.trajectory import RewardTerm, StopReason, Trajectory, TrajectoryGroup
from mcpagent.reward.rule import PENALTY_WEIGHT
from mcpagent.train.objective.advantages import CreditSettings, GradedBatch, assign_credit
from mcpagent.train.objective.grading import GradeSettings, Overlong, apply_penalty, grade_groups
from tests.train.world import trajectory

PLAIN = GradeSettings(credit=CreditSettings(scale="none"))
RANDOM = GradeSettings(control="random")


def group(name: str, *rewards: float | None) -> TrajectoryGroup:
    return TrajectoryGroup(
        group_id=name, trajectories=tuple(trajectory(name, i, r) for i, r in enumerate(rewards))
    )


def of_trajectories(*trajectories: Trajectory) -> TrajectoryGroup:
    return TrajectoryGroup(group_id=trajectories[0].group_id, trajectories=trajectories)


def advantages(graded: GradedBatch) -> list[float]:
    """Of the single turn that these attempts have."""
    return [turns[0] for turns in assign_credit(graded).advantages]


def test_uniform_groups_and_unscored_attempts_are_left_out() -> None:
    groups = [group("a", 1.0, 0.0, None, 1.0, 0.0), group("b", 1.0, 1.0), group("c", None, 0.5)]
    graded = grade_groups(groups, settings=PLAIN)
    # Group a without its hole has the mean 0.5.
    assert advantages(graded) == [0.5, -0.5, 0.5, -0.5]
    assert graded.sample_groups == [0, 0, 0, 0]
    assert len(graded.uniform_group_ids) == 2
    assert [g.has_signal for g in graded.groups] == [True, False, False]


def test_an_attempt_without_a_sampled_token_counts_for_its_group_but_is_not_trained_on() -> None:
    silent = of_trajectories(trajectory("a", 0, 1.0), trajectory("a", 1, 0.0, tokens=((),)))
    assert advantages(grade_groups([silent], settings=PLAIN)) == [0.5]


def test_random_rewards_depend_on_seed_and_group_and_not_on_the_real_ones() -> None:
    good, bad = group("a", 1.0, 1.0, 0.0), group("a", 0.0, 0.3, 0.3)
    draws = [advantages(grade_groups([g], settings=RANDOM, seed=1)) for g in (good, bad)]
    assert draws[0] == draws[1]
    assert sum(draws[0]) == pytest.approx(0.0, abs=1e-9)
    assert draws[0] != advantages(grade_groups([good], settings=RANDOM, seed=2))
    other = group("b", 1.0, 1.0, 0.0)
    assert draws[0] != advantages(grade_groups([other], settings=RANDOM, seed=1))


def test_rejection_sampling_trains_on_the_successes_alone_all_alike() -> None:
    groups = [group("a", 1.0, 0.0, 1.0), group("b", 0.0, 0.0), group("c", 1.0, 1.0)]
    graded = grade_groups(groups, settings=GradeSettings(control="rejection"))
    assert advantages(graded) == [1.0] * 4
    assert graded.sample_groups == [0, 0, 2, 2]


def test_a_group_that_is_uniform_in_its_outcome_still_tells_turns_apart() -> None:
    def attempt(number: int, coverage: float) -> Trajectory:
        made = trajectory("a", number, 0.5, tokens=((5,), (6,)))
        first = made.turns[0].model_copy(
            update={"reward_terms": (RewardTerm(name="coverage", value=coverage),)}
        )
        return made.model_copy(update={"turns": (first, made.turns[1])})

    groups = [of_trajectories(attempt(0, 0.5), attempt(1, 0.0))]
    by_turn = GradeSettings(credit=CreditSettings(advantage="turn"))
    assert len(grade_groups(groups, settings=PLAIN).uniform_group_ids) == 1
    graded = grade_groups(groups, settings=by_turn)
    # Turn 0: mean 0.25, sample standard deviation 0.5 / sqrt(2); turn 1 has no terms and is the same in both.
    expected = 0.5 * 0.25 / (0.5 / 2**0.5 + 1e-4)
    (first, second) = assign_credit(graded).advantages
    assert first == [pytest.approx(expected), 0.0]
    assert second == [pytest.approx(-expected), 0.0]


@pytest.mark.parametrize(
    ("tokens", "cost"),
    [(60, 0.0), (80, 0.0), (85, 0.125), (90, 0.25), (100, 0.5), (130, 0.5)],
)
def test_a_long_episode_loses_reward_over_the_buffer_before_the_limit(tokens: int, cost: float) -> None:
    # DAPO, eq. 13, with the limit 100 and the last 20 tokens as buffer, scaled to 0.5: (n - 80) / 20 * 0.5.
    overlong = Overlong(penalty=0.5, max_tokens=100, buffer_tokens=20)
    assert overlong.cost(tokens) == pytest.approx(cost)
    graded = grade_groups(
        [of_trajectories(trajectory("a", 0, 1.0, tokens=((5,) * tokens,)), trajectory("a", 1, 0.0))],
        settings=GradeSettings(overlong=overlong),
    )
    assert graded.groups[0].attempts[0].reward == pytest.approx(1.0 - cost)


@pytest.mark.parametrize("stop_reason", [StopReason.MAX_TOKENS, StopReason.CONTEXT_OVERFLOW])
def test_a_truncated_attempt_can_count_for_its_group_without_being_trained_on(
    stop_reason: StopReason,
) -> None:
    cut = trajectory("a", 1, 0.0).model_copy(update={"stop_reason": stop_reason})
    groups = [of_trajectories(trajectory("a", 0, 1.0), cut)]
    masked = GradeSettings(credit=CreditSettings(scale="none"), overlong=Overlong(mask_truncated=True))
    assert advantages(grade_groups(groups, settings=masked)) == [0.5]
    assert advantages(grade_groups(groups, settings=PLAIN)) == [0.5, -0.5]


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


@pytest.mark.parametrize(
    ("is_active", "expected"),
    # Coverage 0.5, less 0.04 for each of three calls too many and 0.1 times the invalid half of the calls.
    [(True, [0.5 - 0.04 * 3 - 0.1 * 0.5, 0.0 - 0.1 * 1.0]), (False, [0.5, 0.0])],
)
def test_a_turn_pays_for_its_own_calls_while_penalties_are_in_force(
    is_active: bool, expected: list[float]
) -> None:
    made = trajectory("a", 0, 0.5, tokens=((5,), (6,)))
    first = (("coverage", 0.5), ("excess", 3.0), ("invalid_rate", 0.5))
    second = (("excess", None), ("invalid_rate", 1.0))  # a term without a value adds nothing
    turns = tuple(
        turn.model_copy(update={"reward_terms": tuple(RewardTerm(name=n, value=v) for n, v in terms)})
        for turn, terms in zip(made.turns, (first, second), strict=True)
    )
    terms = (*made.reward_terms, RewardTerm(name="penalty", value=0.1))
    costly = made.model_copy(update={"turns": turns, "reward_terms": terms})
    (attempt,) = apply_penalty([costly], active=is_active)
    graded = grade_groups([of_trajectories(attempt)], settings=PLAIN)
    assert graded.groups[0].attempts[0].turn_rewards_K == pytest.approx(expected)
