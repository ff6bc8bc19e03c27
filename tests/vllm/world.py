"""A Qwen3 of real shape with random weights, engines over it, and logprobs as one would write them down."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import Qwen3Config, Qwen3ForCausalLM

from mcpagent.core.trajectory import Completion
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.policy.vllm.engine import VllmPolicy, VllmSettings, cpu_cache_bytes
from tests.models.adapters import adapted

VOCABULARY = 512
STOP = 0
MAX_CONTEXT = 256
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 3,
    "num_key_value_heads": 3,
    "head_dim": 32,
    "intermediate_size": 288,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,  # distributions far from uniform
}
PARITY = 1e-4  # nats, in float32: any single token


def tiny_model(seed: int = 0, *, tied: bool = True) -> Any:
    torch.manual_seed(seed)
    return Qwen3ForCausalLM(Qwen3Config(**SHAPE, tie_word_embeddings=tied)).eval()


def with_adapters(model: Any) -> Any:
    return adapted(model, r=8).eval()


@torch.no_grad()
def train_a_little(model: Any, *, seed: int, scale: float = 0.05) -> None:
    """A step as training would make it: noise on everything that is trainable."""
    generator = torch.Generator().manual_seed(seed)
    for parameter in model.parameters():
        if parameter.requires_grad:
            parameter.add_(scale * torch.randn(parameter.shape, generator=generator))


@contextmanager
def serving(model: Any, folder: Path, *, version: int = 0, **settings: Any) -> Iterator[VllmPolicy]:
    """`model` without its adapters, if any, in a vLLM engine of this process."""
    base = model.get_base_model() if hasattr(model, "peft_config") else model
    if not (folder / "config.json").exists():
        base.save_pretrained(folder)
    cache = cpu_cache_bytes(base.config, contexts=32, max_context=MAX_CONTEXT, itemsize=4)
    chosen = {"max_context": MAX_CONTEXT, "contexts": 32, "cache_bytes": cache, **settings}
    policy = VllmPolicy(
        VllmSettings(model=str(folder), **chosen), decode=decode, stop_ids=frozenset({STOP}), version=version
    )
    try:
        yield policy
    finally:
        policy.close()


def decode(token_ids: Sequence[int]) -> str:
    return " ".join(map(str, token_ids))


def prompts(count: int, *, length: int = 70, seed: int = 1) -> list[tuple[int, ...]]:
    generator = torch.Generator().manual_seed(seed)
    return [
        tuple(torch.randint(1, VOCABULARY, (length + i,), generator=generator).tolist()) for i in range(count)
    ]


def requests(
    contexts: Sequence[Sequence[int]], *, seed: int = 0, name: str = "e", **sampling: Any
) -> list[CompletionRequest]:
    chosen = Sampling(**{"max_new_tokens": 24, **sampling})
    return [
        CompletionRequest(episode_id=f"{name}{i}", token_ids=tuple(ids), seed=seed + i, sampling=chosen)
        for i, ids in enumerate(contexts)
    ]


def ask(policy: Policy, asked: Sequence[CompletionRequest]) -> list[Completion]:
    async def run() -> list[Completion]:
        async with asyncio.timeout(120):
            return await policy.complete(asked)

    return asyncio.run(run())


@torch.no_grad()
def logprobs(model: Any, asked: CompletionRequest, completion: Completion) -> list[float]:
    """Of the completion's tokens under `asked.sampling`: one forward pass, arithmetic in float64."""
    ids, own, sampling = [*asked.token_ids, *completion.token_ids], completion.token_ids, asked.sampling
    logits = model(input_ids=torch.tensor([ids]), use_cache=False).logits[0, len(asked.token_ids) - 1 : -1]
    values = (logits.double() / (sampling.temperature or 1.0)).log_softmax(-1)
    if sampling.top_p < 1.0:
        values = torch.stack([_truncated(row, sampling) for row in values])
    return [float(values[i, token]) for i, token in enumerate(own)]


def _truncated(row: torch.Tensor, sampling: Sampling) -> torch.Tensor:
    """The smallest set of the likeliest tokens with mass `top_p`, renormalised."""
    order = row.argsort(descending=True)
    share = row[order].softmax(-1)
    kept = order[: int((share.cumsum(-1) < sampling.top_p).sum()) + 1]
    return torch.full_like(row, -torch.inf).index_put((kept,), row[kept].log_softmax(-1))


def worst(model: Any, asked: Sequence[CompletionRequest], got: Sequence[Completion]) -> float:
    """The largest difference of any token's logprob, in nats."""
    return max(
        abs(ours - theirs)
        for request, completion in zip(asked, got, strict=True)
        for ours, theirs in zip(completion.logprobs, logprobs(model, request, completion), strict=True)
    )
