"""Logprobs for training against the plain computation: full logits, no sharing, no chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from mcpagent.models.load import LoraShape, MergedCopy, attach_lora, load_model
from mcpagent.train.batching import micro_batches
from mcpagent.train.samples import TrainSample
from mcpagent.train.scoring import TokenScorer, shared_prefix
from tests.train.world import VOCABULARY, tiny_model


@pytest.fixture
def model(tiny_checkpoint: Path) -> Any:
    return load_model(str(tiny_checkpoint), dtype=torch.float32, device=torch.device("cpu"))


def _batch(*, shared: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(9, 500, (5, 60), generator=generator)
    ids[:, :shared] = ids[0, :shared].clone()
    mask = torch.zeros(5, 60, dtype=torch.bool)
    mask[:, 40:50] = True
    mask[2, 55:] = True
    return ids, mask


def _plain(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)
    chosen = logprobs[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    return chosen[mask[:, 1:]]


@pytest.mark.parametrize("shared", [0, 30, 39])
@pytest.mark.parametrize("chunk", [1 << 25, 512 * 7])  # all at once; seven tokens of logits at a time
def test_logprobs_and_gradients_equal_the_plain_computation(model: Any, shared: int, chunk: int) -> None:
    scorer = TokenScorer(model, max_logits=chunk)
    ids, mask = _batch(shared=shared)
    assert shared_prefix(ids, mask) == (shared - 1 if shared else 0)
    gradients = []
    for compute in (lambda: scorer(ids, mask)[0], lambda: _plain(model, ids, mask)):
        model.zero_grad()
        logprobs = compute()
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        gradients.append((logprobs.detach(), {n: p.grad.clone() for n, p in model.named_parameters()}))
    (ours, our_gradient), (plain, plain_gradient) = gradients
    assert torch.allclose(ours, plain, atol=1e-5)
    for name, gradient in plain_gradient.items():
        assert torch.allclose(our_gradient[name], gradient, atol=1e-4), name


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sharing_a_prefix_changes_nothing_but_the_work(temperature: float) -> None:
    """In double precision, where what is the same is the same to ten digits. (GPT-2, because the norms of
    later architectures compute in single precision whatever the weights are.)"""
    torch.manual_seed(0)
    shape = {"vocab_size": 512, "n_positions": 64, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.2)).double().eval()
    ids, mask = _batch(shared=39)
    computed = 0

    def count(_module: Any, arguments: tuple[torch.Tensor, ...], _output: torch.Tensor) -> None:
        nonlocal computed
        computed += arguments[0].numel()

    model.transformer.wte.register_forward_hook(count)
    assert shared_prefix(ids, mask) == 38
    logprobs, _ = TokenScorer(model)(ids, mask, temperature)
    assert computed == 38 + 5 * (60 - 38)
    logits = model(input_ids=ids, use_cache=False).logits / temperature
    chosen = logits[:, :-1].gather(2, ids[:, 1:, None])[..., 0] - logits[:, :-1].logsumexp(-1)
    plain = chosen[mask[:, 1:]]
    assert logprobs.dtype is torch.float64
    assert torch.allclose(logprobs, plain, rtol=0, atol=1e-10)
    weights = torch.linspace(-1, 1, len(plain), dtype=torch.float64)
    parameters = list(model.parameters())
    ours = torch.autograd.grad((logprobs * weights).sum(), parameters)
    wanted = torch.autograd.grad((plain * weights).sum(), parameters)
    assert all(torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in zip(ours, wanted, strict=True))


def test_tokens_that_carry_loss_stay_with_their_rows_though_all_rows_have_them() -> None:
    ids = torch.arange(60).expand(3, -1)
    mask = torch.zeros(3, 60, dtype=torch.bool)
    assert shared_prefix(ids, mask) == 59
    mask[1, 40] = True  # predicted by position 39, so 39 positions are the prefix
    assert shared_prefix(ids, mask) == 39
    assert shared_prefix(ids[:1], mask[:1]) == 0


def test_a_model_with_active_dropout_shares_no_prefix() -> None:
    """One mask of the prefix for all rows would not be what the rows alone would see."""
    adapted = attach_lora(
        tiny_model(), LoraShape(r=2, alpha=4, dropout=0.5, target_modules="all-linear"), seed=0
    ).train()
    ids, mask = _batch(shared=39)
    shapes: list[torch.Size] = []
    adapted.get_input_embeddings().register_forward_hook(lambda m, i, o: shapes.append(i[0].shape))
    TokenScorer(adapted)(ids % VOCABULARY, mask)
    assert shapes == [(5, 60)]
    TokenScorer(adapted.eval())(ids % VOCABULARY, mask)
    assert shapes[1:] == [(1, 38), (5, 22)]


def test_entropy_is_that_of_the_whole_distribution(model: Any) -> None:
    ids, mask = _batch(shared=30)
    probabilities = torch.softmax(model(input_ids=ids, use_cache=False).logits[:, :-1][mask[:, 1:]], dim=-1)
    expected = torch.distributions.Categorical(probs=probabilities).entropy()
    assert torch.allclose(TokenScorer(model)(ids, mask)[1], expected, atol=1e-4)


def test_micro_batches_cover_every_sample_once_and_keep_the_sum_of_logprobs(model: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for length in (20, 33, 47, 21, 64):
        ids = tuple(torch.randint(9, 500, (length,), generator=generator).tolist())
        mask = tuple(i > length - 6 for i in range(length))
        samples.append(TrainSample(token_ids_T=ids, loss_mask_T=mask))
    batches = list(micro_batches(samples, max_tokens=100))
    assert sorted(i for b in batches for i in b.rows) == list(range(5))
    assert all(b.input_ids.numel() <= 100 for b in batches) and len(batches) > 1
    scorer = TokenScorer(model)
    with torch.no_grad():
        total = sum(float(scorer(b.input_ids, b.loss_mask)[0].sum()) for b in batches)
        alone = sum(
            float(_plain(model, torch.tensor([s.token_ids_T]), torch.tensor([s.loss_mask_T])).sum())
            for s in samples
        )
    assert total == pytest.approx(alone, abs=1e-3)


def test_the_merged_copy_samples_what_the_adapters_train(model: Any) -> None:
    adapted = attach_lora(model, LoraShape(r=4, alpha=8, dropout=0.0, target_modules="all-linear"), seed=0)
    merged = MergedCopy(adapted)
    ids, mask = _batch(shared=0)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        before = TokenScorer(merged.model)(ids, mask)[0]
        for name, parameter in adapted.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.5)
        stale = TokenScorer(merged.model)(ids, mask)[0]
        merged.sync()
        fresh = TokenScorer(merged.model)(ids, mask)[0]
        expected = TokenScorer(adapted)(ids, mask)[0]
    assert torch.equal(before, stale)
    assert not torch.allclose(before, expected, atol=1e-2)
    assert torch.allclose(fresh, expected, atol=1e-4)
