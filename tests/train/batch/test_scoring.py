"""Logprobs for training against the plain computation: full logits, no sharing, no chunks."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from mcpagent.models.adapters import MergedCopy
from mcpagent.models.load import load_model
from mcpagent.train.batch.samples import PaddedBatch, TrainSample, padded_batches
from mcpagent.train.batch.scoring import TokenScorer
from tests.models.adapters import adapted, move_adapters
from tests.models.families import FAMILIES, VOCABULARY, tiny


@pytest.fixture
def model(tiny_checkpoint: Path) -> Any:
    return load_model(str(tiny_checkpoint), dtype=torch.float32, device=torch.device("cpu"))


def _rows() -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(9, 500, (5, 60), generator=generator)
    mask = torch.zeros(5, 60, dtype=torch.bool)
    mask[:, 40:50] = True
    mask[2, 55:] = True
    return ids, mask


def _plain(model: Any, ids: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    logprobs = torch.log_softmax(model(input_ids=ids, use_cache=False).logits.float(), dim=-1)
    chosen = logprobs[:, :-1].gather(2, ids[:, 1:, None])[..., 0]
    return chosen[mask[:, 1:]]


@pytest.mark.parametrize("chunk", [1 << 25, 512 * 7])  # all at once; seven tokens of logits at a time
def test_logprobs_and_gradients_equal_the_plain_computation(model: Any, chunk: int) -> None:
    _assert_as_plain(model, *_rows(), chunk=chunk)


def _assert_as_plain(model: Any, ids: torch.Tensor, mask: torch.Tensor, *, chunk: int) -> None:
    scorer = TokenScorer(model, max_logits=chunk)
    gradients = []
    for compute in (lambda: scorer(PaddedBatch((), ids, mask))[0], lambda: _plain(model, ids, mask)):
        model.zero_grad()
        logprobs = compute()
        (logprobs * torch.linspace(-1, 1, len(logprobs))).sum().backward()
        found = {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}
        gradients.append((logprobs.detach(), found))
    (ours, our_gradient), (plain, plain_gradient) = gradients
    assert torch.allclose(ours, plain, atol=1e-5)
    assert our_gradient.keys() == plain_gradient.keys()
    for name, gradient in plain_gradient.items():
        assert torch.allclose(our_gradient[name], gradient, atol=1e-4), name


@pytest.mark.parametrize("family", [family for family in FAMILIES if family != "Mpt"])
@pytest.mark.parametrize("chunk", [1 << 25, VOCABULARY * 7])
def test_what_a_model_does_to_its_logits_is_in_logprobs_and_gradients(family: str, chunk: int) -> None:
    model = tiny(family)
    ids, mask = (rows[:2, 30:50] for rows in _rows())
    _assert_as_plain(model, ids % VOCABULARY, mask, chunk=chunk)


def test_entropy_is_that_of_the_whole_distribution(model: Any) -> None:
    ids, mask = _rows()
    probabilities = torch.softmax(model(input_ids=ids, use_cache=False).logits[:, :-1][mask[:, 1:]], dim=-1)
    expected = torch.distributions.Categorical(probs=probabilities).entropy()
    assert torch.allclose(TokenScorer(model)(PaddedBatch((), ids, mask))[1], expected, atol=1e-4)


def test_micro_batches_cover_every_sample_once_and_keep_the_sum_of_logprobs(model: Any) -> None:
    generator = torch.Generator().manual_seed(1)
    samples = []
    for length in (20, 33, 47, 21, 64):
        ids = tuple(torch.randint(9, 500, (length,), generator=generator).tolist())
        mask = tuple(i > length - 6 for i in range(length))
        samples.append(TrainSample(token_ids_T=ids, loss_mask_T=mask))
    batches = list(padded_batches(samples, max_tokens=100))
    assert sorted(i for b in batches for i in b.rows) == list(range(5))
    assert all(b.input_ids.numel() <= 100 for b in batches) and len(batches) > 1
    scorer = TokenScorer(model)
    with torch.no_grad():
        total = sum(float(scorer(b)[0].sum()) for b in batches)
        alone = sum(
            float(_plain(model, torch.tensor([s.token_ids_T]), torch.tensor([s.loss_mask_T])).sum())
            for s in samples
        )
    assert total == pytest.approx(alone, abs=1e-3)


def test_the_merged_copy_samples_what_the_adapters_train(model: Any) -> None:
    trained = adapted(model)
    merged = MergedCopy(trained)
    batch = PaddedBatch((), *_rows())
    with torch.no_grad():
        before = TokenScorer(merged.model)(batch)[0]
        move_adapters(trained, std=0.5)
        stale = TokenScorer(merged.model)(batch)[0]
        merged.sync()
        fresh = TokenScorer(merged.model)(batch)[0]
        expected = TokenScorer(trained)(batch)[0]
    assert torch.equal(before, stale)
    assert not torch.allclose(before, expected, atol=1e-2)
    assert torch.allclose(fresh, expected, atol=1e-4)


def test_a_merged_copy_holds_only_what_is_merged_and_that_until_it_rests(model: Any) -> None:
    trained = adapted(model)
    source = {name: parameter.clone() for name, parameter in trained.named_parameters()}
    merged, batch = MergedCopy(trained), PaddedBatch((), *_rows())
    of_source = {parameter.data_ptr() for parameter in trained.parameters()}
    own = {n for n, p in merged.model.named_parameters() if p.data_ptr() not in of_source}
    assert own == {f"{name}.weight" for name, _ in merged.layers()}
    with torch.no_grad():
        before = TokenScorer(merged.model)(batch)[0]
        merged.rest()
        assert sum(p.numel() for n, p in merged.model.named_parameters() if n in own) == 0
        with pytest.raises(RuntimeError):
            TokenScorer(merged.model)(batch)
        merged.sync()
        assert torch.equal(TokenScorer(merged.model)(batch)[0], before)
    assert all(torch.equal(parameter, source[name]) for name, parameter in trained.named_parameters())
