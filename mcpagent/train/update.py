"""One GRPO update: from graded trajectories to an optimiser step."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from mcpagent.train.learner import Learner
from mcpagent.train.loss import policy_loss, token_weights
from mcpagent.train.samples import TrainSample
from mcpagent.train.scoring import Batch


@dataclass(frozen=True, kw_only=True)
class UpdateSettings:
    """The objective and how its batch is cut. `minibatches` is optimiser steps for each of the `epochs`."""

    aggregation: str = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_coef: float = 0.0
    entropy_coef: float = 0.0
    use_reference: bool = True
    epochs: int = 1
    minibatches: int = 1
    micro_batch_tokens: int = 8192
    temperature: float = 1.0


@dataclass
class UpdateStats:
    """Token-weighted sums over an update; `summary` gives their means. KL and drift are in nats."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    max_drift: float = 0.0
    loss: float = 0.0
    grad_norm: float = 0.0
    optimizer_steps: int = 0

    def add(self, count: int, **sums: float) -> None:
        self.tokens += count
        for name, value in sums.items():
            self.sums[name] = self.sums.get(name, 0.0) + value

    def summary(self) -> dict[str, float]:
        """What metrics.jsonl shows; empty when no sample carried a gradient."""
        if not self.tokens:
            return {}
        means = {name: value / self.tokens for name, value in self.sums.items()}
        steps = max(1, self.optimizer_steps)
        return {
            **means,
            "logprob_drift_max": self.max_drift,
            "loss": self.loss / steps,
            "grad_norm": self.grad_norm / steps,
        }


def update_policy(
    learner: Learner,
    samples: Sequence[TrainSample],
    advantages: Sequence[float],
    *,
    settings: UpdateSettings,
    first_optimizer_step: int,
    seed: int,
) -> UpdateStats:
    """Optimise on the samples with their advantages; old logprobs are the sampler's.

    `first_optimizer_step` numbers the steps for the learning-rate schedule; `seed` shuffles minibatches.
    """
    stats = UpdateStats()
    learner.model.train()
    for epoch in range(settings.epochs):
        order = list(range(len(samples)))
        random.Random(f"{seed}/{epoch}").shuffle(order)
        size = -(-len(order) // settings.minibatches)
        for start in range(0, len(order), max(1, size)):
            chosen = order[start : start + size]
            _optimizer_step(
                learner,
                [samples[i] for i in chosen],
                [advantages[i] for i in chosen],
                settings,
                stats,
                number=first_optimizer_step + stats.optimizer_steps,
            )
    learner.model.eval()
    return stats


def _optimizer_step(
    learner: Learner,
    samples: Sequence[TrainSample],
    advantages: Sequence[float],
    settings: UpdateSettings,
    stats: UpdateStats,
    *,
    number: int,
) -> None:
    weights = token_weights([s.loss_tokens for s in samples], aggregation=settings.aggregation)
    device = learner.device
    for batch in learner.batches(samples, max_tokens=settings.micro_batch_tokens):
        rows = [samples[i] for i in batch.rows]
        old = torch.tensor(
            [p for s in rows for p, own in zip(s.sampler_logprobs_T, s.loss_mask_T, strict=True) if own],
            device=device,
        )
        spread = torch.tensor([s.loss_tokens for s in rows], device=device)
        advantages_N = torch.tensor([advantages[i] for i in batch.rows], device=device).repeat_interleave(
            spread
        )
        weights_N = torch.tensor([weights[i] for i in batch.rows], device=device).repeat_interleave(spread)
        _backward(learner, batch, old, advantages_N, weights_N, settings, stats)
    norm, _ = learner.step(number)
    stats.grad_norm += norm
    stats.optimizer_steps += 1


def _backward(
    learner: Learner,
    batch: Batch,
    old: torch.Tensor,
    advantages_N: torch.Tensor,
    weights_N: torch.Tensor,
    settings: UpdateSettings,
    stats: UpdateStats,
) -> None:
    reference = (
        learner.reference_logprobs(batch, temperature=settings.temperature)
        if settings.use_reference
        else None
    )
    logprobs, entropy = learner.score(
        batch, temperature=settings.temperature, entropy_gradient=settings.entropy_coef > 0
    )
    parts = policy_loss(
        logprobs,
        old_logprobs_N=old,
        advantages_N=advantages_N,
        reference_logprobs_N=reference,
        clip_low=settings.clip_low,
        clip_high=settings.clip_high,
        kl_coef=settings.kl_coef,
    )
    loss = (parts.loss_N * weights_N).sum()
    if settings.entropy_coef:
        loss = loss - settings.entropy_coef * (entropy * weights_N).sum()
    learner.backward(loss)
    drift = (logprobs.detach() - old).abs()
    stats.loss += float(loss.detach())
    if not stats.optimizer_steps and len(drift):
        # Before the first step the sampler and the trainer have the same weights: what differs is error.
        stats.max_drift = max(stats.max_drift, float(drift.max()))
    stats.add(
        len(old),
        kl=float(parts.kl_N.sum()),
        clip_fraction=float(parts.is_clipped_N.sum()),
        entropy=float(entropy.detach().sum()),
        ratio_mean=float(parts.ratio_N.sum()),
    )
