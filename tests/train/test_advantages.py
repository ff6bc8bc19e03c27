"""Advantages and rewards of a group."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.train.advantages import group_advantages

rewards = st.lists(st.floats(-1, 1).map(lambda x: round(x, 3)), min_size=2, max_size=12)


def test_two_successes_of_four_are_plus_and_minus_one() -> None:
    # Mean 0.5, population standard deviation 0.5: (1 - 0.5) / 0.5 = 1.
    assert group_advantages([1.0, 0.0, 1.0, 0.0]) == [1.0, -1.0, 1.0, -1.0]


def test_without_normalisation_the_mean_alone_is_taken_off() -> None:
    assert group_advantages([0.9, 0.1, 0.5], normalize=False) == pytest.approx([0.4, -0.4, 0.0])


def test_one_success_of_eight_stands_out_by_the_square_root_of_seven() -> None:
    # Mean 1/8, variance 1/8 - 1/64 = 7/64: (7/8) / (sqrt(7)/8) = sqrt(7).
    assert group_advantages([1.0] + [0.0] * 7)[0] == pytest.approx(math.sqrt(7))


@given(rewards)
def test_advantages_of_a_group_sum_to_zero(values: list[float]) -> None:
    assert sum(a or 0.0 for a in group_advantages(values)) == pytest.approx(0.0, abs=1e-6)


@given(rewards, st.integers(-5, 5))
def test_a_constant_shift_of_the_rewards_changes_nothing(values: list[float], shift: int) -> None:
    shifted = group_advantages([v + shift for v in values])
    assert shifted == pytest.approx(group_advantages(values), abs=1e-6)


@pytest.mark.parametrize("value", [0.0, 0.1, 1.0])
def test_a_uniform_group_yields_exact_zeros(value: float) -> None:
    assert group_advantages([value] * 8) == [0.0] * 8


def test_an_unscored_attempt_leaves_the_group() -> None:
    with_hole = group_advantages([1.0, None, 0.0, None])
    assert with_hole == [1.0, None, -1.0, None]
    assert group_advantages([None, None]) == [None, None]
