"""One turn while it is being sampled, as both engines of our own keep it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from mcpagent.core.trajectory import FinishReason, PolicySpan
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import Finished
from mcpagent.policy.sampling import Sampler


@dataclass(eq=False)
class OpenTurn:
    """What was asked and what has been sampled of it; make it with `begin`."""

    request: CompletionRequest
    uniforms: list[float]  # one for each token that may be sampled
    versions: list[tuple[int, int]]  # policy version, its first token
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)

    @classmethod
    def begin(cls, request: CompletionRequest, *, max_context: int, version: int) -> OpenTurn:
        """The stream of random numbers belongs to the request's seed alone."""
        room = min(request.sampling.max_new_tokens, max_context - len(request.token_ids))
        uniforms = np.random.default_rng(request.seed).random(room, dtype=np.float32).tolist()
        return cls(request, uniforms, [(version, 0)])

    def change_version(self, version: int) -> None:
        """What is sampled from now on is by other weights."""
        self.versions.append((version, len(self.tokens)))

    def is_over(self, stop_ids: frozenset[int]) -> bool:
        return self.tokens[-1] in stop_ids or len(self.tokens) == len(self.uniforms)

    def finished(self, stop_ids: frozenset[int]) -> Finished:
        """Where it stands, whether it is over or was cut."""
        stopped = bool(self.tokens) and self.tokens[-1] in stop_ids
        ends = [start for _, start in self.versions[1:]] + [len(self.tokens)]
        versions = tuple(
            PolicySpan(version=version, start=start, end=end)
            for (version, start), end in zip(self.versions, ends, strict=True)
        )
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Finished(self.request, tuple(self.tokens), tuple(self.logprobs), reason, versions)


def sample_turns(turns: Sequence[OpenTurn], logits: torch.Tensor, *, sample: Sampler) -> None:
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
    """Raises RunError where one of them is no number."""
    if not math.isfinite(sum(logprobs)):
        raise RunError(
            "the model's logits are not finite: its weights have diverged, or its dtype overflows",
            remedy="resume from an earlier checkpoint with a lower learning rate, or set model.dtype=float32",
        )
