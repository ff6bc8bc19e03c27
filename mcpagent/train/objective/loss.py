"""The policy objective, token by token. Pure functions on flat tensors: the N loss-bearing tokens of a batch,
sample by sample."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch

LossName = Literal["grpo", "dr_grpo", "dapo", "gspo", "cispo"]
# Means within samples first, over all tokens at once, or sums over a length that is the same for all.
_AGGREGATION = {"grpo": "samples", "gspo": "samples", "dapo": "tokens", "cispo": "tokens", "dr_grpo": "fixed"}


@dataclass(frozen=True, kw_only=True)
class Objective:
    """Which surrogate, and how it is bounded. `kl_estimator` None leaves the KL out of the loss;
    `kl_times_ratio` weighs it by the ratio, gradient and all (DeepSeek-V3.2, arXiv 2512.02556)."""

    loss: LossName = "grpo"
    clip_low: float = 0.2
    clip_high: float = 0.2
    kl_estimator: Literal["k2", "k3"] | None = "k3"
    kl_times_ratio: bool = False  # for k3, whose own gradient is not that of the KL


@dataclass(frozen=True)
class LossParts:
    """Per-token loss [N] (differentiable) and what the logs show of it (detached, [N]). `kl_N` is k3."""

    loss_N: torch.Tensor
    ratio_N: torch.Tensor
    is_clipped_N: torch.Tensor  # bool: the bound was in force
    kl_N: torch.Tensor


def policy_loss(
    logprobs_N: torch.Tensor,
    *,
    objective: Objective,
    kl_coef: float = 0.0,
    old_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    lengths_B: torch.Tensor,
    reference_logprobs_N: torch.Tensor | None = None,
    weights_N: torch.Tensor | None = None,
) -> LossParts:
    """The surrogate, times the importance weights `weights_N` of the sampler, plus `kl_coef` times the KL.
    All logprobs in nats; `lengths_B` are the tokens of each sample, in order.

    `-min(r A, clip(r, 1 - low, 1 + high) A)` with r = exp(logp - old_logp): PPO (arXiv 1707.06347, eq. 7)
    with the asymmetric range of DAPO (arXiv 2503.14476). `gspo` takes for r the geometric mean over the
    sample in the token form of GSPO (arXiv 2507.18071, eq. 14), which leaves each token its own advantage.
    `cispo` is `-min(r, 1 + high) A logp` with a gradient through logp alone (MiniMax-M1, arXiv 2506.13585,
    eq. 4).
    """
    log_ratio = logprobs_N - old_logprobs_N
    if objective.loss == "gspo":
        mean = _sample_means(log_ratio.detach(), lengths_B)
        log_ratio = mean + logprobs_N - logprobs_N.detach()
    ratio = log_ratio.exp()
    upper = 1.0 + objective.clip_high
    if objective.loss == "cispo":
        loss = -ratio.detach().clamp(max=upper) * advantages_N * logprobs_N
        bounded = ratio > upper
    else:
        clipped = ratio.clamp(1.0 - objective.clip_low, upper)
        loss = -torch.minimum(ratio * advantages_N, clipped * advantages_N)
        bounded = ((ratio > upper) & (advantages_N > 0)) | (
            (ratio < 1.0 - objective.clip_low) & (advantages_N < 0)
        )
    if weights_N is not None:
        loss = loss * weights_N
    if reference_logprobs_N is None:
        return LossParts(loss, ratio.detach(), bounded, torch.zeros_like(logprobs_N))
    k3 = kl_terms(logprobs_N, reference_logprobs_N, estimator="k3")
    if objective.kl_estimator is not None:
        is_k3 = objective.kl_estimator == "k3"
        kl = k3 if is_k3 else kl_terms(logprobs_N, reference_logprobs_N, estimator="k2")
        loss = loss + kl_coef * (kl * ratio if objective.kl_times_ratio else kl)
    return LossParts(loss, ratio.detach(), bounded, k3.detach())


def kl_terms(
    logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, *, estimator: Literal["k1", "k2", "k3"]
) -> torch.Tensor:
    """Estimates [N] of KL(policy || reference) on tokens that the policy sampled (Schulman 2020).

    k1: the log ratio, unbiased, of either sign; its gradient is zero in expectation, so it belongs into the
    reward. k2: half its square, whose gradient is that of the KL. k3: exp(-k1) + k1 - 1, unbiased and never
    negative, as in GRPO (arXiv 2402.03300, eq. 4).
    """
    log_ratio = logprobs_N - reference_logprobs_N
    if estimator == "k1":
        return log_ratio
    if estimator == "k2":
        return 0.5 * log_ratio.square()
    return (-log_ratio).exp() + log_ratio - 1.0


def sampler_weights(
    trainer_logprobs_N: torch.Tensor,
    sampler_logprobs_N: torch.Tensor,
    lengths_B: torch.Tensor,
    *,
    cap: float,
    level: Literal["token", "sequence"] = "token",
    beyond: Literal["truncate", "mask"] = "truncate",
) -> torch.Tensor:
    """Truncated importance weights [N] that correct for a sampler whose distribution is not the trainer's
    (Yao et al. 2025): the ratio of the token, or of the product over its whole sample, at most `cap`; beyond
    it the weight is `cap`, or 0 with `mask`. Both logprobs are of the same weights, before any step."""
    log_ratio = trainer_logprobs_N - sampler_logprobs_N
    if level == "sequence":
        log_ratio = _sample_means(log_ratio, lengths_B) * lengths_B.repeat_interleave(lengths_B)
    ratio = log_ratio.exp()
    return ratio.clamp(max=cap) if beyond == "truncate" else ratio.masked_fill(ratio > cap, 0.0)


def token_weights(
    lengths: Sequence[int],
    *,
    loss: LossName,
    max_tokens: int = 1,
    totals: tuple[float, float] | None = None,
) -> list[float]:
    """Weight of each token of sample i, so that the batch loss is the weighted sum of token losses.

    grpo, gspo: mean over samples of the mean over their tokens. dapo, cispo: mean over all tokens. dr_grpo:
    sum over tokens / (samples * `max_tokens`). `totals`: samples and tokens of the whole optimiser batch
    where `lengths` are only a part of it. Samples without tokens do not count.
    """
    samples, tokens = totals or batch_totals(lengths)
    kind = _AGGREGATION[loss]
    if kind == "tokens":
        return [1.0 / tokens if n else 0.0 for n in lengths]
    if kind == "fixed":
        return [1.0 / (samples * max_tokens) if n else 0.0 for n in lengths]
    return [1.0 / (samples * n) if n else 0.0 for n in lengths]


def batch_totals(lengths: Sequence[int]) -> tuple[float, float]:
    """How many samples have tokens, and how many tokens there are."""
    return float(sum(n > 0 for n in lengths)), float(sum(lengths))


def _sample_means(values_N: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """The mean over its sample, at each token [N]."""
    sample_N = torch.arange(len(lengths_B), device=values_N.device).repeat_interleave(lengths_B)
    sums = values_N.new_zeros(len(lengths_B)).index_add_(0, sample_N, values_N)
    return (sums / lengths_B.clamp(min=1))[sample_N]
