"""From logits to a token and its logprob, with one uniform number for each row and step.

Inverse-CDF sampling needs one number a token, drawn from the row's own stream, so a row's tokens do not
depend on which other rows happen to be in the batch.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from mcpagent.policy.contract import Sampling

# Logits [n, V], uniform numbers [n] and settings [n] -> tokens [n] and logprobs [n].
Sampler = Callable[[torch.Tensor, Sequence[float], Sequence[Sampling]], tuple[torch.Tensor, torch.Tensor]]


def sample_rows(
    logits: torch.Tensor,  # [n, V]
    uniforms: Sequence[float],  # [n] in [0, 1)
    settings: Sequence[Sampling],  # [n]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Tokens [n] and their logprobs [n] in nats, under the distribution that was sampled from.

    A greedy row reports the logprob at temperature 1, because its own distribution is a point.
    """
    numbers = torch.tensor([uniforms, [s.temperature or 1.0 for s in settings]], device=logits.device)
    probabilities = torch.softmax(logits.float() / numbers[1, :, None], dim=-1)
    if any(s.top_p < 1.0 or s.top_k > 0 for s in settings):
        probabilities = _truncate(probabilities, settings)
    cdf = probabilities.cumsum(-1)
    # The last value is not exactly 1 in floating point: scale the draw instead of clamping the index, which
    # would give the last token of the vocabulary the missing mass.
    draws = (numbers[0] * cdf[:, -1])[:, None]
    tokens = torch.searchsorted(cdf, draws, right=True)[:, 0].clamp_(max=logits.shape[-1] - 1)
    greedy = [s.temperature == 0 for s in settings]
    if any(greedy):
        tokens = torch.where(torch.tensor(greedy, device=logits.device), logits.argmax(-1), tokens)
    return tokens, probabilities.gather(1, tokens[:, None])[:, 0].log()


def _truncate(probabilities: torch.Tensor, settings: Sequence[Sampling]) -> torch.Tensor:
    """Keep each row's top-k tokens, of these the smallest set with mass top_p, and renormalise."""
    size, device = probabilities.shape[-1], probabilities.device
    top_k = torch.tensor([[s.top_k or size] for s in settings], device=device)
    top_p = torch.tensor([[s.top_p] for s in settings], device=device)
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    ordered = ordered.masked_fill(torch.arange(size, device=device) >= top_k, 0.0)
    before = ordered.cumsum(-1) - ordered  # mass of the likelier tokens
    ordered = ordered.masked_fill((before >= top_p * ordered.sum(-1, keepdim=True)) & (top_p < 1.0), 0.0)
    kept = torch.zeros_like(probabilities).scatter(1, order, ordered)
    return kept / kept.sum(-1, keepdim=True)
