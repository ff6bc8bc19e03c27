"""The policy objective, token by token. Pure functions on flat tensors: N loss-bearing tokens of a batch."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class LossParts:
    """Per-token loss [N] (differentiable) and what the logs show of it (detached, [N])."""

    loss_N: torch.Tensor
    ratio_N: torch.Tensor
    is_clipped_N: torch.Tensor  # bool: the clip took the gradient away
    kl_N: torch.Tensor


def policy_loss(
    logprobs_N: torch.Tensor,
    *,
    old_logprobs_N: torch.Tensor,
    advantages_N: torch.Tensor,
    reference_logprobs_N: torch.Tensor | None = None,
    clip_low: float = 0.2,
    clip_high: float = 0.2,
    kl_coef: float = 0.0,
) -> LossParts:
    """`-min(r A, clip(r, 1 - low, 1 + high) A) + kl_coef * kl`, r = exp(logp - old_logp); all in nats.

    Clipping: PPO (arXiv 1707.06347, eq. 7), the asymmetric range of DAPO (arXiv 2503.14476). KL: the k3
    estimator of KL(policy || reference), exp(d) - d - 1 with d = reference - policy, non-negative and
    unbiased (Schulman 2020), as in GRPO (arXiv 2402.03300, eq. 4).
    """
    ratio = (logprobs_N - old_logprobs_N).exp()
    clipped = ratio.clamp(1.0 - clip_low, 1.0 + clip_high)
    loss = -torch.minimum(ratio * advantages_N, clipped * advantages_N)
    if reference_logprobs_N is None:
        kl = torch.zeros_like(logprobs_N)
    else:
        gap = reference_logprobs_N - logprobs_N
        kl = gap.exp() - gap - 1.0
        loss = loss + kl_coef * kl
    outside = ((ratio > 1.0 + clip_high) & (advantages_N > 0)) | (
        (ratio < 1.0 - clip_low) & (advantages_N < 0)
    )
    return LossParts(loss, ratio.detach(), outside, kl.detach())


def token_weights(loss_tokens: Sequence[int], *, aggregation: str) -> list[float]:
    """Weight of each token of sample i, so that the batch loss is the weighted sum of token losses.

    grpo: mean over samples of the mean over their tokens. dapo: mean over all tokens.
    """
    samples = [n for n in loss_tokens if n > 0]
    if aggregation == "dapo":
        total = sum(samples)
        return [1.0 / total if n else 0.0 for n in loss_tokens]
    if aggregation == "grpo":
        return [1.0 / (len(samples) * n) if n else 0.0 for n in loss_tokens]
    raise ValueError(f"unknown aggregation {aggregation!r}")
