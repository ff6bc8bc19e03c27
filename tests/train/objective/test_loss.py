"""The objective against numbers worked by hand. What other trainers say of the same tensors: tests/trl."""

from __future__ import annotations

import math

import pytest
import torch

from mcpagent.train.objective.loss import (
    Objective,
    batch_totals,
    kl_terms,
    policy_loss,
    sampler_weights,
    token_weights,
)

LN2 = math.log(2.0)
LN3 = math.log(3.0)


def _double(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.float64)


def _loss(
    ratio: float, advantage: float, loss: str = "grpo", dual_clip: float | None = None
) -> tuple[float, float, bool]:
    """Loss, its gradient with respect to the logprob (0 before), and whether the bound was in force."""
    logprob = _double(math.log(ratio)).requires_grad_()
    parts = policy_loss(
        logprob,
        objective=Objective(loss=loss, clip_low=0.2, clip_high=0.28, dual_clip=dual_clip),
        old_logprobs_N=_double(0.0),
        advantages_N=_double(advantage),
        lengths_B=torch.tensor([1]),
    )
    parts.loss_N.sum().backward()
    assert logprob.grad is not None
    return float(parts.loss_N.detach()), float(logprob.grad), bool(parts.is_clipped_N)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo"])  # of one token all are the same
@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient", "clipped"),
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
    ratio: float, advantage: float, expected: float, gradient: float, clipped: bool, loss: str
) -> None:
    assert _loss(ratio, advantage, loss) == (pytest.approx(expected), pytest.approx(gradient), clipped)


@pytest.mark.parametrize("loss", ["grpo", "dr_grpo", "dapo", "gspo"])
@pytest.mark.parametrize(
    ("ratio", "advantage", "expected", "gradient", "bounded"),
    [
        (2.0, -1.0, 2.0, 2.0, False),  # below the bound of 3 nothing changes: max(min(-2, -1.28), -3) = -2
        (8.0, -1.0, 3.0, 0.0, True),  # max(min(-8, -1.28), -3) = -3: worth no more, and no longer pushed
        (8.0, -2.0, 6.0, 0.0, True),  # the bound is c |A|
        (0.5, -1.0, 0.8, 0.0, True),  # the lower clip holds as before: max(min(-0.5, -0.8), -3) = -0.8
        (8.0, 1.0, -1.28, 0.0, True),  # positive advantages have their own bound
        (1.0, 0.0, 0.0, 0.0, False),
    ],
)
def test_a_dual_clip_bounds_what_a_negative_advantage_may_weigh(
    ratio: float, advantage: float, expected: float, gradient: float, bounded: bool, loss: str
) -> None:
    of = _loss(ratio, advantage, loss, dual_clip=3.0)
    assert of == (pytest.approx(expected), pytest.approx(gradient), bounded)


@pytest.mark.parametrize(
    ("ratio", "advantage", "gradient", "clipped"),
    [
        (2.0, 1.0, -1.28, True),  # the weight stops at 1.28, the token goes on learning
        (2.0, -1.0, 1.28, True),  # of either sign
        (0.5, 1.0, -0.5, False),  # there is no lower bound
        (0.5, -1.0, 0.5, False),
    ],
)
def test_cispo_bounds_the_weight_and_keeps_the_gradient(
    ratio: float, advantage: float, gradient: float, clipped: bool
) -> None:
    # -min(r, 1.28) A logp, with logp = ln r since the old one is 0.
    expected = gradient * math.log(ratio)
    assert _loss(ratio, advantage, "cispo") == (pytest.approx(expected), pytest.approx(gradient), clipped)


def test_gspo_has_one_ratio_for_a_sample_and_an_advantage_for_each_token() -> None:
    logprobs = _double(LN2, 0.0, -LN3).requires_grad_()
    parts = policy_loss(
        logprobs,
        objective=Objective(loss="gspo", clip_low=0.2, clip_high=0.6),
        old_logprobs_N=_double(0.0, 0.0, 0.0),
        advantages_N=_double(1.0, -2.0, 1.0),
        lengths_B=torch.tensor([2, 1]),
    )
    parts.loss_N.sum().backward()
    assert logprobs.grad is not None
    # The first sample: exp((ln 2 + 0) / 2) = sqrt 2, inside 0.8..1.6. The second: 1/3, pulled up unclipped.
    root = math.sqrt(2.0)
    assert parts.ratio_N.tolist() == pytest.approx([root, root, 1 / 3])
    assert parts.loss_N.tolist() == pytest.approx([-root, 2 * root, -1 / 3])
    # The gradient of r A at a token is r A: each keeps its own advantage.
    assert logprobs.grad.tolist() == pytest.approx([-root, 2 * root, -1 / 3])


def test_kl_estimators_are_zero_at_the_reference_and_worked_by_hand_away_from_it() -> None:
    logprobs = _double(-1.0, -1.0 - LN2, -1.0 + LN2)
    reference = _double(-1.0, -1.0, -1.0)
    # d = policy - reference is 0, -ln 2, ln 2. k1 = d; k2 = d^2 / 2; k3 = exp(-d) + d - 1.
    assert kl_terms(logprobs, reference, estimator="k1").tolist() == pytest.approx([0.0, -LN2, LN2])
    k2 = 0.5 * LN2**2
    assert kl_terms(logprobs, reference, estimator="k2").tolist() == pytest.approx([0.0, k2, k2])
    k3 = [0.0, 1.0 - LN2, LN2 - 0.5]
    assert kl_terms(logprobs, reference, estimator="k3").tolist() == pytest.approx(k3)


def test_k2_has_the_gradient_of_the_kl_and_k1_and_k3_do_not() -> None:
    """On average over what the policy samples, against the KL of two whole distributions."""
    logits = _double(0.3, -0.5, 0.9).requires_grad_()
    other = torch.log_softmax(_double(-0.2, 0.4, 0.1), -1)
    logprobs = torch.log_softmax(logits, -1)
    (exact,) = torch.autograd.grad((logprobs.exp() * (logprobs - other)).sum(), logits, retain_graph=True)
    sampled = logprobs.detach().exp()

    def mean_gradient(estimator: str) -> torch.Tensor:
        terms = kl_terms(logprobs, other, estimator=estimator)  # type: ignore[arg-type]
        return torch.autograd.grad((sampled * terms).sum(), logits, retain_graph=True)[0]

    assert torch.allclose(mean_gradient("k2"), exact)
    assert torch.allclose(mean_gradient("k1"), torch.zeros(3, dtype=torch.float64), atol=1e-12)
    assert not torch.allclose(mean_gradient("k3"), exact, atol=1e-2)


@pytest.mark.parametrize(("estimator", "expected"), [("k2", 0.5 * LN2**2), ("k3", 1.0 - LN2), (None, 0.0)])
def test_the_kl_enters_the_loss_with_its_coefficient_or_not_at_all(
    estimator: str | None, expected: float
) -> None:
    parts = policy_loss(
        _double(-1.0 - LN2),
        objective=Objective(kl_estimator=estimator),  # type: ignore[arg-type]
        kl_coef=0.5,
        old_logprobs_N=_double(-1.0 - LN2),
        advantages_N=_double(0.0),
        lengths_B=torch.tensor([1]),
        reference_logprobs_N=_double(-1.0),
    )
    assert parts.loss_N.tolist() == pytest.approx([0.5 * expected])
    assert parts.kl_N.tolist() == pytest.approx([1.0 - LN2])  # what is reported is k3 in each case


def test_the_sampler_is_corrected_for_up_to_a_bound() -> None:
    weights = sampler_weights(_double(LN2, -LN2, LN3) - 5.0, _double(0.0, 0.0, 0.0) - 5.0, cap=2.0)
    assert weights.tolist() == pytest.approx([2.0, 0.5, 2.0])  # ratios 2, 1/2, 3 up to 2


def test_the_correction_multiplies_the_surrogate_and_not_the_kl() -> None:
    parts = policy_loss(
        _double(-1.0 - LN2),
        objective=Objective(),
        kl_coef=1.0,
        old_logprobs_N=_double(-1.0 - LN2),
        advantages_N=_double(1.0),
        lengths_B=torch.tensor([1]),
        reference_logprobs_N=_double(-1.0),
        weights_N=_double(0.25),
    )
    assert parts.loss_N.tolist() == pytest.approx([-0.25 + 1.0 - LN2])


@pytest.mark.parametrize(
    ("loss", "expected"),
    [
        # Two samples of 1 and 3 tokens: each sample a half, or each token a quarter.
        ("grpo", [1 / 2, 1 / 6]),
        ("gspo", [1 / 2, 1 / 6]),
        ("dapo", [1 / 4, 1 / 4]),
        ("cispo", [1 / 4, 1 / 4]),
        ("dr_grpo", [1 / 20, 1 / 20]),  # 2 samples of at most 10 tokens
    ],
)
def test_aggregation_is_part_of_the_name(loss: str, expected: list[float]) -> None:
    assert token_weights([1, 3], loss=loss, max_tokens=10) == pytest.approx(expected)


@pytest.mark.parametrize("loss", ["grpo", "dapo", "dr_grpo"])
def test_the_parts_of_a_batch_weigh_what_they_do_in_the_whole(loss: str) -> None:
    whole = token_weights([1, 3, 2], loss=loss, max_tokens=10)
    totals = batch_totals([1, 3, 2])
    parts = [token_weights(part, loss=loss, max_tokens=10, totals=totals) for part in ([1, 3], [2])]
    assert whole == pytest.approx([*parts[0], *parts[1]])


def test_a_sample_without_tokens_has_no_weight_and_does_not_dilute_the_others() -> None:
    assert token_weights([2, 0], loss="grpo") == pytest.approx([1 / 2, 0.0])
