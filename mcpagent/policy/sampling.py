"""From logits to a token and its logprob, and one turn while it is being sampled."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mcpagent.core.trajectory import FinishReason
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.engine_thread import Finished

# Logits [n, V], uniform numbers [n] and settings [n] -> tokens [n] and logprobs [n].
TokenSampler = Callable[
    [torch.Tensor, Sequence[float], Sequence[Sampling]], tuple[torch.Tensor, torch.Tensor]
]


def sample_rows(
    logits: torch.Tensor,  # [n, V]
    uniforms: Sequence[float],  # [n] in [0, 1)
    settings: Sequence[Sampling],  # [n]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return tokens [n] and their logprobs [n] in nats, under the distribution that was sampled from.

    A greedy row reports the logprob at temperature 1, because its own distribution is a point.
    """
    numbers = torch.tensor([uniforms, [s.temperature or 1.0 for s in settings]], device=logits.device)
    probabilities = torch.softmax(logits.float() / numbers[1, :, None], dim=-1)
    if any(s.top_p < 1.0 for s in settings):
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
    """Keep the smallest set of each row's likeliest tokens with mass top_p, and renormalise."""
    top_p = torch.tensor([[s.top_p] for s in settings], device=probabilities.device)
    ordered, order = probabilities.sort(dim=-1, descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered  # mass of the likelier tokens
    ordered = ordered.masked_fill((before >= top_p * ordered.sum(-1, keepdim=True)) & (top_p < 1.0), 0.0)
    kept = torch.zeros_like(probabilities).scatter(1, order, ordered)
    return kept / kept.sum(-1, keepdim=True)


@dataclass(eq=False)
class OpenTurn:
    """A request and what has been sampled for it; make it with `begin`."""

    request: CompletionRequest
    uniforms: list[float]  # one for each token that may be sampled
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def begin(cls, request: CompletionRequest, *, max_context: int) -> OpenTurn:
        """Return the turn of a request; its random numbers depend on the request's seed alone."""
        room = min(request.sampling.max_new_tokens, max_context - len(request.token_ids))
        uniforms = np.random.default_rng(request.seed).random(room, dtype=np.float32).tolist()
        return cls(request, uniforms)

    def is_over(self, stop_ids: frozenset[int]) -> bool:
        """Return whether the last token is a stop token, or the turn is as long as it may be."""
        return self.tokens[-1] in stop_ids or len(self.tokens) == len(self.uniforms)

    def finished(self, stop_ids: frozenset[int]) -> Finished:
        """Return where it stands, whether it is over or was cut."""
        stopped = bool(self.tokens) and self.tokens[-1] in stop_ids
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Finished(self.request, tuple(self.tokens), tuple(self.logprobs), reason)


def sample_turns(turns: Sequence[OpenTurn], logits: torch.Tensor, *, sample: TokenSampler) -> None:
    """One token for each turn, from its row of `logits` [n, V]."""
    tokens, logprobs = sample(
        logits,
        [turn.uniforms[len(turn.tokens)] for turn in turns],
        [turn.request.sampling for turn in turns],
    )
    values = logprobs.tolist()
    refuse_infinite(values)
    for turn, token, value in zip(turns, tokens.tolist(), values, strict=True):
        turn.tokens.append(token)
        turn.logprobs.append(value)


def refuse_infinite(logprobs: Sequence[float]) -> None:
    """Raise RunError if one of them is not a number."""
    if not math.isfinite(sum(logprobs)):
        raise RunError(
            "the model's logits are not finite: its weights have diverged, or its dtype overflows",
            remedy="resume from an earlier checkpoint with a lower learning rate, or set model.dtype=float32",
        )
