"""The policy objective, token by token. Pure functions on flat tensors: the N loss-bearing tokens of a batch,
sample by sample."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from mcpagent.core.registry import KL_ESTIMATORS, LOSSES


@dataclass(frozen=True, kw_only=True)
class Objective:
    """The surrogate, and its bounds. `kl_estimator` None leaves the KL out of the loss."""

    loss: str = "grpo"  # a name of `core.registry.LOSSES`
    clip_low: float = 0.2
    clip_high: float = 0.2
    dual_clip: float | None = None  # of the ratio if the advantage is negative; above 1 + clip_high
    kl_estimator: str | None = "k3"


@dataclass(frozen=True)
class LossParts:
    """Per-token loss [N] (differentiable) and what the logs show of it (detached, [N]). `kl_N` is the KL that
    the logs show, always by k3 (Schulman), whatever the loss adds."""

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
    """Return the surrogate, times the importance weights `weights_N` of the sampler, plus `kl_coef` times the
    KL. All logprobs in nats; `lengths_B` are the tokens of each sample, in order.

    `-min(r A, clip(r, 1 - low, 1 + high) A)` with r = exp(logp - old_logp): PPO (arXiv 1707.06347, eq. 7)
    with the asymmetric range of DAPO (arXiv 2503.14476). If A < 0 this has no bound; with `dual_clip`
    c > 1 it is `-max(min(r A, clip(r, 1 - low, 1 + high) A), c A)` there: at most `c |A|`, and no gradient
    past r = c (dual-clip PPO, Ye et al. 2020, arXiv 1912.09729; the `delta` of INTELLECT-2, arXiv
    2505.07291). `gspo` takes for r the geometric mean over the sample in the token form of GSPO (arXiv
    2507.18071, eq. 14), which leaves each token its own advantage. `cispo` is `-min(r, 1 + high) A logp` with
    a gradient through logp alone (MiniMax-M1, arXiv 2506.13585, eq. 4).
    """
    kind: Loss = LOSSES.load(objective.loss)
    loss, ratio, bounded = kind.surrogate(
        logprobs_N, logprobs_N - old_logprobs_N, advantages_N, lengths_B, objective
    )
    if weights_N is not None:
        loss = loss * weights_N
    if reference_logprobs_N is None:
        return LossParts(loss, ratio.detach(), bounded, torch.zeros_like(logprobs_N))
    if objective.kl_estimator is not None:
        kl = kl_terms(logprobs_N, reference_logprobs_N, estimator=objective.kl_estimator)
        loss = loss + kl_coef * kl
    shown = kl_terms(logprobs_N.detach(), reference_logprobs_N, estimator="k3")
    return LossParts(loss, ratio.detach(), bounded, shown)


def _clipped(
    logprobs_N: torch.Tensor,
    log_ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    lengths_B: torch.Tensor,
    objective: Objective,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ratio, lower, upper = log_ratio_N.exp(), 1.0 - objective.clip_low, 1.0 + objective.clip_high
    loss = -torch.minimum(ratio * advantages_N, ratio.clamp(lower, upper) * advantages_N)
    bounded = ((ratio > upper) & (advantages_N > 0)) | ((ratio < lower) & (advantages_N < 0))
    if objective.dual_clip is not None:
        is_negative = advantages_N < 0
        loss = torch.where(is_negative, torch.minimum(loss, -objective.dual_clip * advantages_N), loss)
        bounded |= is_negative & (ratio > objective.dual_clip)
    return loss, ratio, bounded


def _sequence_clipped(
    logprobs_N: torch.Tensor,
    log_ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    lengths_B: torch.Tensor,
    objective: Objective,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    mean = _sample_means(log_ratio_N.detach(), lengths_B)
    return _clipped(logprobs_N, mean + logprobs_N - logprobs_N.detach(), advantages_N, lengths_B, objective)


def _bounded_weights(
    logprobs_N: torch.Tensor,
    log_ratio_N: torch.Tensor,
    advantages_N: torch.Tensor,
    lengths_B: torch.Tensor,
    objective: Objective,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    ratio, upper = log_ratio_N.exp(), 1.0 + objective.clip_high
    return -ratio.detach().clamp(max=upper) * advantages_N * logprobs_N, ratio, ratio > upper


@dataclass(frozen=True)
class Loss:
    """`surrogate` gives, of logprobs, log ratios, advantages [N], lengths [B] and the objective, the loss and
    the ratio [N] with gradient, and where the bound was in force. `aggregation`: means within samples first,
    the mean over all tokens at once, or sums over a length that is the same for all."""

    surrogate: Callable[
        [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, Objective],
        tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    ]
    aggregation: Literal["samples", "tokens", "fixed"]


GRPO = Loss(_clipped, "samples")
DR_GRPO = Loss(_clipped, "fixed")
DAPO = Loss(_clipped, "tokens")
GSPO = Loss(_sequence_clipped, "samples")
CISPO = Loss(_bounded_weights, "tokens")


def kl_terms(logprobs_N: torch.Tensor, reference_logprobs_N: torch.Tensor, *, estimator: str) -> torch.Tensor:
    """Estimates [N] of KL(policy || reference) in nats on tokens that the policy sampled (Schulman 2020), by
    a name of `core.registry.KL_ESTIMATORS`."""
    return KL_ESTIMATORS.load(estimator)(logprobs_N - reference_logprobs_N)


def k1(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """Return the log ratio, unbiased, of either sign; its gradient is zero in expectation, so it belongs into
    the reward."""
    return log_ratio_N


def k2(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """Half the square of the log ratio, whose gradient is that of the KL."""
    return 0.5 * log_ratio_N.square()


def k3(log_ratio_N: torch.Tensor) -> torch.Tensor:
    """exp(-k1) + k1 - 1, unbiased and never negative, as in GRPO (arXiv 2402.03300, eq. 4)."""
    return (-log_ratio_N).exp() + log_ratio_N - 1.0


def sampler_weights(
    trainer_logprobs_N: torch.Tensor, sampler_logprobs_N: torch.Tensor, *, cap: float
) -> torch.Tensor:
    """Truncated importance weights [N] that correct for a sampler whose distribution is not the trainer's
    (Yao et al. 2025): the ratio of each token, at most `cap`. Both logprobs are of the same weights, before
    any step."""
    return (trainer_logprobs_N - sampler_logprobs_N).exp().clamp(max=cap)


def token_weights(
    lengths: Sequence[int],
    *,
    loss: str,
    max_tokens: int = 1,
    totals: tuple[float, float] | None = None,
) -> list[float]:
    """Weight of each token of sample i, so that the batch loss is the weighted sum of token losses.

    grpo, gspo: mean over samples of the mean over their tokens. dapo, cispo: mean over all tokens. dr_grpo:
    sum over tokens / (samples * `max_tokens`). `totals`: samples and tokens of the whole optimiser batch
    if `lengths` are only a part of it. Samples without tokens do not count.
    """
    samples, tokens = totals or batch_totals(lengths)
    kind: Loss = LOSSES.load(loss)
    if kind.aggregation == "tokens":
        return [1.0 / tokens if n else 0.0 for n in lengths]
    if kind.aggregation == "fixed":
        return [1.0 / (samples * max_tokens) if n else 0.0 for n in lengths]
    return [1.0 / (samples * n) if n else 0.0 for n in lengths]


def batch_totals(lengths: Sequence[int]) -> tuple[float, float]:
    """Return how many samples have tokens, and how many tokens there are."""
    return float(sum(n > 0 for n in lengths)), float(sum(lengths))


def _sample_means(values_N: torch.Tensor, lengths_B: torch.Tensor) -> torch.Tensor:
    """The mean over its sample, at each token [N]."""
    sample_N = torch.arange(len(lengths_B), device=values_N.device).repeat_interleave(lengths_B)
    sums = values_N.new_zeros(len(lengths_B)).index_add_(0, sample_N, values_N)
    return (sums / lengths_B.clamp(min=1))[sample_N]


@dataclass
class SamplerMismatch:
    """The distance of the sampler's logprobs from the trainer's for the same weights: the log of the ratio of
    probabilities, trainer over sampler, of every token, on the CPU."""

    log_ratios: list[torch.Tensor] = field(default_factory=list[torch.Tensor])

    def add(self, trainer_N: torch.Tensor, sampler_N: torch.Tensor) -> None:
        """Count tokens by both logprobs (nats), of the same weights."""
        self.log_ratios.append((trainer_N - sampler_N).cpu())

    def summary(self) -> dict[str, float]:
        """`sampler_ess` is the effective sample size of the weights, which are the ratios, as a share of the
        tokens (Kish): 1 if sampler and trainer agree. `sampler_kl` is KL(sampler || trainer) in nats a token,
        by k3."""
        tokens = sum(map(len, self.log_ratios))
        if not tokens:
            return {}
        log_ratio = torch.cat(self.log_ratios).double()
        gap, weight = log_ratio.abs(), log_ratio.exp()
        return {
            "logprob_drift_max": float(gap.max()),
            "logprob_drift_mean": float(gap.mean()),
            "logprob_drift_p99": float(gap.kthvalue(math.ceil(0.99 * tokens)).values),
            "sampler_kl": float(k3(-log_ratio).mean()),
            "sampler_ratio_mean": float(weight.mean()),
            "sampler_ratio_max": float(weight.max()),
            "sampler_ess": float(weight.sum().square() / (tokens * weight.square().sum())),
        }
