"""Which parameters an optimiser moves, how far, and the schedule."""

from __future__ import annotations

import pytest
import torch

from mcpagent.train.learner.optim import BatchedMuon, Schedule, build_optimizers, linear_schedule
from tests.train.world import make_learner, some_samples, tiny_model


def test_muon_moves_the_matrices_inside_the_network_and_adamw_the_rest() -> None:
    model = tiny_model()
    muon, adamw = build_optimizers(
        model.named_parameters(),
        kind="muon",
        learning_rate=0.1,
        muon_learning_rate=0.2,
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )
    names = {id(p): n for n, p in model.named_parameters()}
    by_muon = {names[id(p)] for g in muon.param_groups for p in g["params"]}
    by_adamw = {names[id(p)] for g in adamw.param_groups for p in g["params"]}
    assert by_muon | by_adamw == set(names.values())
    assert not by_muon & by_adamw
    assert all("proj" in n for n in by_muon)
    assert all("norm" in n or "embed" in n for n in by_adamw)
    assert (muon.param_groups[0]["lr"], adamw.param_groups[0]["lr"]) == (0.2, 0.1)


def test_frozen_parameters_are_left_alone() -> None:
    model = tiny_model()
    for name, parameter in model.named_parameters():
        parameter.requires_grad_("norm" in name)
    (adamw,) = build_optimizers(
        model.named_parameters(),
        kind="adamw",
        learning_rate=0.1,
        muon_learning_rate=0.1,
        betas=(0.9, 0.98),
        weight_decay=0.0,
    )
    chosen = sum(len(g["params"]) for g in adamw.param_groups)
    assert chosen == sum("norm" in name for name, _ in model.named_parameters())


@pytest.mark.parametrize(
    ("step", "factor"),
    # 20 steps, 4 of warm-up, decay over the last half: (20 - step) / 10 from step 11 on, not below 0.05.
    [(1, 0.25), (2, 0.5), (4, 1.0), (10, 1.0), (11, 0.9), (15, 0.5), (19, 0.1), (20, 0.05)],
)
def test_the_schedule_rises_stays_and_falls(step: int, factor: float) -> None:
    assert linear_schedule(total=20, warmup=4, decay_share=0.5)(step) == pytest.approx(factor)


def test_without_warmup_and_decay_the_rate_is_constant() -> None:
    constant = linear_schedule(total=3)
    assert [constant(step) for step in (1, 2, 3)] == [1.0, 1.0, 1.0]


def test_a_schedule_sets_every_group_from_its_own_base_and_forgets_what_was() -> None:
    parameters = [torch.nn.Parameter(torch.zeros(1)) for _ in range(2)]
    optimizers = [torch.optim.SGD([p], lr=lr) for p, lr in zip(parameters, (1.0, 0.1), strict=True)]
    schedule = Schedule(optimizers, lambda step: 1.0 / step)
    for step in (1, 4, 2):
        assert schedule.set(step) == 1.0 / step
        assert [o.param_groups[0]["lr"] for o in optimizers] == pytest.approx([1.0 / step, 0.1 / step])


def test_gradients_are_clipped_to_the_limit_and_the_norm_before_it_is_reported() -> None:
    def moved(limit: float | None) -> tuple[float, float]:
        model = tiny_model()
        before = torch.cat([p.detach().flatten() for p in model.parameters()])
        learner = make_learner(model, gradient_clip=limit)
        # Plain gradient descent shows the size of the gradient that arrives.
        learner._optimizers = [torch.optim.SGD(model.parameters(), lr=1.0)]
        (batch,) = learner.batches(some_samples(4), max_tokens=8192)
        learner.backward(-learner.score(batch)[0].mean())
        norm, _ = learner.step(1)
        after = torch.cat([p.detach().flatten() for p in model.parameters()])
        return norm, float((after - before).norm())

    norm, distance = moved(None)
    assert distance == pytest.approx(norm, rel=1e-4)
    assert norm > 0.5
    assert moved(0.5) == (pytest.approx(norm), pytest.approx(0.5, rel=1e-3))


def test_matrices_that_muon_takes_together_move_as_torch_moves_each_alone() -> None:
    torch.manual_seed(0)
    shapes = [(6, 4), (4, 6), (5, 5), (6, 4), (4, 6)]
    starts = [torch.randn(shape) for shape in shapes]
    ours, theirs = ([torch.nn.Parameter(m.clone()) for m in starts] for _ in range(2))
    settings = {"lr": 0.02, "momentum": 0.9, "weight_decay": 0.1}
    optimizers = BatchedMuon(ours, **settings), torch.optim.Muon(theirs, **settings)
    for step in range(4):
        gradients = [torch.randn(shape) * 10.0**step for shape in shapes]
        for parameters, optimizer in zip((ours, theirs), optimizers, strict=True):
            for parameter, gradient in zip(parameters, gradients, strict=True):
                parameter.grad = gradient.clone()
            optimizer.step()
    for own, other in zip(ours, theirs, strict=True):
        # torch's is in bfloat16: three digits of an update of length lr.
        assert torch.allclose(own, other, atol=4 * 0.02 * 0.02)
    kept, of_torch = (optimizer.state_dict()["state"] for optimizer in optimizers)
    for own, other in zip(kept.values(), of_torch.values(), strict=True):
        assert torch.equal(own["momentum_buffer"], other["momentum_buffer"])
