"""The objective against numbers worked by hand."""

from __future__ import annotations

import math

import pytest
import torch

from mcpagent.train.loss import policy_loss, token_weights

LN2 = math.log(2.0)


def _loss(ratio: float, advantage: float, **options: float) -> tuple[float, float, bool]:
    """Loss, its gradient with respect to the logprob, and whether the clip took the gradient away."""
    logprob = torch.tensor([math.log(ratio)], dtype=torch.float64, requires_grad=True)
    parts = policy_loss(
        logprob,
        old_logprobs_N=torch.zeros(1, dtype=torch.float64),
        advantages_N=torch.tensor([advantage], dtype=torch.float64),
        clip_low=0.2,
        clip_high=0.28,
        **options,
    )
    parts.loss_N.sum().backward()
    assert logprob.grad is not None
    return float(parts.loss_N.detach()), float(logprob.grad), bool(parts.is_clipped_N)


@pytest.mark.parametrize(
    ("ratio", "advantage", "loss", "gradient", "clipped"),
    [
        (1.0, 2.0, -2.0, -2.0, False),  # on policy: -A, and the gradient of the ratio is the ratio
        (1.1, 2.0, -2.2, -2.2, False),  # inside the range: -1.1 * 2
        (2.0, 1.0, -1.28, 0.0, True),  # a good token is already likelier by more than 28%: no more reward
        (0.5, -1.0, 0.8, 0.0, True),  # a bad one already rarer by more than 20%: max(0.5, 0.8)
        (2.0, -1.0, 2.0, 2.0, False),  # a bad one that became likelier is always pushed down
        (0.5, 1.0, -0.5, -0.5, False),  # a good one that became rarer is always pulled up
    ],
)
def test_clipping_takes_the_pessimistic_side(
    ratio: float, advantage: float, loss: float, gradient: float, clipped: bool
) -> None:
    assert _loss(ratio, advantage) == (pytest.approx(loss), pytest.approx(gradient), clipped)


def test_k3_is_zero_at_the_reference_and_worked_by_hand_away_from_it() -> None:
    logprobs = torch.tensor([-1.0, -1.0 - LN2, -1.0 + LN2], dtype=torch.float64)
    parts = policy_loss(
        logprobs,
        old_logprobs_N=logprobs,
        advantages_N=torch.zeros(3, dtype=torch.float64),
        reference_logprobs_N=torch.full((3,), -1.0, dtype=torch.float64),
        kl_coef=0.5,
    )
    # d = reference - policy: exp(d) - d - 1 is 0; 2 - ln 2 - 1; 1/2 + ln 2 - 1.
    expected = [0.0, 1.0 - LN2, LN2 - 0.5]
    assert parts.kl_N.tolist() == pytest.approx(expected)
    assert parts.loss_N.tolist() == pytest.approx([0.5 * k for k in expected])


def test_grpo_weights_average_within_samples_first_and_dapo_over_all_tokens() -> None:
    # Two samples of 1 and 3 tokens: grpo gives each sample half, dapo each token a quarter.
    assert token_weights([1, 3], aggregation="grpo") == pytest.approx([1 / 2, 1 / 6])
    assert token_weights([1, 3], aggregation="dapo") == pytest.approx([1 / 4, 1 / 4])


def test_a_sample_without_tokens_has_no_weight_and_does_not_dilute_the_others() -> None:
    assert token_weights([2, 0], aggregation="grpo") == pytest.approx([1 / 2, 0.0])
