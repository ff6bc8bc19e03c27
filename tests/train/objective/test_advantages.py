"""Advantages against numbers worked by hand, and what holds for any rewards."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.train.objective.advantages import (
    gae,
    group_advantages,
    rloo_advantages,
    turn_advantages,
)

rewards = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=12)


def test_two_successes_of_four_are_the_same_distance_up_and_down() -> None:
    # Mean 0.5, sample standard deviation sqrt(4 * 0.25 / 3) = sqrt(1/3), plus 1e-4.
    expected = 0.5 / (math.sqrt(1 / 3) + 1e-4)
    assert group_advantages([1.0, 0.0, 1.0, 0.0]) == pytest.approx([expected, -expected, expected, -expected])


def test_the_spread_of_the_batch_can_take_the_place_of_the_groups() -> None:
    assert group_advantages([1.0, 0.0], batch_std=0.2499) == pytest.approx([2.0, -2.0])


def test_rloo_compares_with_the_mean_of_the_others() -> None:
    # 1 against (0 + 0.5) / 2, 0 against 0.75, 0.5 against 0.5.
    assert rloo_advantages([1.0, 0.0, 0.5]) == pytest.approx([0.75, -0.75, 0.0])
    assert rloo_advantages([1.0, None, 0.0]) == [1.0, None, -1.0]


@pytest.mark.parametrize("estimate", [group_advantages, rloo_advantages])
@given(values=rewards)
def test_advantages_of_a_group_sum_to_zero(estimate, values: list[float]) -> None:  # type: ignore[no-untyped-def]
    assert sum(a or 0.0 for a in estimate(values)) == pytest.approx(0.0, abs=1e-6)


@pytest.mark.parametrize("estimate", [group_advantages, rloo_advantages])
@given(values=rewards, shift=st.integers(-5, 5))
def test_a_constant_shift_of_the_rewards_changes_nothing(
    estimate,  # type: ignore[no-untyped-def]
    values: list[float],
    shift: int,
) -> None:
    assert estimate([v + shift for v in values]) == pytest.approx(estimate(values), abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_a_uniform_group_yields_exact_zeros(value: float) -> None:
    assert group_advantages([value] * 8) == rloo_advantages([value] * 8) == [0.0] * 8
    assert turn_advantages([[value, value]] * 8) == [[0.0, 0.0]] * 8


@pytest.mark.parametrize("estimate", [group_advantages, rloo_advantages])
def test_an_unscored_attempt_leaves_the_group(estimate) -> None:  # type: ignore[no-untyped-def]
    assert estimate([0.4, None, 0.3, 0.0, None]) == [
        *estimate([0.4, 0.3, 0.0])[:1],
        None,
        *estimate([0.4, 0.3, 0.0])[1:],
        None,
    ]
    assert estimate([None, None]) == [None, None]
    assert estimate([0.7, None]) == [0.0, None]  # alone, nothing to compare with


def test_turns_are_compared_with_the_same_turn_of_the_other_attempts_that_have_it() -> None:
    # Turn 0: 1, 0, 0.5 (mean 0.5, standard deviation 0.5); turn 1: 0 and 1 (0.5, sqrt 0.5); turn 2: alone.
    first, second = 0.5 / (0.5 + 1e-4), 0.5 / (math.sqrt(0.5) + 1e-4)
    advantages = turn_advantages([[1.0, 0.0], None, [0.0], [0.5, 1.0, 0.25]])
    assert advantages == [
        pytest.approx([first, -second]),
        None,
        pytest.approx([-first]),
        pytest.approx([0.0, second, 0.0]),
    ]


def test_gae_over_three_turns() -> None:
    # gamma 0.9, lambda 0.5; rewards 0, 0, 1; values 0.5, 0.6, 0.8.
    # delta_2 = 1 - 0.8 = 0.2; delta_1 = 0.9 * 0.8 - 0.6 = 0.12; delta_0 = 0.9 * 0.6 - 0.5 = 0.04.
    # A_2 = 0.2; A_1 = 0.12 + 0.45 * 0.2 = 0.21; A_0 = 0.04 + 0.45 * 0.21 = 0.1345. Returns: A + V.
    advantages, returns = gae([0.0, 0.0, 1.0], [0.5, 0.6, 0.8], gamma=0.9, lambda_=0.5)
    assert advantages == pytest.approx([0.1345, 0.21, 0.2])
    assert returns == pytest.approx([0.6345, 0.81, 1.0])


@given(rewards, st.floats(0, 1))
def test_gae_with_lambda_one_is_the_discounted_return_less_the_value(
    values: list[float], gamma: float
) -> None:
    earned = [0.1 * k for k in range(len(values))]
    advantages, returns = gae(earned, values, gamma=gamma, lambda_=1.0)
    for k in range(len(values)):
        discounted = sum(gamma ** (j - k) * earned[j] for j in range(k, len(values)))
        assert returns[k] == pytest.approx(discounted)
        assert advantages[k] == pytest.approx(discounted - values[k])
