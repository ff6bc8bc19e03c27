"""Batched generation with transformers' own modules and a slot cache.

Continuous: a request joins the running batch between two steps and leaves it when its turn ends, so a
waiting tool holds nothing up. The engine is synchronous and single-threaded; `policy.hf` feeds it.

Slots are in three regions: [0, active) are sampling, [active, used) are parked between two turns of their
episode, the rest are free.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from mcpagent.core.trajectory import FinishReason
from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.sampling import sample_rows
from mcpagent.policy.slot_cache import SlotCache


@dataclass(eq=False)
class Row:
    """One episode in the engine: what its slot holds and the turn that is being sampled."""

    episode_id: str
    context: list[int] = field(default_factory=list)  # ids whose keys are in the slot, plus the pending ones
    cached: int = 0  # positions of `context` whose keys are in the slot
    request: CompletionRequest | None = None
    uniforms: np.ndarray = field(default_factory=lambda: np.empty(0, dtype=np.float32))
    sampled: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)


@dataclass(frozen=True)
class Finished:
    """The end of one turn."""

    request: CompletionRequest
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    reason: FinishReason


class Engine:
    """`decoder(input_ids, ...) -> hidden` and `head(hidden) -> logits` of any causal LM of transformers."""

    def __init__(
        self,
        *,
        decoder: Callable[..., Any],
        head: Callable[[torch.Tensor], torch.Tensor],
        stop_ids: frozenset[int],
        max_context: int,
        slots: int,
        device: torch.device,
    ) -> None:
        self._decoder, self._head = decoder, head
        self._stop_ids, self._max_context, self._device = stop_ids, max_context, device
        self._rows: list[Row] = []  # by slot: active first, then parked
        self._slot_of: dict[str, int] = {}
        self._active = 0
        self._cache = SlotCache(slots=slots)
        self.sampled_tokens = 0
        self.prefilled_tokens = 0

    @property
    def has_work(self) -> bool:
        return self._active > 0

    def reset(self) -> None:
        """Forget every cached key: the weights have changed."""
        if self._active:
            raise RuntimeError("weights changed while a turn was being sampled")
        for row in self._rows:
            row.cached = 0

    @torch.inference_mode()
    def release(self, episode_id: str) -> None:
        """Free the slot of a finished episode; the last row takes its place."""
        slot = self._slot_of.pop(episode_id, None)
        if slot is None:
            return
        if slot < self._active:
            raise RuntimeError(f"episode {episode_id} was released while its turn was being sampled")
        last = self._rows.pop()
        if last.episode_id != episode_id:
            self._cache.copy(len(self._rows), slice(slot, slot + 1), last.cached)
            self._rows[slot] = last
            self._slot_of[last.episode_id] = slot

    @torch.inference_mode()
    def admit(self, requests: Sequence[CompletionRequest]) -> list[Finished]:
        """Let requests join; returns those that end at once because the context has no room."""
        overflow: list[Finished] = []
        joining: list[CompletionRequest] = []
        for request in requests:
            if len(request.token_ids) >= self._max_context:
                overflow.append(Finished(request, (), (), FinishReason.OVERFLOW))
            else:
                joining.append(request)
        # Known rows in slot order, then new ones in the order given: the batch layout depends only on what
        # was asked, and rows that are already in place are not moved.
        joining.sort(key=lambda r: self._slot_of.get(r.episode_id, 1 << 30))
        first = self._active
        for request in joining:
            self._join(request)
        finished = self._prefill(first)
        return overflow + finished

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One token for every active row."""
        rows = self._rows[: self._active]
        positions = torch.tensor([[r.cached] for r in rows], device=self._device)
        ids = torch.tensor([[r.context[r.cached]] for r in rows], device=self._device)
        hidden = self._forward(ids, positions, first=0)[:, -1]
        for row in rows:
            row.cached += 1
        return self._sample(rows, hidden)

    def _join(self, request: CompletionRequest) -> None:
        slot = self._slot_of.get(request.episode_id)
        if slot is None:
            slot = len(self._rows)
            if slot >= self._cache.slots:
                raise RuntimeError(f"the engine has {self._cache.slots} slots, all in use")
            self._rows.append(Row(request.episode_id))
            self._slot_of[request.episode_id] = slot
        row = self._rows[slot]
        context = list(request.token_ids)
        # Keys are reused as far as the context is the one they were computed for.
        same = row.cached if context[: row.cached] == row.context[: row.cached] else 0
        # At least one token is computed again: the next token is sampled from its output.
        row.context, row.cached = context, min(same, len(context) - 1)
        row.request = request
        room = min(request.sampling.max_new_tokens, self._max_context - len(context))
        row.uniforms = np.random.default_rng(request.seed).random(room, dtype=np.float32)
        row.sampled, row.logprobs = [], []
        self._exchange(slot, self._active)
        self._active += 1

    def _prefill(self, first: int) -> list[Finished]:
        rows = self._rows[first : self._active]
        if not rows:
            return []
        self._share_prompts(first, rows)
        counts = [len(r.context) - r.cached for r in rows]
        width = max(counts)
        ids = torch.zeros(len(rows), width, dtype=torch.long)
        # Right padding: a pad position writes keys past the row's end, where the mask hides them until the
        # row's own tokens overwrite them.
        positions = torch.tensor([[r.cached] for r in rows]) + torch.arange(width)
        for i, (row, count) in enumerate(zip(rows, counts, strict=True)):
            ids[i, :count] = torch.tensor(row.context[row.cached :])
        hidden = self._forward(ids.to(self._device), positions.to(self._device), first=first)
        last = hidden[torch.arange(len(rows)), torch.tensor(counts) - 1]
        self.prefilled_tokens += sum(counts)
        for row in rows:
            row.cached = len(row.context)
        return self._sample(rows, last, first=first)

    def _share_prompts(self, first: int, rows: list[Row]) -> None:
        """Compute once what fresh rows have in common, and copy its keys.

        Two levels: the prefix of all fresh rows (a system prompt with its tools), then the whole prompt of
        rows that are equal (the attempts of a group).
        """
        fresh = [i for i, r in enumerate(rows) if r.cached == 0]
        if len(fresh) < 2 or fresh != list(range(fresh[0], fresh[0] + len(fresh))):
            return
        base, contexts = first + fresh[0], [rows[i].context for i in fresh]
        prefix = _common_prefix(min(contexts), max(contexts))
        # The last token of a prompt is always computed by the caller.
        prefix = min(prefix, min(map(len, contexts)) - 1)
        if prefix > 0:
            self._compute(base, [contexts[0][:prefix]], start=0)
            self._cache.copy(base, slice(base + 1, base + len(fresh)), prefix)
        leaders: dict[tuple[int, ...], int] = {}
        for offset, context in enumerate(contexts):
            leaders.setdefault(tuple(context), offset)
        shared = len(leaders) < len(contexts)
        for offset, (i, context) in enumerate(zip(fresh, contexts, strict=True)):
            rows[i].cached = prefix
            leader = leaders[tuple(context)]
            if shared and leader == offset and len(context) - 1 > prefix:
                self._compute(base + offset, [context[prefix:-1]], start=prefix)
            if shared:
                if leader != offset:
                    self._cache.copy(base + leader, slice(base + offset, base + offset + 1), len(context) - 1)
                rows[i].cached = len(context) - 1

    def _compute(self, slot: int, ids: list[list[int]], *, start: int) -> None:
        tokens = torch.tensor(ids, device=self._device)
        positions = start + torch.arange(tokens.shape[1], device=self._device)[None]
        self._forward(tokens, positions, first=slot)
        self.prefilled_tokens += tokens.shape[1]

    def _forward(self, ids: torch.Tensor, positions: torch.Tensor, *, first: int) -> torch.Tensor:
        mask = self._cache.begin(first=first, positions=positions)
        out = self._decoder(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=self._cache,
            use_cache=True,
        )
        return out.last_hidden_state

    def _sample(self, rows: list[Row], hidden: torch.Tensor, *, first: int = 0) -> list[Finished]:
        settings = rows[0].request.sampling  # type: ignore[union-attr]
        tokens, logprobs = sample_rows(
            self._head(hidden),
            torch.tensor([r.uniforms[len(r.sampled)] for r in rows], device=self._device),
            torch.tensor([r.request.sampling.temperature for r in rows], device=self._device),  # type: ignore[union-attr]
            top_p=settings.top_p,
            top_k=settings.top_k,
        )
        self.sampled_tokens += len(rows)
        ended: list[int] = []
        for i, (row, token, logprob) in enumerate(zip(rows, tokens.tolist(), logprobs.tolist(), strict=True)):
            row.sampled.append(token)
            row.logprobs.append(logprob)
            row.context.append(token)
            if token in self._stop_ids or len(row.sampled) == len(row.uniforms):
                ended.append(first + i)
        # From the back, so that a swap never moves a row that is still to be parked.
        return [self._park(slot) for slot in reversed(ended)]

    def _park(self, slot: int) -> Finished:
        row = self._rows[slot]
        request = row.request
        if request is None:
            raise RuntimeError("a row without a request was sampling")
        stopped = row.sampled[-1] in self._stop_ids
        row.request = None
        self._active -= 1
        self._exchange(slot, self._active)
        reason = FinishReason.STOP if stopped else FinishReason.LENGTH
        return Finished(request, tuple(row.sampled), tuple(row.logprobs), reason)

    def _exchange(self, a: int, b: int) -> None:
        if a == b:
            return
        rows = self._rows
        self._cache.swap(a, b, max(rows[a].cached, rows[b].cached))
        rows[a], rows[b] = rows[b], rows[a]
        self._slot_of[rows[a].episode_id], self._slot_of[rows[b].episode_id] = a, b


def _common_prefix(a: list[int], b: list[int]) -> int:
    for i, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            return i
    return min(len(a), len(b))
