"""Does this backend serve what is trained? Load, sample, swap an adapter, sample again, prove both."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch

from mcpagent.config.loader import load_train_config
from mcpagent.config.named_parts import model_builder
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.trajectory import Completion
from mcpagent.errors import RunError
from mcpagent.models.load import save_model
from mcpagent.parts import SMOKE_MODEL
from mcpagent.policy.backend import choose_backend
from mcpagent.policy.canary import CANARY_ROWS, Canary, Proof, ReadBack
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.run.policies import pinned_model
from mcpagent.storage.packages import provenance
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.processes import Processes
from mcpagent.train.load import load_start
from mcpagent.train.sampler import open_sampler
from mcpagent.train.weight_sync import score_completions

_ROWS = 16
_NEW_TOKENS = 64
_NOISE = 0.03  # on every number of the adapters: what a step of training does, only more visible
_QUESTIONS = (
    "What did the shares of ACME close at on the last day of the quarter, and in which currency?",
    "Write a message to the channel of the research group that says when the meeting begins.",
    "Which of the two companies had the larger revenue last year, and by how many per cent?",
    "Search for the newest filing of the company and tell me the date on which it was made.",
)


@dataclass(frozen=True, kw_only=True)
class SmokeResult:
    """`first` and `swapped` are the proofs before and after the swap; `stale` the difference that the canary
    saw while the sampler still had the old adapter: it must not pass."""

    backend: str
    why: str
    model: str
    device: str
    dtype: str
    versions: dict[str, str]
    sampled_tokens: int
    tokens_per_cpu_s: float
    first: Proof
    stale: str
    swapped: Proof


def smoke(*, backend: str, model: str | None, console: Console) -> SmokeResult:
    """Prove it with `model` (a folder or hub id), else with a small one of random weights. Raises UserError
    if the backend or the model cannot be had, RunError if a proof fails."""
    with TemporaryDirectory(prefix="mcpagent-smoke-") as made:
        folder = Path(made)
        name = model or str(folder / "model")
        if model is None:
            save_model(*model_builder(SMOKE_MODEL).build_small(), folder / "model")
        settings = [f"rollout.backend={backend}", f"model.name={name!r}", "rollout.max_context_tokens=1024"]
        config = load_train_config([], [*settings, "finetune.mode=lora", "rollout.max_new_tokens=64"]).config
        config = pinned_model(config, on_note=console.note)
        return _smoke(
            config, shown=model or "a small Qwen3 of random weights", folder=folder, console=console
        )


def _smoke(config: TrainConfig, *, shown: str, folder: Path, console: Console) -> SmokeResult:
    console.note(f"loading {shown}")
    loaded = load_start(config, folder, processes=Processes(), on_note=console.note)
    learner = build_learner(loaded, config, total_optimizer_steps=1)
    prompts = [loaded.renderer.prompt_ids([{"role": "user", "content": asked}], ()) for asked in _QUESTIONS]
    canary = Canary(
        prompts,
        score=partial(score_completions, learner),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        max_context=loaded.max_context,
    )
    choice = choose_backend(config, device=loaded.device.type)
    console.note(f"sampling with {choice.backend}: {choice.why}")
    with open_sampler(
        loaded, config, model=learner.model, slots=max(_ROWS, CANARY_ROWS), weights=folder / "weights"
    ) as sampler:
        asyncio.run(_sample(sampler.policy, prompts))  # what is compiled or allocated once
        started = time.process_time()
        completions = asyncio.run(_sample(sampler.policy, prompts))
        cpu_s = time.process_time() - started
        read_back = sampler.read_back
        first = asyncio.run(canary.prove(sampler.policy, version=0, read_back=read_back))
        _change(learner.model)
        stale = _caught(canary, sampler.policy, read_back)
        sampler.push()
        swapped = asyncio.run(canary.prove(sampler.policy, version=1, read_back=read_back))
    tokens = sum(len(completion.token_ids) for completion in completions)
    return SmokeResult(
        backend=choice.backend,
        why=choice.why,
        model=shown,
        device=str(loaded.device),
        dtype=str(loaded.model.dtype).removeprefix("torch."),
        versions=provenance()["versions"],
        sampled_tokens=tokens,
        tokens_per_cpu_s=tokens / cpu_s,
        first=first,
        stale=stale,
        swapped=swapped,
    )


def _caught(canary: Canary, policy: Policy, read_back: ReadBack | None) -> str:
    """Return what the proof says of a sampler with the old adapter."""
    try:
        proof = asyncio.run(canary.prove(policy, version=0, read_back=read_back))
    except RunError as error:
        return error.message
    raise RunError(
        f"the adapter was changed by {_NOISE} on every number, and the proof did not see that the sampler "
        f"still has the old one: {proof.difference:.2g} nats apart a token",
        remedy="with this model and dtype the weight-sync proof proves nothing: set model.dtype=float32",
    )


async def _sample(policy: Policy, prompts: Sequence[Sequence[int]]) -> list[Completion]:
    requests = [
        CompletionRequest(
            episode_id=f"smoke-{row}",
            sampling=Sampling(max_new_tokens=_NEW_TOKENS),
            seed=row,
            token_ids=tuple(prompts[row % len(prompts)]),
        )
        for row in range(_ROWS)
    ]
    completions = await policy.complete(requests)
    for request in requests:
        await policy.release(request.episode_id)
    return completions


@torch.no_grad()
def _change(model: Any) -> None:
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator)
            parameter.add_(_NOISE * noise.to(parameter.device, parameter.dtype))
