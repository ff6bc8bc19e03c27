"""Half precision: training works, the loss is close to float32's, overflows move no weight."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.optim import Precision
from tests.models.adapters import adapted
from tests.train.world import make_learner, some_samples, tiny_model

# Weights' dtype, autocast, and whether adapters are trained.
WAYS = {
    "bf16 weights and adapters": (torch.bfloat16, "no", True),
    "bf16 weights, all trained": (torch.bfloat16, "no", False),
    "float32 weights, bf16 products": (torch.float32, "bf16", False),
    "float32 weights and adapters, bf16 products": (torch.float32, "bf16", True),
}


def learner_of(
    dtype: torch.dtype, precision: Precision, *, lora: bool, learning_rate: float = 0.01
) -> Learner:
    model = tiny_model(dtype=dtype)
    if lora:
        model = adapted(model)
    return make_learner(model, learning_rate=learning_rate, precision=precision)


def losses(learner: Learner, *, steps: int) -> list[float]:
    """Mean negative log-likelihood of a few samples while they are learnt by heart."""
    samples = some_samples(3)
    tokens = sum(s.loss_tokens for s in samples)
    found: list[float] = []
    for step in range(1, steps + 1):
        total = 0.0
        for batch in learner.batches(samples, max_tokens=1000):
            loss = -learner.score(batch)[0].sum() / tokens
            learner.backward(loss)
            total += float(loss.detach())
        learner.step(step)
        found.append(total)
    return found


def scaling() -> Precision:
    """The scale of float16 with products in float32: a CPU computes float16 too slowly to train."""
    precision = Precision("fp16")
    precision.dtype = None
    return precision


@pytest.mark.parametrize("way", WAYS)
def test_half_precision_learns_and_its_losses_are_close_to_those_of_float32(way: str) -> None:
    dtype, mixed, lora = WAYS[way]
    half = losses(learner_of(dtype, Precision(mixed), lora=lora), steps=8)
    single = losses(learner_of(torch.float32, Precision(), lora=lora), steps=8)
    # bfloat16 has 8 bits: each logit is off by 2^-9 of itself.
    assert half != single and half == pytest.approx(single, rel=0.02)
    assert single[-1] < 0.9 * single[0]


@pytest.mark.parametrize("lora", [True, False], ids=["adapters", "all weights"])
def test_steps_too_small_for_bfloat16_add_up_as_they_do_in_float32(lora: bool) -> None:
    """1e-6 beside entries of size 0.1 is rounded away: bfloat16 resolves 5e-4 there. The same gradients,
    given to a float32 twin, say where a hundred such steps lead."""
    learner = learner_of(torch.bfloat16, Precision(), lora=lora, learning_rate=1e-6)
    twin = learner_of(torch.float32, Precision(), lora=lora, learning_rate=1e-6)
    held = {n: p for n, p in learner.model.named_parameters() if p.requires_grad}
    start = {n: p.detach().float() for n, p in held.items()}
    exact = dict(twin.model.named_parameters())
    with torch.no_grad():
        for name, value in start.items():
            exact[name].copy_(value)
    generator = torch.Generator().manual_seed(0)
    for step in range(1, 101):
        gradients = {n: torch.randn(p.shape, generator=generator) + 0.5 for n, p in held.items()}
        gradients = {n: g.bfloat16().float() for n, g in gradients.items()}
        learner.backward(sum((held[n].float() * g).sum() for n, g in gradients.items()))  # type: ignore[arg-type]
        twin.backward(sum((exact[n] * g).sum() for n, g in gradients.items()))  # type: ignore[arg-type]
        learner.step(step)
        twin.step(step)
    for name, master in learner._masters.named:
        assert master.dtype == torch.float32 and held[name].dtype == torch.bfloat16
        assert float((exact[name].detach() - start[name]).abs().max()) > 2e-5
        assert torch.equal(master, exact[name])
        assert torch.equal(held[name], exact[name].bfloat16())


def test_gradients_of_many_micro_batches_add_up_in_float32() -> None:
    """256 + 1 is 256 in bfloat16, so that a sum of equal gradients stops at 256 of them."""
    learner = learner_of(torch.bfloat16, Precision(), lora=False)
    name, parameter = next(iter(learner.model.named_parameters()))
    for _ in range(300):
        learner.backward(parameter.sum())
        assert parameter.grad is None
    gradient = dict(learner._masters.named)[name].grad
    assert gradient is not None and torch.equal(gradient, torch.full(parameter.shape, 300.0))


def test_logprobs_are_float32_whatever_the_model_computes_in() -> None:
    for dtype, mixed, lora in WAYS.values():
        learner = learner_of(dtype, Precision(mixed), lora=lora)
        (batch,) = learner.batches(some_samples(2), max_tokens=1000)
        assert learner.score(batch)[0].dtype == torch.float32


def test_the_scale_of_the_loss_changes_no_step() -> None:
    plain = learner_of(torch.float32, Precision(), lora=False)
    scaled = learner_of(torch.float32, scaling(), lora=False)
    assert losses(scaled, steps=4) == pytest.approx(losses(plain, steps=4), rel=1e-5)


def test_an_overflow_moves_no_weight_and_lowers_the_scale_which_a_checkpoint_keeps(tmp_path: Path) -> None:
    precision = scaling()
    learner = learner_of(torch.float32, precision, lora=False)
    before = [p.detach().clone() for p in learner.model.parameters()]
    (batch,) = learner.batches(some_samples(2), max_tokens=1000)
    learner.backward(learner.score(batch)[0].sum() * 1e37)  # times 2^16 it is infinite
    norm, _ = learner.step(1)
    assert norm is None
    assert all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))
    assert _scale(precision) == 2.0**15
    precision.save(tmp_path)
    again = Precision("fp16")
    again.load(tmp_path)
    assert _scale(again) == 2.0**15
    learner.backward(learner.score(batch)[0].sum())
    norm, _ = learner.step(2)
    assert norm is not None and norm > 0
    assert not all(torch.equal(a, b) for a, b in zip(before, learner.model.parameters(), strict=True))


def _scale(precision: Precision) -> float:
    return float(precision.scaled(torch.ones(())))
