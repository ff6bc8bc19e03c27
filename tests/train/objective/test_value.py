"""The value head: where it reads, what it is fitted to, and that a checkpoint brings it back."""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.learner.optim import build_optimizers
from mcpagent.train.objective.advantages import CreditSettings
from mcpagent.train.objective.value import (
    ValueHead,
    explained_variance,
    named_parameters,
    new_value_head,
    turn_starts,
    value_loss,
)
from mcpagent.train.update import UpdateSettings, rescore, update_policy
from tests.train.world import (
    VOCABULARY,
    full_logprobs,
    given,
    gradients_seen,
    make_learner,
    on_policy,
    some_samples,
    tiny_model,
)

GAE = CreditSettings(advantage="gae", gamma=1.0, lambda_=1.0)


def with_head(model: Any, **options: Any) -> tuple[Any, ValueHead]:
    head = new_value_head(model)
    return make_learner(model, value_head=head, **options), head


@pytest.mark.parametrize(
    ("value", "expected", "gradient"),
    [
        # Old value 0, return 1, half-width 0.2.
        (0.1, 0.5 * 0.9**2, -0.9),  # inside: (0.1 - 1)^2 / 2, gradient v - R
        (0.5, 0.5 * 0.8**2, 0.0),  # it moved further towards the return than it may: held at 0.2
        (-0.5, 0.5 * 1.5**2, -1.5),  # it moved away: the larger error is its own
    ],
)
def test_a_value_earns_nothing_for_moving_further_than_the_clip(
    value: float, expected: float, gradient: float
) -> None:
    values = torch.tensor([value], requires_grad=True)
    loss = value_loss(values, old_values_K=torch.zeros(1), returns_K=torch.ones(1))
    loss.sum().backward()
    assert values.grad is not None
    assert float(loss.detach()) == pytest.approx(expected)
    assert float(values.grad) == pytest.approx(gradient)


def test_explained_variance_worked_by_hand() -> None:
    # Targets 0, 1, 2: variance 2/3. Off by 0.5, 0, -0.5: residuals vary by 1/6. 1 - (1/6) / (2/3) = 3/4.
    assert explained_variance([0.5, 1.0, 1.5], [0.0, 1.0, 2.0]) == pytest.approx(0.75)
    assert explained_variance([3.0, 3.0, 3.0], [0.0, 1.0, 2.0]) == pytest.approx(0.0)
    assert explained_variance([0.0, 1.0], [0.3, 0.3]) is None


def test_a_value_is_that_of_the_state_before_the_turns_first_token() -> None:
    model = tiny_model()
    learner, head = with_head(model)
    torch.nn.init.normal_(head.outer.weight)
    head.scale.fill_(0.5)
    samples = some_samples(4)
    (batch,) = learner.batches(samples, max_tokens=8192)
    _, _, values = learner.score_with_values(batch, turn_starts([samples[i] for i in batch.rows]))
    assert values is not None
    expected: list[float] = []
    for sample in (samples[i] for i in batch.rows):
        ids = torch.tensor([sample.token_ids_T])
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        mask = sample.loss_mask_T
        firsts = [t for t in range(1, len(mask)) if mask[t] and not mask[t - 1]]
        expected += head(hidden[[t - 1 for t in firsts]]).tolist()
    assert values.tolist() == pytest.approx(expected, abs=1e-5)


def adding(*others: list[float]) -> Callable[[Sequence[float]], list[float]]:
    """The sums of this process and of `others`."""
    return lambda own: [sum(column) for column in zip(own, *others, strict=True)]


def test_states_are_standardised_by_those_that_were_seen_first() -> None:
    head = ValueHead(2)
    states = torch.tensor([[11.0, 5.0], [13.0, 5.0]])
    with head.measuring(adding()):
        assert head(states).tolist() == pytest.approx([0.0, 0.0], abs=1e-6)
    # Means 12 and 5, variances 1 and 0; an almost constant component counts as 1e-4 of their mean, 0.5.
    assert head.mean.tolist() == [12.0, 5.0]
    assert head.scale.tolist() == pytest.approx([(1 + 5e-5) ** -0.5, (5e-5) ** -0.5])
    before = head.scale.clone()
    with head.measuring(adding()):
        head(states * 100)
    assert torch.equal(head.scale, before)


def test_states_are_standardised_over_all_processes() -> None:
    states = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    whole, part = ValueHead(3), ValueHead(3)
    with whole.measuring(adding()):
        whole(states)
    theirs = states[:5].double()
    with part.measuring(adding([5.0, *theirs.sum(0).tolist(), *theirs.square().sum(0).tolist()])):
        part(states[5:])
    assert part.mean.tolist() == pytest.approx(whole.mean.tolist())
    assert part.scale.tolist() == pytest.approx(whole.scale.tolist())


@pytest.mark.parametrize("count", [0, 1])
def test_too_few_states_to_vary_leave_the_measuring_to_a_later_update(count: int) -> None:
    head = ValueHead(2)
    with head.measuring(adding()):
        head(torch.ones(count, 2))
    assert not head.scale.any()
    with head.measuring(adding()):
        head(torch.eye(2))
    assert head.scale.all()


def test_what_little_sets_states_apart_is_found() -> None:
    torch.manual_seed(0)
    returns = torch.tensor([0.0, 1.0] * 32)
    states = 20.0 + 0.05 * torch.randn(64, 16)  # nearly all of a state is the same for all
    states[:, 5] += 0.3 * returns
    head = ValueHead(16)
    with head.measuring(adding()):
        head(states)
    optimizer = torch.optim.AdamW(head.parameters(), lr=3e-3)
    for _ in range(200):
        loss = (head(states) - returns).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    explained = explained_variance(head(states).tolist(), returns.tolist())
    assert explained is not None
    assert explained > 0.9


def test_values_learn_which_samples_pay() -> None:
    model = tiny_model()
    learner, _ = with_head(model)
    samples, rewards = on_policy(model, some_samples(4, prefix=3)), [1.0, 0.0, 1.0, 0.0]
    # Made before each update: the same samples again and again would leave the policy behind.
    settings = UpdateSettings(use_reference=False, value_coef=5.0)
    explained: list[float] = []
    for step in range(1, 31):
        stats = update_policy(
            learner,
            given(samples, rewards, settings=GAE),
            settings=settings,
            first_optimizer_step=step,
            seed=0,
        )
        assert stats.explained_variance is not None
        explained.append(stats.explained_variance)
    assert explained[0] == pytest.approx(0.0, abs=1e-6)
    assert explained[-1] > 0.9


def test_a_checkpoint_brings_the_head_and_its_moments_back_and_the_export_does_not_have_it(
    tmp_path: Path,
) -> None:
    def updated(learner: Any, step: int) -> None:
        samples = some_samples(4)
        update_policy(
            learner,
            given(samples, [1.0, 0.0, 0.5, 0.2], settings=GAE),
            settings=UpdateSettings(use_reference=False),
            first_optimizer_step=step,
            seed=step,
        )

    learner, head = with_head(tiny_model())
    updated(learner, 1)
    learner.save(tmp_path / "checkpoint", state={"step": 1})
    updated(learner, 2)
    resumed, resumed_head = with_head(tiny_model())
    assert resumed.restore(tmp_path / "checkpoint") == {"step": 1}
    updated(resumed, 2)
    assert head.outer.weight.abs().max() > 0
    for name, tensor in head.state_dict().items():
        assert torch.equal(tensor, resumed_head.state_dict()[name]), name
    exported = [p.name for p in (tmp_path / "checkpoint").iterdir() if p.suffix == ".safetensors"]
    assert exported == ["model.safetensors"]
    assert b"value_head" not in (tmp_path / "checkpoint" / "model.safetensors").read_bytes()
    document = json.loads((tmp_path / "checkpoint" / "trainer_state" / "state.json").read_text())
    assert document["state"] == {"step": 1}


def test_the_head_may_learn_at_a_rate_of_its_own() -> None:
    model = tiny_model()
    head = new_value_head(model)
    named = [*model.named_parameters(), *named_parameters(head)]
    (optimizer,) = build_optimizers(
        named,
        kind="adamw",
        learning_rate=0.01,
        muon_learning_rate=0.02,
        betas=(0.9, 0.98),
        weight_decay=0.0,
        value_learning_rate=0.5,
    )
    rates = {id(p): group["lr"] for group in optimizer.param_groups for p in group["params"]}
    own = {id(p) for p in head.parameters()}
    assert {rates[id(p)] for _, p in named if id(p) in own} == {0.5}
    assert {rates[id(p)] for _, p in named if id(p) not in own} == {0.01}


def gae_gradients(
    model: Any, head: ValueHead, samples: list[TrainSample], rewards: list[float], *, value_coef: float
) -> dict[str, torch.Tensor]:
    """The gradients of PPO's objective with GAE, sample by sample and in float64, by autograd alone. One step
    is taken, so that every ratio is 1 and no value has moved: neither clip acts, and the gradient of the
    ratio is that of the logprob."""
    gamma, lambda_ = 0.9, 0.8
    states: list[torch.Tensor] = []  # of each sample: those that predict the first token of each turn
    for sample in samples:
        ids, own = torch.tensor([sample.token_ids_T]), sample.loss_mask_T
        firsts = [t for t in range(1, len(own)) if own[t] and not own[t - 1]]
        hidden = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state[0]
        states.append(hidden[[t - 1 for t in firsts]])
    every = torch.cat(states).detach()
    variance = every.var(0, correction=0)
    spread = (variance + 1e-4 * variance.mean()).sqrt()
    weights = [p.double() for p in (head.inner.weight, head.inner.bias, head.outer.weight, head.outer.bias)]
    advantages: list[list[float]] = []
    errors: list[torch.Tensor] = []
    for reward, of_sample in zip(rewards, states, strict=True):
        standard = (of_sample - every.mean(0)) / spread
        inner = standard @ weights[0].T + weights[1]
        values = (inner * 0.5 * (1 + torch.erf(inner / 2**0.5))) @ weights[2][0] + weights[3]
        v = [*values.tolist(), 0.0]
        # Equation 16 of arXiv 1506.02438 as a sum: A_k = sum over l of (gamma lambda)^l delta_k+l.
        outcome = [0.0] * (len(values) - 1) + [reward]
        deltas = [outcome[k] + gamma * v[k + 1] - v[k] for k in range(len(values))]
        advantages.append(
            [
                sum((gamma * lambda_) ** (j - k) * deltas[j] for j in range(k, len(deltas)))
                for k in range(len(deltas))
            ]
        )
        errors += [
            (value - (a + v[k])) ** 2 / 2
            for k, (value, a) in enumerate(zip(values, advantages[-1], strict=False))
        ]
    tokens: list[float] = []
    for turns, sample in zip(advantages, samples, strict=True):
        for advantage, count in zip(turns, sample.turn_tokens_K, strict=True):
            tokens += [advantage] * count
    mean, deviation = statistics.mean(tokens), statistics.variance(tokens)
    total, place = torch.zeros((), dtype=torch.float64), 0
    for sample in samples:
        logprobs = full_logprobs(model, sample)
        white = [(a - mean) / math.sqrt(deviation + 1e-8) for a in tokens[place : place + len(logprobs)]]
        place += len(logprobs)
        total = total - (torch.tensor(white, dtype=torch.float64) * logprobs).mean() / len(samples)
    total = total + value_coef * torch.stack(errors).mean()
    named = [*model.named_parameters(), *named_parameters(head)]
    gradients = torch.autograd.grad(total, [p for _, p in named])
    return {name: g.double() for (name, _), g in zip(named, gradients, strict=True)}


@pytest.mark.parametrize("micro_batch_tokens", [60, 8192])
def test_gradients_with_a_value_head_are_those_of_an_independent_float64_computation(
    micro_batch_tokens: int,
) -> None:
    torch.manual_seed(5)
    # Norms of Qwen compute in float32, whatever the model is; those of GPT-2 do not.
    shape: dict[str, Any] = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256}
    without_dropout = dict.fromkeys(("attn_pdrop", "embd_pdrop", "resid_pdrop"), 0.0)
    config = GPT2Config(vocab_size=VOCABULARY, initializer_range=0.2, **shape, **without_dropout)
    model = GPT2LMHeadModel(config).double().eval()
    learner, head = with_head(model, learning_rate=0.0)
    samples, rewards = on_policy(model, some_samples(5)), [1.0, 0.0, 0.5, -0.2, 0.7]
    rescore(learner, samples, max_tokens=8192, temperature=1.0, with_reference=False)  # measures the states
    torch.nn.init.normal_(head.outer.weight, std=0.3)  # values that differ, as in the midst of a run
    expected = gae_gradients(model, head, samples, rewards, value_coef=0.3)
    seen = gradients_seen([*model.named_parameters(), *named_parameters(head)])
    update_policy(
        learner,
        given(samples, rewards, settings=CreditSettings(advantage="gae", gamma=0.9, lambda_=0.8)),
        settings=UpdateSettings(use_reference=False, value_coef=0.3, micro_batch_tokens=micro_batch_tokens),
        first_optimizer_step=1,
        seed=0,
    )
    assert seen.keys() == expected.keys()
    worst = max(float((seen[name] - value).abs().max()) for name, value in expected.items())
    assert worst <= 1e-8
    assert all(float(value.abs().max()) > 1e-4 for value in expected.values()), (
        "there is something to compare"
    )


def test_every_weight_of_a_new_head_has_a_gradient_and_every_value_is_0() -> None:
    """An outer layer of zeros leaves the inner one without a gradient in the first step, and with one that is
    as small as AdamW's epsilon in the second: what it learns then is rounding."""
    torch.manual_seed(0)
    head = ValueHead(16)
    states = torch.randn(24, 16)
    with head.measuring(adding()):
        values = head(states)
    assert values.abs().max() == 0.0
    loss = value_loss(head(states), old_values_K=torch.zeros(24), returns_K=torch.rand(24)).mean()
    loss.backward()
    assert head.inner.weight.grad is not None and head.outer.weight.grad is not None
    assert head.inner.weight.grad.abs().median() > 1e-4
    assert head.outer.weight.grad.abs().median() > 1e-4


def test_the_value_loss_is_the_mean_over_the_turns_of_the_whole_batch() -> None:
    model = tiny_model()
    learner, head = with_head(model, learning_rate=0.0)
    samples, rewards = on_policy(model, some_samples(4)), [1.0, 0.0, 0.5, -0.2]
    gradients: list[float] = []
    head.outer.bias.register_post_accumulate_grad_hook(lambda p: gradients.append(float(p.grad)))
    settings = UpdateSettings(use_reference=False, value_coef=0.3, micro_batch_tokens=60)
    stats = update_policy(
        learner, given(samples, rewards, settings=GAE), settings=settings, first_optimizer_step=1, seed=0
    )
    # Every value is 0 and, undiscounted, both turns of a sample return its reward: 0.5 * sum of squares / 8,
    # and its derivative by what is added to all values, -sum / 8, times the coefficient.
    assert stats.value_loss == pytest.approx(0.5 * 2 * (1.0 + 0.25 + 0.04) / 8)
    assert gradients[-1] == pytest.approx(-0.3 * 2 * 1.3 / 8, rel=1e-5)
