"""Packed trees against each sample alone: the same logprobs and gradients, and every shared token once."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, LlamaConfig, Qwen3Config

from mcpagent.policy.hf.policy import why_no_slots
from mcpagent.train.batch.samples import TrainSample, pack, packed_batches, padded_batches
from mcpagent.train.batch.scoring import TokenScorer, why_not_packed
from tests.models.adapters import adapted, move_adapters

SHAPE = {
    "vocab_size": 512,
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 48,
    "initializer_range": 0.2,
}


def qwen() -> Any:
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(
        Qwen3Config(**SHAPE, head_dim=16, tie_word_embeddings=True)
    ).eval()


def tokens(seed: int, count: int) -> tuple[int, ...]:
    generator = torch.Generator().manual_seed(seed)
    return tuple(torch.randint(3, 500, (count,), generator=generator).tolist())


def sample(prompt: tuple[int, ...], *turns: tuple[int, ...]) -> TrainSample:
    """A prompt, then sampled and environment stretches in turn."""
    ids, mask = list(prompt), [False] * len(prompt)
    for number, turn in enumerate(turns):
        ids += turn
        mask += [number % 2 == 0] * len(turn)
    return TrainSample(token_ids_T=tuple(ids), loss_mask_T=tuple(mask))


def groups() -> list[TrainSample]:
    """Three prompts under one system message; attempts of uneven length, some with two turns; one that is
    alone in the world."""
    system = tokens(1, 40)
    samples = []
    for group, own in enumerate((tokens(2, 20), tokens(3, 7), ())):
        for attempt in range(3):
            first = tokens(10 * group + attempt, 5 + 17 * attempt)
            later = (tokens(90, 6), tokens(70 + attempt, 4)) if attempt == 1 else ()
            samples.append(sample(system + own, first, *later))
    return [*samples, sample(tokens(8, 30), tokens(9, 12))]


def alone(model: Any, one: TrainSample, temperature: float = 1.0) -> torch.Tensor:
    """Plain transformers: full logits, one sequence."""
    ids = torch.tensor([one.token_ids_T])
    logits = model(input_ids=ids, use_cache=False).logits[0, :-1] / temperature
    chosen = logits.gather(1, ids[0, 1:, None])[:, 0] - logits.logsumexp(-1)
    return chosen[torch.tensor(one.loss_mask_T[1:])]


def distinct_prefixes(samples: list[TrainSample]) -> int:
    """Tokens of the smallest tree: the number of different beginnings, those with loss apart for each."""
    seen: set[Any] = set()
    for number, one in enumerate(samples):
        free = one.loss_mask_T.index(True)
        for end in range(1, len(one) + 1):
            seen.add(one.token_ids_T[:end] if end <= free else (number, end))
    return len(seen)


@pytest.mark.parametrize("temperature", [1.0, 0.7])
@pytest.mark.parametrize("checkpointing", [False, True])
def test_logprobs_and_gradients_are_those_of_each_sample_alone(
    temperature: float, checkpointing: bool
) -> None:
    model, samples = qwen(), groups()
    assert why_not_packed(model) is None
    (batch,) = packed_batches(samples, max_tokens=10_000)
    plain = torch.cat([alone(model, samples[i], temperature) for i in batch.rows])
    weights = torch.linspace(-1, 1, len(plain))
    (plain * weights).sum().backward()
    wanted = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    if checkpointing:
        model.gradient_checkpointing_enable()
        model.train()
    logprobs, _ = TokenScorer(model)(batch, temperature)
    (logprobs * weights).sum().backward()
    assert torch.allclose(logprobs, plain, atol=2e-5)
    for name, parameter in model.named_parameters():
        assert torch.allclose(parameter.grad, wanted[name], atol=1e-4), name


def test_every_shared_token_is_in_the_row_once() -> None:
    samples = groups()
    (batch,) = packed_batches(samples, max_tokens=10_000)
    # The fork of seven tokens and the one of none stay with their rows: shorter than a segment is worth.
    short = 7 * 2
    assert len(batch.input_ids) == distinct_prefixes(samples) + short
    assert len(batch.input_ids) < 0.6 * sum(map(len, samples))


def test_in_double_precision_the_difference_is_ten_digits_away() -> None:
    """GPT-2: the norms of later architectures compute in single precision whatever the weights are."""
    torch.manual_seed(0)
    shape = {"vocab_size": 512, "n_positions": 128, "n_embd": 16, "n_layer": 2, "n_head": 2}
    model = GPT2LMHeadModel(GPT2Config(**shape, initializer_range=0.2)).double().eval()
    assert why_not_packed(model) is None
    samples = groups()
    (batch,) = packed_batches(samples, max_tokens=10_000)
    plain = torch.cat([alone(model, samples[i]) for i in batch.rows])
    logprobs, _ = TokenScorer(model)(batch)
    assert torch.allclose(logprobs, plain, rtol=0, atol=1e-10)
    weights = torch.linspace(-1, 1, len(plain), dtype=torch.float64)
    ours = torch.autograd.grad((logprobs * weights).sum(), list(model.parameters()))
    wanted = torch.autograd.grad((plain * weights).sum(), list(model.parameters()))
    assert all(torch.allclose(a, b, rtol=0, atol=1e-10) for a, b in zip(ours, wanted, strict=True))


_FORK = st.lists(st.integers(3, 4), min_size=1, max_size=24)


@given(st.lists(st.tuples(_FORK, _FORK), min_size=1, max_size=8), st.integers(20, 200))
def test_packed_rows_hold_every_sample_once_and_unaltered(
    drawn: list[tuple[list[int], list[int]]], max_tokens: int
) -> None:
    """Two token values only, so that prompts overlap in every way."""
    samples = [sample(tuple(prompt), tuple(own)) for prompt, own in drawn]
    batches = list(packed_batches(samples, max_tokens=max_tokens))
    assert sorted(i for b in batches for i in b.rows) == list(range(len(samples)))
    for batch in batches:
        assert len(batch.input_ids) <= max_tokens or len(batch.rows) == 1
        ends = [s.end for s in batch.tree.sets]
        assert [s.start for s in batch.tree.sets] == [0, *ends[:-1]] and ends[-1] == len(batch.input_ids)
        targets = [
            t for i in batch.rows for t in itertools.compress(samples[i].token_ids_T, samples[i].loss_mask_T)
        ]
        assert batch.targets_N.tolist() == targets
        for leaf in _leaves(batch):
            assert leaf in {s.token_ids_T for s in samples}


def _leaves(batch: Any) -> list[tuple[int, ...]]:
    """The whole sequence that each predictor's last target completes, read along the paths."""
    found = []
    paths = {path for siblings in batch.tree.sets for path in siblings.path}
    for siblings in batch.tree.sets:
        start = siblings.start
        for length in siblings.lengths:
            own = (start, start + length)
            start += length
            if own not in paths:
                spans = [*siblings.path, own]
                found.append(tuple(i for a, b in spans for i in batch.input_ids[a:b].tolist()))
    return found


def test_lora_dropout_and_checkpointing_work_on_a_tree() -> None:
    """One pass is one draw of the masks: over many draws the mean is that of the samples alone."""
    model = adapted(qwen(), r=2, dropout=0.2)
    move_adapters(model, std=0.3)
    model.get_base_model().gradient_checkpointing_enable()
    model.enable_input_require_grads()
    samples = groups()[:3]
    (batch,) = packed_batches(samples, max_tokens=10_000)
    (padded,) = padded_batches(samples, max_tokens=10_000)
    assert why_not_packed(model) is None
    model.train()
    scorer = TokenScorer(model)
    scorer(batch)[0].sum().backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
    torch.manual_seed(5)
    with torch.no_grad():
        ours = torch.stack([scorer(batch)[0].sum() for _ in range(60)])
        plain = torch.stack([scorer(padded)[0].sum() for _ in range(60)])
    error = float((ours.var() / 60 + plain.var() / 60).sqrt())
    assert float(ours.std()) > 0
    assert abs(float(ours.mean() - plain.mean())) < 4 * error


@pytest.mark.parametrize("kind", ["sliding", "eager"])
def test_a_model_that_cannot_follow_a_tree_says_why(kind: str) -> None:
    torch.manual_seed(0)
    if kind == "sliding":
        config = Qwen3Config(
            **SHAPE, head_dim=16, sliding_window=8, use_sliding_window=True, max_window_layers=1
        )
        model = AutoModelForCausalLM.from_config(config)
    else:
        model = AutoModelForCausalLM.from_config(LlamaConfig(**SHAPE), attn_implementation="eager")
    reason = why_not_packed(model)
    assert reason is not None and {"sliding": "sliding_attention", "eager": "eager"}[kind] in reason


@pytest.mark.parametrize("asked", ["sdpa", "flash_attention_2"])
def test_sampling_and_training_share_one_attention_whichever_was_asked_for(asked: str) -> None:
    """A model whose weights are trained in full is sampled by the same modules. A package of kernels gives
    way: what flash-attn computes is torch's own flash kernel then."""
    model = qwen()
    plain = alone(model, groups()[0])
    model.config._attn_implementation = asked
    assert why_no_slots(model) is None
    assert why_not_packed(model) is None
    assert torch.allclose(alone(model, groups()[0]), plain, atol=1e-6)
    packed, _ = TokenScorer(model)(pack(groups(), [0]))
    assert torch.allclose(packed, plain, atol=1e-5)


class MixesNeighbours(torch.nn.Module):
    """A feed-forward layer that also reads a `share` of a state next to it, as a short convolution does."""

    def __init__(self, inner: Any, shift: int, share: float) -> None:
        super().__init__()
        self.inner, self.shift, self.share = inner, shift, share

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        return self.inner(states) + self.share * states.roll(self.shift, dims=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("layers", [6, pytest.param(80, marks=pytest.mark.system)])
def test_the_check_of_packing_takes_rounding_and_no_layer_that_mixes_neighbours(
    layers: int, dtype: torch.dtype
) -> None:
    """Logits of a standard deviation of 4: in bfloat16 0.03 nats are rounding, and over 0.05 if there
    are many layers, as on a GPU with a model of 4B. One layer that mixes a little is less than that."""
    for seed in range(3):
        torch.manual_seed(seed)
        shape = SHAPE | {"num_hidden_layers": layers, "hidden_size": 64, "initializer_range": 0.05}
        model: Any = AutoModelForCausalLM.from_config(
            Qwen3Config(**shape, head_dim=16, tie_word_embeddings=False)
        ).eval()
        with torch.no_grad():
            model.model.norm.weight.mul_(4.0 / (float(model.lm_head.weight.std()) * 64**0.5))
        model = model.to(dtype)
        assert why_not_packed(model) is None
        inner = model.model.layers[3].mlp
        for shift, share in ((1, 1.0), (1, 0.05), (3, 0.05)):
            model.model.layers[3].mlp = MixesNeighbours(inner, shift, share)
            reason = why_not_packed(model)
            assert reason is not None and "do not follow the tree" in reason


@pytest.mark.parametrize("keeps_tokens", [None, 10, 10_000])
def test_rows_that_share_a_prefix_learn_what_one_row_does(keeps_tokens: int | None) -> None:
    """With adapters, so that the head is frozen; logits in chunks of two tokens; rows kept, and computed
    again."""

    def gradients(max_tokens: int, keeps: int | None, max_logits: int | None) -> tuple[Any, ...]:
        model = adapted(qwen()).train()
        move_adapters(model, std=0.1)
        model.get_base_model().gradient_checkpointing_enable({"use_reentrant": False})
        assert why_not_packed(model) is None
        scorer = TokenScorer(model, keeps_tokens=keeps, max_logits=max_logits)
        total, places, lengths = 0.0, [], []
        rows = list(packed_batches(samples, max_tokens=max_tokens, may_share=True))
        for batch, following in zip(rows, [*rows[1:], None], strict=True):
            logprobs, _ = scorer(batch)
            at = torch.tensor([i for row in batch.rows for i in [row] * samples[row].loss_tokens])
            loss = (logprobs * torch.sin(1.0 + at)).sum()
            loss.backward()
            total += float(loss.detach())
            places += batch.rows
            lengths.append(len(batch.input_ids))
            if batch.prefix is not None and (following is None or following.prefix is not batch.prefix):
                batch.prefix.backward()
        assert sorted(places) == list(range(len(samples)))
        return total, {n: p.grad for n, p in model.named_parameters() if p.requires_grad}, lengths

    # One that shares nothing is alone; questions behind other tools share those.
    tools = tokens(5, 60)
    others = [sample(tools + tokens(30 + i, 6), tokens(40 + i, 9)) for i in range(4)]
    samples = [*groups(), *others]
    loss, wanted, (whole,) = gradients(10_000, None, None)
    ours, seen, lengths = gradients(60, keeps_tokens, 1024)
    # The system message and the other tools are in no row.
    assert len(lengths) > 2 and sum(lengths) <= whole - 40 - 60 + 20 * len(lengths)
    assert ours == pytest.approx(loss, rel=1e-5)
    for name, gradient in wanted.items():
        assert torch.allclose(seen[name], gradient, rtol=1e-5, atol=1e-5), name
