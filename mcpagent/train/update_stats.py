"""What an update reports."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from statistics import fmean

import torch


@dataclass
class Drift:
    """How far the sampler's logprobs are from the trainer's for the same weights: token-weighted sums. The
    weights `w` are the ratios of probabilities, trainer over sampler."""

    tokens: int = 0
    gap: float = 0.0
    max_gap: float = 0.0
    weight: float = 0.0
    weight_squared: float = 0.0
    max_weight: float = 0.0

    def add(self, trainer_N: torch.Tensor, sampler_N: torch.Tensor) -> None:
        if not len(trainer_N):
            return
        log_ratio = (trainer_N - sampler_N).double()
        weight = log_ratio.exp()
        self.tokens += len(log_ratio)
        self.gap += float(log_ratio.abs().sum())
        self.max_gap = max(self.max_gap, float(log_ratio.abs().max()))
        self.weight += float(weight.sum())
        self.weight_squared += float(weight.square().sum())
        self.max_weight = max(self.max_weight, float(weight.max()))

    def join(self, other: Drift) -> None:
        """Take in what another process saw."""
        self.tokens += other.tokens
        self.gap += other.gap
        self.max_gap = max(self.max_gap, other.max_gap)
        self.weight += other.weight
        self.weight_squared += other.weight_squared
        self.max_weight = max(self.max_weight, other.max_weight)

    def summary(self) -> dict[str, float]:
        """`sampler_ess` is the effective sample size of the weights as a share of the tokens (Kish): 1 where
        sampler and trainer agree."""
        if not self.tokens:
            return {}
        return {
            "logprob_drift_max": self.max_gap,
            "logprob_drift_mean": self.gap / self.tokens,
            "sampler_ratio_mean": self.weight / self.tokens,
            "sampler_ratio_max": self.max_weight,
            "sampler_ess": self.weight**2 / (self.tokens * self.weight_squared),
        }


@dataclass
class ApproximateKL:
    """KL(old || new) in nats a sampled token, by k3 (Schulman 2020): r - 1 - log r with r = new / old.
    `latest` is what the last optimiser step found before it was taken."""

    tokens: int = 0
    total: float = 0.0
    latest: float = 0.0
    _before: tuple[int, float] = (0, 0.0)

    def add(self, new_N: torch.Tensor, old_N: torch.Tensor) -> None:
        log_ratio = (new_N - old_N).double()
        self.tokens += len(log_ratio)
        self.total += float((log_ratio.exp() - 1.0 - log_ratio).sum())

    def end_step(self) -> None:
        tokens, total = self._before
        if self.tokens > tokens:
            self.latest = (self.total - total) / (self.tokens - tokens)
        self._before = (self.tokens, self.total)

    def join(self, other: ApproximateKL) -> None:
        """Take in what another process saw."""
        self.tokens += other.tokens
        self.total += other.total


@dataclass
class UpdateStats:
    """Token-weighted sums over an update; `summary` gives their means. KL and drift are in nats."""

    tokens: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    drift: Drift = field(default_factory=Drift)
    approx_kl: ApproximateKL = field(default_factory=ApproximateKL)
    max_ratio: float = 0.0
    loss: float = 0.0
    value_loss: float | None = None
    explained_variance: float | None = None  # of the values before the update
    grad_norm: float = 0.0
    optimizer_steps: int = 0
    skipped_steps: int = 0  # left out because the policy had moved too far
    overflows: int = 0  # steps that were left out because a gradient overflowed in float16

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
        taken = self.optimizer_steps - self.overflows
        summary = {
            **means,
            "approx_kl": self.approx_kl.total / self.approx_kl.tokens,
            "ratio_max": self.max_ratio,
            **self.drift.summary(),
            "loss": self.loss / steps,
        }
        if taken:
            summary["grad_norm"] = self.grad_norm / taken
        if self.skipped_steps:
            summary["skipped_steps"] = self.skipped_steps
        if self.overflows:
            summary["overflowed_steps"] = self.overflows
        if self.value_loss is not None:
            summary["value_loss"] = self.value_loss / steps
        if self.explained_variance is not None:
            summary["explained_variance"] = self.explained_variance
        return summary


def combined(parts: Sequence[UpdateStats]) -> UpdateStats:
    """Those of one update that several processes made together. Losses are shares of the whole; gradient
    norms and steps are the same for all."""
    first, *others = parts
    for other in others:
        first.add(other.tokens, **other.sums)
        first.drift.join(other.drift)
        first.approx_kl.join(other.approx_kl)
        first.max_ratio = max(first.max_ratio, other.max_ratio)
        first.loss += other.loss
    value_losses = [p.value_loss for p in parts if p.value_loss is not None]
    first.value_loss = sum(value_losses) if value_losses else None
    known = [p.explained_variance for p in parts if p.explained_variance is not None]
    first.explained_variance = fmean(known) if known else None
    return first
