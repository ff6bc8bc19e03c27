"""From logits to a token and its logprob, with one uniform number for each row and step.

Inverse-CDF sampling needs one number a token, drawn from the row's own stream, so a row's tokens do not
depend on which other rows happen to be in the batch.
"""

from __future__ import annotations

import torch


def sample_rows(
    logits: torch.Tensor,  # [n, V]
    uniforms: torch.Tensor,  # [n] in [0, 1)
    temperatures: torch.Tensor,  # [n], 0 is greedy
    *,
    top_p: float = 1.0,
    top_k: int = 0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [n] and their logprobs [n] in nats, under the distribution that was sampled from.

    A greedy row reports the logprob at temperature 1, because its own distribution is a point.
    """
    greedy = temperatures == 0
    scale = torch.where(greedy, torch.ones_like(temperatures), temperatures)
    logprobs = torch.log_softmax(logits.float() / scale[:, None], dim=-1)
    if top_k > 0 or top_p < 1.0:
        logprobs = _truncate(logprobs, top_p=top_p, top_k=top_k)
    cdf = logprobs.exp().cumsum(-1)
    # The last value is not exactly 1 in floating point: scale the draw instead of clamping the index, which
    # would give the last token of the vocabulary the missing mass.
    draws = (uniforms * cdf[:, -1])[:, None]
    tokens = torch.searchsorted(cdf, draws, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    if bool(greedy.any()):
        tokens = torch.where(greedy, logits.argmax(-1), tokens)
    return tokens, logprobs.gather(1, tokens[:, None])[:, 0]


def _truncate(logprobs: torch.Tensor, *, top_p: float, top_k: int) -> torch.Tensor:
    """Keep the top-k tokens, then the smallest set with mass top_p, and renormalise."""
    ordered, order = logprobs.sort(dim=-1, descending=True)
    keep = torch.ones_like(ordered, dtype=torch.bool)
    if top_k > 0:
        keep[:, top_k:] = False
    if top_p < 1.0:
        masked = ordered.masked_fill(~keep, -torch.inf).softmax(-1)
        keep &= masked.cumsum(-1) - masked < top_p
    kept = torch.zeros_like(keep).scatter(1, order, keep)
    return torch.log_softmax(logprobs.masked_fill(~kept, -torch.inf), dim=-1)
