"""What the trainer sees of a trajectory, and how rows are packed."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpagent.train.batch.samples import (
    TrainSample,
    padded_batches,
    sample_from_segments,
    sample_from_trajectory,
)
from tests.train.world import trajectory


def test_a_trajectory_becomes_its_tokens_in_order_with_the_sampled_ones_marked() -> None:
    # `trajectory` gives each turn three added tokens 1, 2, 3 and logprobs -0.1, -0.2, ...
    sample = sample_from_trajectory(trajectory("g", 0, 1.0, tokens=((7, 8), (9,))))
    assert sample.token_ids_T == (1, 2, 3, 7, 8, 1, 2, 3, 9)
    assert sample.loss_mask_T == (False, False, False, True, True, False, False, False, True)
    assert sample.sampler_logprobs_T == (0.0, 0.0, 0.0, -0.1, -0.2, 0.0, 0.0, 0.0, -0.1)
    assert (len(sample), sample.loss_tokens) == (9, 3)


@given(st.lists(st.lists(st.integers(0, 9), max_size=5), min_size=1, max_size=4))
def test_the_loss_mask_is_exactly_the_sampled_tokens(turns: list[list[int]]) -> None:
    sample = sample_from_trajectory(trajectory("g", 0, 1.0, tokens=turns))
    marked = [i for i, own in zip(sample.token_ids_T, sample.loss_mask_T, strict=True) if own]
    assert marked == [i for turn in turns for i in turn]
    assert len(sample.token_ids_T) == len(sample.sampler_logprobs_T) == sum(map(len, turns)) + 3 * len(turns)


def test_a_demonstration_carries_the_loss_where_the_model_is_to_speak() -> None:
    sample = sample_from_segments([((1, 2), False), ((3, 4), True), ((5,), False), ((6,), True)])
    assert sample.token_ids_T == (1, 2, 3, 4, 5, 6)
    assert sample.loss_mask_T == (False, False, True, True, False, True)


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=20),
    st.integers(1, 120),
)
def test_padded_batches_hold_every_sample_once_unaltered_within_the_bound(
    lengths: list[int], max_tokens: int
) -> None:
    samples = [
        TrainSample(token_ids_T=tuple(range(1, n + 1)), loss_mask_T=tuple(i % 3 == 0 for i in range(n)))
        for n in lengths
    ]
    batches = list(padded_batches(samples, max_tokens=max_tokens))
    assert sorted(i for b in batches for i in b.rows) == list(range(len(samples)))
    for batch in batches:
        assert batch.input_ids.numel() <= max_tokens or len(batch.rows) == 1
        for row, index in enumerate(batch.rows):
            n = lengths[index]
            assert tuple(batch.input_ids[row, :n].tolist()) == samples[index].token_ids_T
            assert tuple(batch.loss_mask[row, :n].tolist()) == samples[index].loss_mask_T
            assert not batch.input_ids[row, n:].any()
            assert not batch.loss_mask[row, n:].any()
