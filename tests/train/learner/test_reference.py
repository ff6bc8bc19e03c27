"""The reference that follows: what it is, when it moves, and that a checkpoint brings it back."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch

from mcpagent.errors import RunError
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.reference import ShadowReference
from mcpagent.train.learner.wrapping import Wrapping, load_tensors, save_tensors
from tests.models.adapters import adapted
from tests.train.world import full_logprobs, make_learner, some_samples, tiny_model

ALONE = Wrapping(Processes())


def with_adapters() -> Any:
    return adapted(tiny_model(), r=2)


@torch.no_grad()
def shift(model: Any, by: float) -> None:
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(by)


def trained(model: Any) -> dict[str, torch.Tensor]:
    return {n: p.detach().clone() for n, p in model.named_parameters() if p.requires_grad}


@pytest.mark.parametrize("make", [tiny_model, with_adapters], ids=["weights", "adapters"])
def test_it_is_the_average_of_the_past_and_the_policy_stays_what_it_is(make: Any) -> None:
    model = make()
    follower = ShadowReference(model.named_parameters(), every=2, decay=0.75)
    start = trained(model)
    shift(model, 0.01)
    follower.follow(1)  # not yet
    with follower.in_place():
        assert all(torch.equal(value, start[name]) for name, value in trained(model).items())
    follower.follow(2)  # 0.75 * 0 + 0.25 * 0.01
    shift(model, 0.02)
    follower.follow(4)  # 0.75 * 0.0025 + 0.25 * 0.03 = 0.009375
    now = trained(model)
    with follower.in_place():
        for name, value in trained(model).items():
            assert torch.allclose(value, start[name] + 0.009375, atol=1e-6), name
    assert all(torch.equal(value, now[name]) for name, value in trained(model).items())


def test_a_reference_of_bfloat16_weights_follows_movements_that_bfloat16_does_not_resolve() -> None:
    """A tenth of one place of bfloat16, ten times, is two thirds of it: rounded each time it is nothing."""
    model = torch.nn.Linear(4, 4, bias=False, dtype=torch.bfloat16)
    with torch.no_grad():
        model.weight.fill_(1.0)
    follower = ShadowReference(model.named_parameters(), every=1, decay=0.9)
    with torch.no_grad():
        model.weight.fill_(1.0078125)  # the next number
    for step in range(1, 11):
        follower.follow(step)
    with follower.in_place():
        assert torch.equal(model.weight, torch.full((4, 4), 1.0078125, dtype=torch.bfloat16))
    follower.follow(11)
    assert model.weight.dtype == torch.bfloat16


def test_the_learner_asks_it_for_reference_logprobs() -> None:
    model = tiny_model()
    learner = make_learner(model, reference=ShadowReference(model.named_parameters(), every=1, decay=0.0))
    start = copy.deepcopy(model)
    samples = some_samples(3)
    shift(model, 0.05)
    (batch,) = learner.batches(samples, max_tokens=8192)
    wanted = torch.cat([full_logprobs(start, samples[i]).detach().float() for i in batch.rows])
    assert torch.allclose(learner.reference_logprobs(batch), wanted, atol=1e-5)
    learner.end_step(1)  # with a decay of 0 it becomes the policy
    with torch.no_grad():
        policy = learner.score(batch)[0]
    assert torch.allclose(learner.reference_logprobs(batch), policy, atol=1e-6)


def test_what_is_not_trained_has_no_shadow(tmp_path: Path) -> None:
    model = with_adapters()
    follower = ShadowReference(model.named_parameters(), every=1, decay=0.5)
    save_tensors(tmp_path / "reference.safetensors", follower.shadows, wrapping=ALONE)
    shadows = sum(p.numel() for p in model.parameters() if p.requires_grad) * 4
    assert shadows < (tmp_path / "reference.safetensors").stat().st_size < 1.5 * shadows + 8192


def test_a_checkpoint_brings_it_back_exactly(tmp_path: Path) -> None:
    def follower_of(model: Any) -> tuple[Any, ShadowReference]:
        follower = ShadowReference(model.named_parameters(), every=1, decay=0.5)
        return make_learner(model, reference=follower), follower

    model = with_adapters()
    learner, follower = follower_of(model)
    shift(model, 0.01)
    learner.end_step(1)
    learner.save(tmp_path / "checkpoint", state={})
    other = with_adapters()
    resumed, resumed_follower = follower_of(other)
    resumed.restore(tmp_path / "checkpoint")
    with follower.in_place(), resumed_follower.in_place():
        expected, found = trained(model), trained(other)
    assert all(torch.equal(value, found[name]) for name, value in expected.items())


def test_a_reference_of_other_parameters_is_refused(tmp_path: Path) -> None:
    saved = ShadowReference(tiny_model().named_parameters(), every=1, decay=0.5)
    other = ShadowReference(with_adapters().named_parameters(), every=1, decay=0.5)
    save_tensors(tmp_path / "reference.safetensors", saved.shadows, wrapping=ALONE)
    with pytest.raises(RunError, match="reference does not have the parameters"):
        load_tensors(tmp_path / "reference.safetensors", other.shadows, wrapping=ALONE)
