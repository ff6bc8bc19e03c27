"""Small models of real architectures, and sampling as one would write it without a cache or a batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, Qwen3Config, Qwen3ForCausalLM

from mcpagent.core.trajectory import FinishReason
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.hf.policy import HFPolicy, why_no_slots
from mcpagent.policy.hf.slot_engine import SlotEngine
from tests.models.families import SHAPE

torch.set_num_threads(1)  # such small products only wait for a second thread

STOP = 0
MAX_CONTEXT = 96


def tiny_model(
    kind: str = "qwen3", *, key_value_heads: int = 2, attention: str = "sdpa", seed: int = 0
) -> Any:
    """Two layers, random weights large enough that its distributions are far from uniform."""
    shape = {**SHAPE, "num_key_value_heads": key_value_heads, "attn_implementation": attention}
    torch.manual_seed(seed)
    if kind == "llama":
        return LlamaForCausalLM(LlamaConfig(**shape)).eval()
    return Qwen3ForCausalLM(Qwen3Config(**shape)).eval()


@contextmanager
def serving(
    model: Any, *, slots: int = 16, stop_ids: frozenset[int] = frozenset({STOP})
) -> Iterator[HFPolicy]:
    """A policy whose texts are the numbers of its tokens."""
    policy = HFPolicy(
        model,
        decode=lambda token_ids: " ".join(map(str, token_ids)),
        stop_ids=stop_ids,
        max_context=MAX_CONTEXT,
        slots=slots,
    )
    try:
        yield policy
    finally:
        policy.close()


def make_engine(model: Any, *, slots: int = 16, max_context: int = MAX_CONTEXT) -> SlotEngine:
    assert why_no_slots(model) is None
    return SlotEngine(
        decoder=model.get_decoder(),
        head=model.get_output_embeddings(),
        stop_ids=frozenset({STOP}),
        max_context=max_context,
        slots=slots,
        device=torch.device("cpu"),
    )


def request(
    episode_id: str, token_ids: Sequence[int], *, seed: int = 0, **sampling: Any
) -> CompletionRequest:
    return CompletionRequest(
        episode_id=episode_id,
        token_ids=tuple(token_ids),
        seed=seed,
        sampling=Sampling(**{"max_new_tokens": 8, **sampling}),
    )


@torch.no_grad()
def naive_turn(
    model: Any, asked: CompletionRequest, *, max_context: int = MAX_CONTEXT
) -> tuple[tuple[int, ...], tuple[float, ...], FinishReason]:
    """Tokens, logprobs and the end of one turn: a full forward pass for every token, arithmetic in float64,
    and the first token whose cumulated probability exceeds the draw."""
    context, settings = list(asked.token_ids), asked.sampling
    if len(context) >= max_context:
        return (), (), FinishReason.OVERFLOW
    draws = np.random.default_rng(asked.seed).random(settings.max_new_tokens, dtype=np.float32)
    sampled: list[int] = []
    logprobs: list[float] = []
    for draw in draws[: max_context - len(context)]:
        logits = model(input_ids=torch.tensor([context]), use_cache=False).logits[0, -1].double().numpy()
        scaled = logits / (settings.temperature or 1.0)
        probabilities = np.exp(scaled - scaled.max())
        probabilities = truncated(probabilities / probabilities.sum(), settings)
        token = int(np.argmax(np.cumsum(probabilities) > draw))
        if settings.temperature == 0:
            token = int(np.argmax(logits))
        sampled.append(token)
        logprobs.append(float(np.log(probabilities[token])))
        context.append(token)
        if token == STOP:
            return tuple(sampled), tuple(logprobs), FinishReason.STOP
    return tuple(sampled), tuple(logprobs), FinishReason.LENGTH


def truncated(probabilities: np.ndarray, settings: Sampling) -> np.ndarray:
    """Tokens from the likeliest on, until they hold `top_p` of the mass."""
    by_mass = sorted(range(len(probabilities)), key=lambda token: -probabilities[token])
    kept, mass = np.zeros_like(probabilities), 0.0
    for token in by_mass:
        if mass >= settings.top_p < 1.0:
            break
        kept[token] = probabilities[token]
        mass += probabilities[token]
    return kept / kept.sum()
