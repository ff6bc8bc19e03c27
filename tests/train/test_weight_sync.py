"""What the trainer's sampler serves: every update that the adapters take, whatever holds the weights."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from contextlib import closing
from functools import partial
from typing import Any

import pytest
import torch
from transformers import Qwen3Config, Qwen3ForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM

from mcpagent.errors import UserError
from mcpagent.models.load import use_checkpointing
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.hf.slot_engine import SlotCache
from mcpagent.run.policies import at_once
from mcpagent.train.weight_sync import (
    RolloutEngine,
    episodes_with_room,
    hf_sampler,
    score_completions,
    vllm_sampler,
)
from tests.models.adapters import adapted
from tests.train.world import make_learner

SHAPE: dict[str, Any] = {
    "vocab_size": 128,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "intermediate_size": 96,
    "max_position_embeddings": 256,
    "initializer_range": 0.1,
}
PROMPTS = [tuple((11 * i + 5 * j) % 127 + 1 for j in range(30)) for i in range(24)]


def dense(dtype: torch.dtype) -> Any:
    torch.manual_seed(0)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE)).to(dtype)


def mixture_of_experts() -> Any:
    torch.manual_seed(0)
    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 32}
    return Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE, **experts))


@torch.no_grad()
def train_a_little(model: Any, scale: float) -> None:
    """Steps of `scale` on every trainable parameter, as AdamW takes them: signs times a learning rate."""
    generator = torch.Generator().manual_seed(1)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator).sign())


def serving(model: Any) -> closing[RolloutEngine]:
    return closing(hf_sampler(model, decode=lambda _: "", stop_ids=frozenset({0}), max_context=200, slots=24))


def sampled(engine: RolloutEngine) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    requests = [
        CompletionRequest(episode_id=str(i), token_ids=ids, seed=i, sampling=Sampling(max_new_tokens=60))
        for i, ids in enumerate(PROMPTS)
    ]
    completions = asyncio.run(engine.policy.complete(requests))
    for request in requests:
        asyncio.run(engine.policy.release(request.episode_id))
    return [(c.token_ids, c.logprobs) for c in completions]


@torch.no_grad()
def scored(model: Any, completions: Sequence[Sequence[int]]) -> torch.Tensor:
    """The model's own logprobs of these completions, one forward pass each."""
    model.eval()
    values: list[torch.Tensor] = []
    for prompt, own in zip(PROMPTS, completions, strict=True):
        logits = model(input_ids=torch.tensor([[*prompt, *own]]), use_cache=False).logits
        logprobs = logits[0, len(prompt) - 1 : -1].double().log_softmax(-1)
        values.append(logprobs.gather(1, torch.tensor(own)[:, None])[:, 0])
    return torch.cat(values)


def test_trained_adapters_on_bfloat16_weights_are_served_as_exactly_as_fresh_ones() -> None:
    """Merged into weights that keep 8 bits they are rounded, and the sampler drifts from the trainer by
    another 40% of what the two engines differ by anyway."""

    def drift(scale: float) -> float:
        model = adapted(dense(torch.bfloat16)).eval()
        with serving(model) as engine:
            train_a_little(model, scale)
            engine.push()
            completions = sampled(engine)
        served = torch.tensor([v for _, values in completions for v in values], dtype=torch.float64)
        return float((served - scored(model, [ids for ids, _ in completions])).abs().mean())

    assert drift(0.02) < 1.15 * drift(0.0)


def test_what_the_trainer_scores_leaves_the_sampler_as_it_is() -> None:
    """PEFT hands over a model in training mode: scored and put back so, the next tokens would be sampled with
    dropout, and with checkpointing without a cache."""
    model = adapted(dense(torch.bfloat16), dropout=0.5)
    train_a_little(model, 0.02)
    use_checkpointing(model)
    learner = make_learner(model)
    with serving(model) as engine:
        before = sampled(engine)
        score_completions(learner, PROMPTS, [ids for ids, _ in before], 1.0)
        assert sampled(engine) == before


def test_all_linear_on_a_mixture_of_experts_leaves_router_and_stacked_experts_as_they_are() -> None:
    model = adapted(mixture_of_experts())
    trained = {n for n, p in model.named_parameters() if p.requires_grad}
    assert not [n for n in trained if "experts" in n or "mlp.gate" in n]
    assert {n.split(".")[-4] for n in trained} >= {"q_proj", "k_proj", "v_proj", "o_proj"}


@pytest.mark.parametrize(
    "target", ["all-linear", ("q_proj", "gate_proj", "up_proj", "down_proj")], ids=["all-linear", "experts"]
)
def test_the_sampler_of_a_mixture_of_experts_serves_every_adapted_layer(target: Any) -> None:
    model = adapted(mixture_of_experts(), targets=target).eval()
    with serving(model) as engine:
        train_a_little(model, 0.05)
        engine.push()
        completions = sampled(engine)
    served = torch.tensor([value for _, values in completions for value in values])
    assert (served - scored(model, [ids for ids, _ in completions])).abs().max() < 1e-4


def test_vllm_refuses_adapters_on_stacked_experts_before_it_starts(tmp_path: Any) -> None:
    model = adapted(mixture_of_experts(), targets=("gate_proj", "up_proj", "down_proj"))
    with pytest.raises(UserError, match=r"experts"):
        vllm_sampler(object(), model, folder=tmp_path)  # type: ignore[arg-type]
    assert not list(tmp_path.iterdir())


def test_episodes_follow_the_memory_that_is_free() -> None:
    """The shape of an 8B: 36 layers x 8 heads x 128 x 2 x 2 bytes = 0.5625 GiB a context of 4,096 tokens."""
    large = Qwen3Config(
        hidden_size=4096, num_hidden_layers=36, num_attention_heads=32, num_key_value_heads=8, head_dim=128
    )
    room = partial(episodes_with_room, large, max_context=4096, itemsize=2)
    assert [room(free=gib * 2**30) for gib in (0.1, 0.57, 9.0, 36.0)] == [1, 1, 16, 64]
    with serving(dense(torch.float32)) as sampler:
        assert sampler.episodes is None  # on a CPU the settings count
    assert at_once(None, asked=64) == at_once(64, asked=64) == 64
    notes: list[str] = []
    assert at_once(24, asked=64, on_note=notes.append) == 24
    assert notes == ["24 of 64 episodes are played at once: no more fit into the device's free memory"]


def test_a_cache_grows_no_further_than_the_longest_context() -> None:
    """A view of the buffers is as long as they are: 900 tokens and then 960 would have grown them by a
    quarter, to 1,152."""
    cache = SlotCache(slots=2, dtype=torch.float32, longest=1000)
    cache.begin(first=0, positions=torch.tensor([[899]]), length=900)
    mask = cache.begin(first=0, positions=torch.tensor([[959]]), length=960)
    assert mask.shape[-1] == 1024  # a multiple of 32
