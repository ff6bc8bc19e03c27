"""One update against the objective computed sample by sample, in double precision, by autograd alone."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.objective.advantages import CreditSettings
from mcpagent.train.objective.loss import Objective
from mcpagent.train.update import UpdateSettings, UpdateStats, update_policy
from tests.models.adapters import adapted, move_adapters
from tests.train.world import (
    frozen_as,
    full_logprobs,
    given,
    gradients_seen,
    make_learner,
    on_policy,
    some_samples,
    tiny_model,
)

ADVANTAGES = [1.2, -0.7, 0.4, -0.9]


def gradient_of(
    model: Any,
    samples: Sequence[TrainSample],
    advantages: Sequence[float],
    settings: UpdateSettings,
    *,
    reference: Any = None,
    kl_coef: float = 0.0,
) -> tuple[dict[str, torch.Tensor], UpdateStats]:
    """What the update computes, read before a step of size zero is taken."""
    frozen = None if reference is None else frozen_as(reference, model)
    learner = make_learner(model, learning_rate=0.0, reference=frozen)
    seen = gradients_seen(model.named_parameters())
    stats = update_policy(
        learner,
        given(samples, advantages),
        settings=settings,
        kl_coef=kl_coef,
        first_optimizer_step=1,
        seed=0,
    )
    return seen, stats


def objective(
    model: Any,
    samples: Sequence[TrainSample],
    advantages: Sequence[float],
    *,
    reference: Any,
    kl_coef: float,
) -> torch.Tensor:
    """DeepSeekMath (arXiv 2402.03300), equation 3: mean over outputs of the mean over their tokens of the
    clipped surrogate minus beta times k3."""
    total = torch.zeros((), dtype=torch.float64)
    for sample, advantage in zip(samples, advantages, strict=True):
        logprobs = full_logprobs(model, sample)
        with torch.no_grad():
            reference_logprobs = full_logprobs(reference, sample)
        old = [p for p, own in zip(sample.sampler_logprobs_T, sample.loss_mask_T, strict=True) if own]
        of_sample = torch.zeros((), dtype=torch.float64)
        for t in range(len(old)):
            ratio = torch.exp(logprobs[t] - old[t])
            clipped = min(max(float(ratio.detach()), 0.8), 1.2)
            surrogate = ratio * advantage
            if clipped * advantage < float(surrogate.detach()):
                surrogate = torch.tensor(clipped * advantage, dtype=torch.float64)
            d = reference_logprobs[t] - logprobs[t]
            of_sample = of_sample + surrogate - kl_coef * (torch.exp(d) - d - 1.0)
        total = total + of_sample / len(old)
    return -total / len(samples)


@pytest.mark.parametrize("micro_batch_tokens", [60, 130, 8192])
def test_the_gradient_is_that_of_the_published_objective_however_the_batch_is_cut(
    micro_batch_tokens: int,
) -> None:
    model, reference = tiny_model(dtype=torch.float64), tiny_model(1, dtype=torch.float64)
    # Off policy on purpose: made-up sampler logprobs put ratios on both sides of the clip range.
    samples = some_samples(4)
    expected_loss = objective(model, samples, ADVANTAGES, reference=reference, kl_coef=0.3)
    expected = dict(
        zip(
            [n for n, _ in model.named_parameters()],
            torch.autograd.grad(expected_loss, list(model.parameters())),
            strict=True,
        )
    )
    settings = UpdateSettings(micro_batch_tokens=micro_batch_tokens)
    gradient, stats = gradient_of(model, samples, ADVANTAGES, settings, reference=reference, kl_coef=0.3)
    assert 0.0 < stats.summary()["clip_fraction"] < 1.0
    # The sampler's logprobs are float32 (that is what a sampler reports), hence 1e-5 and not 1e-10.
    assert stats.summary()["loss"] == pytest.approx(float(expected_loss.detach()), rel=1e-5)
    for name, value in expected.items():
        assert torch.allclose(gradient[name], value, rtol=1e-4, atol=1e-7), name


def test_on_policy_samples_have_ratio_one_no_clipping_and_no_drift() -> None:
    model = tiny_model()
    samples = on_policy(model, some_samples(4))
    reference = copy.deepcopy(model)
    _, stats = gradient_of(model, samples, ADVANTAGES, UpdateSettings(), reference=reference, kl_coef=0.1)
    summary = stats.summary()
    assert summary["ratio_mean"] == pytest.approx(1.0, abs=1e-5)
    assert summary["clip_fraction"] == 0.0
    assert summary["logprob_drift_max"] < 1e-4
    assert summary["kl"] == pytest.approx(0.0, abs=1e-6)
    assert summary["approx_kl"] == pytest.approx(0.0, abs=1e-6)
    assert stats.tokens == sum(s.loss_tokens for s in samples)


def test_how_far_the_policy_is_from_the_one_that_sampled_is_the_mean_over_its_tokens() -> None:
    model = tiny_model(dtype=torch.float64)
    samples = some_samples(3)
    _, stats = gradient_of(model, samples, ADVANTAGES[:3], UpdateSettings(use_reference=False))
    with torch.no_grad():
        new = torch.cat([full_logprobs(model, sample) for sample in samples])
    log_ratio = new - torch.tensor([p for s in samples for p in s.sampler_logprobs_N], dtype=torch.float64)
    expected = (log_ratio.exp() - 1.0 - log_ratio).mean()  # KL(old || new), Schulman 2020
    assert stats.summary()["approx_kl"] == pytest.approx(float(expected), rel=1e-6)


def test_the_entropy_bonus_has_the_gradient_of_the_entropy_itself() -> None:
    model = tiny_model(dtype=torch.float64)
    samples = some_samples(3)
    mean = torch.zeros((), dtype=torch.float64)
    reported = 0.0
    for sample in samples:
        logits = model(input_ids=torch.tensor([sample.token_ids_T]), use_cache=False).logits[0, :-1]
        entropies = torch.distributions.Categorical(logits=logits).entropy()
        own = torch.tensor(sample.loss_mask_T[1:])
        mean = mean + entropies[own].mean() / 3
        reported += float(entropies[own].detach().sum())
    expected = torch.autograd.grad(-0.5 * mean, list(model.parameters()))
    settings = UpdateSettings(use_reference=False, entropy_coef=0.5)
    gradient, stats = gradient_of(model, samples, [0.0] * 3, settings)
    assert stats.summary()["entropy"] == pytest.approx(reported / stats.tokens)
    for (name, _), value in zip(model.named_parameters(), expected, strict=True):
        assert torch.allclose(gradient[name], value, rtol=1e-4, atol=1e-8), name


def test_epochs_and_minibatches_are_optimiser_steps_and_see_every_sample() -> None:
    model = tiny_model()
    samples = some_samples(10)
    learner = make_learner(model)
    stats = update_policy(
        learner,
        given(samples, [1.0, -1.0, 0.5, -0.5, 0.2] * 2, groups=[0, 1, 2, 3, 4] * 2),
        settings=UpdateSettings(use_reference=False, epochs=2, minibatches=3),
        first_optimizer_step=1,
        seed=0,
    )
    # ceil(5 / 3) = 2 groups a minibatch: 2 + 2 + 1, twice.
    assert stats.optimizer_steps == 6
    assert stats.summary()["approx_kl"] > 0.0  # later minibatches see what the first ones moved
    assert stats.tokens == 2 * sum(s.loss_tokens for s in samples)


def test_which_samples_share_a_minibatch_depends_on_the_seed_alone() -> None:
    def after(seed: int) -> torch.Tensor:
        model = tiny_model()
        update_policy(
            make_learner(model),
            given(on_policy(model, some_samples(6)), [1.0, -1.0, 0.5, -0.5, 0.2, -0.2]),
            settings=UpdateSettings(use_reference=False, minibatches=2),
            first_optimizer_step=1,
            seed=seed,
        )
        return torch.cat([p.detach().flatten() for p in model.parameters()])

    first, again, other = (after(seed) for seed in (1, 1, 0))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_an_update_without_samples_changes_nothing_and_reports_nothing() -> None:
    model = tiny_model()
    before = copy.deepcopy(model.state_dict())
    stats = update_policy(
        make_learner(model), given([], []), settings=UpdateSettings(), first_optimizer_step=1, seed=0
    )
    assert (stats.summary(), stats.optimizer_steps) == ({}, 0)
    assert all(torch.equal(before[n], v) for n, v in model.state_dict().items())


def test_a_reference_without_a_model_of_its_own_is_the_base_with_its_adapters_off() -> None:
    base = tiny_model()
    samples = some_samples(3)
    expected = [full_logprobs(base, s).detach().float() for s in samples]
    policy = adapted(base, r=2, dropout=0.5)
    move_adapters(policy)
    for layer in base.get_decoder().layers:
        layer.self_attn.attention_dropout = 0.5  # of the base itself, where adapters off would not help
    learner = make_learner(policy)
    policy.train()
    (batch,) = learner.batches(samples, max_tokens=8192)
    wanted = torch.cat([expected[i] for i in batch.rows])
    assert torch.allclose(learner.reference_logprobs(batch), wanted, atol=1e-5)
    assert policy.training
    assert not torch.allclose(learner.score(batch)[0], wanted, atol=1e-2)


def test_several_steps_are_measured_from_the_trainers_own_logprobs_and_the_sampler_is_reported() -> None:
    model = tiny_model()
    samples = some_samples(4)  # the sampler's logprobs are made up: ratios to them would be far from 1
    exact = torch.cat([full_logprobs(model, s).detach() for s in samples])
    sampler = torch.tensor([p for s in samples for p in s.sampler_logprobs_N], dtype=torch.float64)
    settings = UpdateSettings(use_reference=False, epochs=2)
    _, stats = gradient_of(model, samples, ADVANTAGES, settings)
    summary = stats.summary()
    assert summary["ratio_mean"] == pytest.approx(1.0, abs=1e-5)  # nothing moved: the step is of size zero
    gap, weight = (exact - sampler).abs(), (exact - sampler).exp()
    assert summary["logprob_drift_mean"] == pytest.approx(float(gap.mean()), rel=1e-5)
    assert summary["logprob_drift_max"] == pytest.approx(float(gap.max()), rel=1e-5)
    assert summary["logprob_drift_p99"] == pytest.approx(
        float(gap.sort().values[-(-99 * len(gap) // 100) - 1])
    )
    log_ratio = exact - sampler
    assert summary["sampler_kl"] == pytest.approx(float((weight - 1.0 - log_ratio).mean()), rel=1e-4)
    assert summary["sampler_ratio_mean"] == pytest.approx(float(weight.mean()), rel=1e-4)
    assert summary["sampler_ratio_max"] == pytest.approx(float(weight.max()), rel=1e-4)
    ess = float(weight.sum() ** 2 / (len(weight) * weight.square().sum()))
    assert summary["sampler_ess"] == pytest.approx(ess, rel=1e-4)
    assert 0.0 < ess < 1.0


def test_the_sampler_is_corrected_for_with_bounded_weights() -> None:
    model = tiny_model(dtype=torch.float64)
    samples = some_samples(3)
    advantages = ADVANTAGES[:3]
    total = torch.zeros((), dtype=torch.float64)
    for sample, advantage in zip(samples, advantages, strict=True):
        logprobs = full_logprobs(model, sample)
        sampler = torch.tensor(sample.sampler_logprobs_N, dtype=torch.float64)
        weight = (logprobs.detach() - sampler).exp().clamp(max=1.5)
        # On policy with respect to the trainer itself: the gradient of the ratio is that of the logprob.
        total = total - (weight * advantage * logprobs).sum()
    expected = torch.autograd.grad(total / sum(s.loss_tokens for s in samples), list(model.parameters()))
    settings = UpdateSettings(objective=Objective(loss="dapo"), use_reference=False, tis_cap=1.5)
    gradient, stats = gradient_of(model, samples, advantages, settings)
    for (name, _), value in zip(model.named_parameters(), expected, strict=True):
        assert torch.allclose(gradient[name], value, rtol=1e-5, atol=1e-8), name
    assert 0.0 < stats.summary()["correction_mean"] <= 1.5


def test_a_kl_in_the_reward_changes_the_advantages_and_not_the_loss() -> None:
    model, reference = tiny_model(dtype=torch.float64), tiny_model(1, dtype=torch.float64)
    samples = on_policy(model, some_samples(2))
    graded = given(samples, [1.0, 0.0], groups=[0, 0], settings=CreditSettings(scale="none"))
    with torch.no_grad():
        k1 = [float((full_logprobs(model, s) - full_logprobs(reference, s)).sum()) for s in samples]
    first, second = 1.0 - 0.1 * k1[0], 0.0 - 0.1 * k1[1]
    advantages = [(first - second) / 2, (second - first) / 2]
    settings = UpdateSettings(objective=Objective(kl_estimator=None), kl_in_reward=True, use_reference=True)
    plain, _ = gradient_of(model, samples, advantages, UpdateSettings(use_reference=False))
    twin = tiny_model(dtype=torch.float64)
    seen = gradients_seen(twin.named_parameters())
    learner = make_learner(twin, learning_rate=0.0, reference=frozen_as(reference, twin))
    stats = update_policy(learner, graded, settings=settings, kl_coef=0.1, first_optimizer_step=1, seed=0)
    assert stats.summary()["kl"] > 0.0
    for name, value in plain.items():
        assert torch.allclose(seen[name], value, rtol=1e-4, atol=1e-7), name


def test_minibatches_are_of_whole_groups() -> None:
    model = tiny_model()
    samples = some_samples(6)
    learner = make_learner(model)
    counts: list[int] = []
    learner.scorer.register_forward_hook(lambda _module, _inputs, output: counts.append(len(output[0])))
    groups = [0, 1, 2, 0, 1, 2]
    update_policy(
        learner,
        given(samples, [1.0, -1.0, 0.5, -0.5, 0.2, -0.2], groups=groups),
        settings=UpdateSettings(use_reference=False, minibatches=3),
        first_optimizer_step=1,
        seed=0,
    )
    tokens = [s.loss_tokens for s in samples]
    of_groups = sorted(tokens[g] + tokens[g + 3] for g in range(3))
    # The first pass rescores everything; then comes one minibatch a group.
    assert counts[0] == sum(tokens)
    assert sorted(counts[1:]) == of_groups


@pytest.mark.parametrize("epochs", [1, 2], ids=["single step", "rescored"])
def test_the_reference_is_asked_once_and_not_at_all_where_the_kl_weighs_nothing(epochs: int) -> None:
    def passes(kl_coef: float) -> tuple[int, bool]:
        model, asked = tiny_model(), list[int]()
        reference = frozen_as(tiny_model(1), model)
        learner = make_learner(model, reference=reference)
        embedding = model.model.embed_tokens.weight

        def look(*_: Any) -> None:
            if torch.equal(embedding, reference.shadows["model.embed_tokens.weight"]):
                asked.append(1)

        model.model.register_forward_pre_hook(look)
        stats = update_policy(
            learner,
            given(some_samples(4), [1.0, -1.0, 0.5, -0.5]),
            settings=UpdateSettings(epochs=epochs),
            kl_coef=kl_coef,
            first_optimizer_step=1,
            seed=0,
        )
        return len(asked), "kl" in stats.summary()

    assert passes(0.1) == (1, True)
    assert passes(0.0) == (0, False)
