"""From rewards of groups to an advantage for each turn, against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.objective.advantages import (
    CreditSettings,
    GradedAttempt,
    GradedBatch,
    GradedGroup,
    assign_credit,
    graded_batch,
)


def sample(*turns: int) -> TrainSample:
    """Turns of so many tokens, with a token of the environment before each."""
    mask = tuple(own for n in turns for own in (False, *[True] * n))
    return TrainSample(token_ids_T=tuple(range(len(mask))), loss_mask_T=mask)


def graded(*groups: list[tuple[float | None, TrainSample]], **settings: object) -> GradedBatch:
    attempts_of = {
        str(number): [GradedAttempt(reward=r, sample=s) for r, s in group]
        for number, group in enumerate(groups)
    }
    return graded_batch(attempts_of, CreditSettings(**settings))  # type: ignore[arg-type]


def test_reinforce_plus_plus_whitens_over_the_tokens_of_the_batch() -> None:
    # Rewards 1 on 3 tokens and 0 on 1: mean 3/4, squares 3/16 + 9/16, over 3: variance 1/4.
    own = graded([(1.0, sample(2, 1))], [(0.0, sample(1))], advantage="reinforce++")
    scale = 1.0 / math.sqrt(0.25 + 1e-8)
    assert assign_credit(own).advantages == [
        pytest.approx([0.25 * scale, 0.25 * scale]),
        pytest.approx([-0.75 * scale]),
    ]


def test_a_turn_is_charged_for_its_own_kl_and_that_of_later_turns() -> None:
    own = graded([(1.0, sample(2, 1))], [(0.0, sample(1))], advantage="reinforce++", scale="none")
    # 1 - (0.1 + 0.2) and 1 - 0.2; 0 - 0.4.
    credit = assign_credit(own, penalties=[[0.1, 0.2], [0.4]])
    assert credit.advantages == [pytest.approx([0.7, 0.8]), pytest.approx([-0.4])]


def test_within_a_group_the_kl_of_the_whole_attempt_comes_off_its_reward() -> None:
    own = graded([(1.0, sample(2, 1)), (0.0, sample(1))], scale="none")
    # 0.7 and -0.2: mean 0.25.
    credit = assign_credit(own, penalties=[[0.1, 0.2], [0.2]])
    assert credit.advantages == [pytest.approx([0.45, 0.45]), pytest.approx([-0.45])]


def test_turn_credit_comes_beside_the_outcome() -> None:
    settings = CreditSettings(advantage="turn", scale="none")
    attempts = (
        GradedAttempt(reward=1.0, sample=sample(1, 1), turn_rewards_K=(1.0, 0.0)),
        GradedAttempt(reward=0.0, sample=sample(1), turn_rewards_K=(0.0,)),
    )
    own = GradedBatch(groups=(GradedGroup(group_id="a", attempts=attempts),), settings=settings)
    # Outcome +-0.5; turn 0: +-0.5 / (sqrt(0.5) + 1e-4); nobody else has a turn 1.
    turn = 0.5 * 0.5 / (math.sqrt(0.5) + 1e-4)
    assert assign_credit(own).advantages == [pytest.approx([0.5 + turn, 0.5]), pytest.approx([-0.5 - turn])]


@pytest.mark.parametrize("advantage", ["group", "rloo", "turn"])
def test_a_uniform_group_teaches_nothing_where_attempts_are_compared(advantage: str) -> None:
    own = graded([(0.3, sample(2)), (0.3, sample(1)), (None, sample(1))], advantage=advantage)
    assert (len(own.uniform_group_ids), own.samples) == (1, [])
    assert assign_credit(own).advantages == []


@pytest.mark.parametrize("advantage", ["reinforce++", "gae"])
def test_a_uniform_group_teaches_where_the_baseline_lies_outside_of_it(advantage: str) -> None:
    own = graded([(0.3, sample(2)), (0.3, sample(1)), (None, sample(1))], advantage=advantage)
    assert (len(own.uniform_group_ids), len(own.samples)) == (0, 2)
    nothing = graded([(None, sample(2))], advantage=advantage)
    assert (len(nothing.uniform_group_ids), nothing.samples) == (1, [])


@given(st.lists(st.tuples(st.floats(-1, 1), st.integers(1, 9)), min_size=2, max_size=8), st.integers(1, 7))
def test_whitening_is_the_same_in_one_process_and_in_two(attempts: list[tuple[float, int]], cut: int) -> None:
    """Two halves, each told the sums of the whole, say together what the whole says."""
    cut = min(cut, len(attempts) - 1)
    groups = [[(reward, sample(length))] for reward, length in attempts]
    whole = assign_credit(graded(*groups, advantage="reinforce++")).advantages
    sums: list[list[float]] = []

    def record(values: object) -> list[float]:
        sums.append(list(values))  # type: ignore[call-overload]
        return sums[-1]

    assign_credit(graded(*groups, advantage="reinforce++"), reduce=record)
    halves: list[list[float]] = []
    for part in (groups[:cut], groups[cut:]):
        told = iter(sums)
        credit = assign_credit(graded(*part, advantage="reinforce++"), reduce=lambda _, told=told: next(told))
        halves += credit.advantages
    assert halves == [pytest.approx(turns) for turns in whole]
