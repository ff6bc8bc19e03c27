"""What samples the episodes of a run, with how the learner's weights get there: transformers or vLLM."""

from __future__ import annotations

import shutil
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from mcpagent.errors import UserError
from mcpagent.models.load import MergedCopy, adapted_beside_linear, causal_lm
from mcpagent.policy.contract import Policy
from mcpagent.policy.hf.policy import HFPolicy
from mcpagent.policy.vllm.engine import VllmPolicy
from mcpagent.policy.vllm.servers import VllmServers
from mcpagent.train.batch.samples import sample_from_segments
from mcpagent.train.learner.learner import Learner

_SCORED_TOKENS = 4096  # of one forward pass of the canary
_KEPT_ADAPTERS = 4  # versions whose files stay: turns that began with one may still run


@dataclass(frozen=True, kw_only=True)
class RolloutEngine:
    """`push` brings the learner's weights to the policy as its next version; between `rest` and `push` a
    colocated engine gives its memory to the trainer."""

    policy: Policy
    push: Callable[[], None]
    close: Callable[[], None]
    rest: Callable[[], None] = lambda: None


def hf_sampler(
    model: Any,
    *,
    decode: Callable[[Sequence[int]], str],
    stop_ids: frozenset[int],
    max_context: int,
    slots: int,
    threads: int = 1,
) -> RolloutEngine:
    """Over `model`'s weights: a merged copy where it has adapters that can be merged without loss, else the
    model itself, whose adapters are computed beside the weights."""
    merged = MergedCopy(model) if _merges_without_loss(model) else None
    policy = HFPolicy(
        merged.model if merged is not None else causal_lm(model),
        decode=decode,
        stop_ids=stop_ids,
        max_context=max_context,
        slots=slots,
        threads=threads,
    )

    def push() -> None:
        policy.on_weights_changed(merged.sync if merged is not None else lambda: None)

    return RolloutEngine(policy=policy, push=push, close=policy.close)


def _merges_without_loss(model: Any) -> bool:
    """Weights of 4 bits take no adapters, and bfloat16 ones keep less than a tenth of one step at 2e-5."""
    return (
        hasattr(model, "peft_config")
        and causal_lm(model).dtype == torch.float32
        and not adapted_beside_linear(model)
    )


def vllm_sampler(engine: VllmPolicy | VllmServers, model: Any, *, folder: Path) -> RolloutEngine:
    """Sampling with vLLM in this process or behind HTTP.

    Adapters are written to `folder`, which servers must be able to read too; so are whole checkpoints for
    servers. The first push makes version 0."""
    kept: deque[Path] = deque()
    has_adapters = hasattr(model, "peft_config")
    if has_adapters and (others := adapted_beside_linear(model)):
        raise UserError(
            f"vLLM serves adapters of linear layers, and lora.target_modules adapts the experts too "
            f"({others[0]} and {len(others) - 1} more)",
            where="lora.target_modules",
            remedy="use all-linear, which leaves experts and router as they are, or --backend hf",
        )

    def write(save: Callable[[Path], object]) -> Path:
        path = folder / f"version-{engine.version + 1}"
        save(path)
        kept.append(path)
        if len(kept) > _KEPT_ADAPTERS:
            shutil.rmtree(kept.popleft(), ignore_errors=True)
        return path

    def push() -> None:
        if isinstance(engine, VllmPolicy):
            engine.wake()
        if has_adapters:
            engine.load_adapter(write(lambda path: model.save_pretrained(path, save_embedding_layers=False)))
        elif isinstance(engine, VllmPolicy):
            engine.load_weights(model.state_dict().items())
        else:
            engine.load_folder(write(model.save_pretrained))

    rest = engine.sleep if isinstance(engine, VllmPolicy) else lambda: None
    push()
    return RolloutEngine(policy=engine, push=push, close=engine.close, rest=rest)


@torch.no_grad()
def score_completions(
    learner: Learner,
    prompts: Sequence[Sequence[int]],
    completions: Sequence[Sequence[int]],
    temperature: float,
) -> list[float]:
    """The trainer's logprobs (nats) of the completions' tokens, in their order: a `canary.Scorer`."""
    rows = [
        sample_from_segments([(prompt, False), (completion, True)])
        for prompt, completion in zip(prompts, completions, strict=True)
    ]
    was_training = learner.model.training
    learner.model.eval()
    by_row: dict[int, list[float]] = {}
    for batch in learner.batches(rows, max_tokens=_SCORED_TOKENS):
        logprobs, _ = learner.score(batch, temperature=temperature)
        values = iter(logprobs.tolist())
        for row in batch.rows:
            by_row[row] = [next(values) for _ in completions[row]]
    learner.model.train(was_training)
    return [value for row in range(len(rows)) for value in by_row[row]]
