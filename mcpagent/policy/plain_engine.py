"""Generation for models that the slot cache cannot serve: sliding windows, recurrent layers, other kernels.

Each turn is a row of its own with the cache that transformers makes for the architecture, filled from the
whole context when the turn begins. Slower than `hf_engine`, and right for whatever transformers can generate.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mcpagent.core.trajectory import FinishReason, PolicySpan
from mcpagent.errors import RunError
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import Finished
from mcpagent.policy.sampling import Sampler, sample_rows


@dataclass(eq=False)
class _Turn:
    request: CompletionRequest
    uniforms: list[float]  # one for each token that may be sampled
    cache: Any = None
    tokens: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    versions: list[tuple[int, int]] = field(default_factory=list)  # policy version, its first token


class PlainEngine:
    """`decoder` and `head` as for `hf_engine.Engine`, whose contract it keeps."""

    def __init__(
        self,
        *,
        decoder: Callable[..., Any],
        head: Callable[[torch.Tensor], torch.Tensor],
        stop_ids: frozenset[int],
        max_context: int,
        device: torch.device,
        sample: Sampler = sample_rows,
    ) -> None:
        self._decoder, self._head, self._sample_rows = decoder, head, sample
        self._stop_ids, self._max_context, self._device = stop_ids, max_context, device
        self._turns: dict[str, _Turn] = {}
        self.version = 0
        self.sampled_tokens = 0
        self.prefilled_tokens = 0

    @property
    def has_work(self) -> bool:
        return bool(self._turns)

    def reset(self) -> None:
        """The weights have changed: turns that are being sampled go on with the new ones."""
        self.version += 1
        for turn in self._turns.values():
            turn.cache = None
            turn.versions.append((self.version, len(turn.tokens)))

    def release(self, episode_id: str) -> list[Finished]:
        turn = self._turns.pop(episode_id, None)
        return [] if turn is None else [self._finished(turn)]

    def admit(self, requests: Sequence[CompletionRequest]) -> list[Finished]:
        ends: list[Finished] = []
        for request in requests:
            room = self._max_context - len(request.token_ids)
            if room <= 0:
                ends.append(Finished(request, (), (), FinishReason.OVERFLOW))
                continue
            if request.episode_id in self._turns:
                raise RuntimeError(f"episode {request.episode_id} already has a turn that is being sampled")
            count = min(request.sampling.max_new_tokens, room)
            uniforms = np.random.default_rng(request.seed).random(count, dtype=np.float32).tolist()
            turn = _Turn(request, uniforms, versions=[(self.version, 0)])
            self._turns[request.episode_id] = turn
        return ends

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        turns = list(self._turns.values())
        hidden = torch.cat([self._forward(turn) for turn in turns])
        tokens, logprobs = self._sample_rows(
            self._head(hidden),
            [turn.uniforms[len(turn.tokens)] for turn in turns],
            [turn.request.sampling for turn in turns],
        )
        self.sampled_tokens += len(turns)
        values = logprobs.tolist()
        if not math.isfinite(sum(values)):
            raise RunError(
                "the model's logits are not finite: its weights have diverged, or its dtype overflows",
                remedy="resume from an earlier checkpoint with a lower learning rate, or set "
                "model.dtype=float32",
            )
        ends: list[Finished] = []
        for turn, token, logprob in zip(turns, tokens.tolist(), values, strict=True):
            turn.tokens.append(token)
            turn.logprobs.append(logprob)
            if token in self._stop_ids or len(turn.tokens) == len(turn.uniforms):
                del self._turns[turn.request.episode_id]
                ends.append(self._finished(turn))
        return ends

    def _forward(self, turn: _Turn) -> torch.Tensor:
        """The hidden state [1, hidden] that the next token is sampled from."""
        new = turn.tokens[-1:] if turn.cache is not None else [*turn.request.token_ids, *turn.tokens]
        if turn.cache is None:
            self.prefilled_tokens += len(new)
        ids = torch.tensor([new], device=self._device)
        out = self._decoder(input_ids=ids, past_key_values=turn.cache, use_cache=True)
        # Some recurrent models (Mamba, RecurrentGemma) give none: their context is computed for every token.
        turn.cache = getattr(out, "past_key_values", None)
        return out.last_hidden_state[:, -1]

    def _finished(self, turn: _Turn) -> Finished:
        stopped = bool(turn.tokens) and turn.tokens[-1] in self._stop_ids
        ends = [start for _, start in turn.versions[1:]] + [len(turn.tokens)]
        versions = tuple(
            PolicySpan(version=version, start=start, end=end)
            for (version, start), end in zip(turn.versions, ends, strict=True)
        )
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Finished(turn.request, tuple(turn.tokens), tuple(turn.logprobs), reason, versions)
