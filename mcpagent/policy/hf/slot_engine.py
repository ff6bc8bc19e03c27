"""Batched generation with transformers' own modules and a slot cache.

Continuous: a request joins the running batch between two steps and leaves it when its turn ends, so a
waiting tool holds nothing up. The engine is synchronous and single-threaded; `policy.hf.policy` feeds it.

Slots are in three regions: [0, active) are sampling, [active, used) are parked between two turns of their
episode, the rest are free.
"""

from __future__ import annotations

import inspect
from bisect import bisect
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import pairwise, takewhile
from operator import le
from typing import Any

import torch
from transformers.cache_utils import Cache

from mcpagent.policy.contract import CompletionRequest
from mcpagent.policy.engine_thread import Finished
from mcpagent.policy.sampling import OpenTurn, TokenSampler, sample_rows, sample_turns

_STEP = 32  # capacities are multiples of it
_GROWTH, _LONG_GROWTH, _LONG = 1.25, 1.05, 1024  # factors, at least; the second from so many positions on
# A view with gaps between its rows is read at half the speed of one without (hardware prefetching stops at
# each gap): below this share of unused positions they are read along, behind the mask.
_MAX_READ_ALONG = 1 / 4


class SlotCache(Cache):
    """Keys and values by slot. `begin` names the rows and positions that the next forward pass writes."""

    def __init__(self, *, slots: int, dtype: torch.dtype, longest: int) -> None:
        super().__init__(layers=[])
        self.slots, self._longest = slots, longest  # a context is no longer: room beyond it is never used
        self._dtype = dtype
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._height = self._capacity = 0  # rows and positions of the buffers
        self._first = self._rows = self._length = self._read = 0
        self._positions = torch.empty(0, 0, dtype=torch.long)
        self._places: dict[int, torch.Tensor] = {}

    def begin(self, *, first: int, positions: torch.Tensor, length: int) -> torch.Tensor:
        """Announce a forward pass over slots [first, first + n), writing at `positions` [n, q] < `length`.

        Returns the additive attention mask [n, 1, q, kv]: each query sees its own row up to its own position.
        """
        self._first, self._rows, self._positions = first, positions.shape[0], positions
        self._places = {}
        self.reserve(rows=first + self._rows, length=length)
        self._length = length
        read_along = self._capacity - length <= _MAX_READ_ALONG * self._capacity
        self._read = self._capacity if read_along else length
        later = torch.arange(self._read, device=positions.device) > positions[:, None, :, None]
        return torch.zeros_like(later, dtype=self._dtype).masked_fill_(later, -torch.inf)

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [n, heads, q, head_dim] at the announced positions; return views over the whole context."""
        while len(self._keys) <= layer_idx:
            shape = (self._height, key_states.shape[1], self._capacity)
            # Zeros: what is read behind the mask gets weight 0, but 0 times NaN is NaN.
            self._keys.append(key_states.new_zeros(*shape, key_states.shape[3]))
            self._values.append(value_states.new_zeros(*shape, value_states.shape[3]))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        places = self._places_of(key_states.shape[1])
        for buffer, states in ((keys, key_states), (values, value_states)):
            width = states.shape[3]
            buffer.view(-1, width).index_copy_(0, places, states.reshape(-1, width))
        window = slice(self._first, self._first + self._rows)
        return keys[window, :, : self._read], values[window, :, : self._read]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length of the longest announced row before this forward pass (positions are passed explicitly)."""
        return self._length - self._positions.shape[1]

    def reserve(self, *, rows: int, length: int = 0) -> None:
        """Make room for `rows` slots of `length` positions, if there is less."""
        if rows <= self._height and length <= self._capacity:
            return
        height, capacity = self._height, self._capacity
        if rows > height:
            self._height = min(self.slots, max(rows, int(_GROWTH * height)))
        if length > capacity:
            grown = capacity * (_GROWTH if capacity < _LONG else _LONG_GROWTH)
            grown = min(grown, self._longest)
            self._capacity = -(-int(max(length, grown)) // _STEP) * _STEP
        for buffers in (self._keys, self._values):
            for i, buffer in enumerate(buffers):
                buffers[i] = grown = buffer.new_empty(
                    self._height, buffer.shape[1], self._capacity, buffer.shape[3]
                )
                grown[:height, :, :capacity] = buffer
                grown[height:] = 0.0
                grown[:height, :, capacity:] = 0.0

    def swap(self, a: int, b: int, length: int) -> None:
        """Exchange slots `a` and `b` up to `length` positions."""
        if a == b:
            return
        for buffer in (*self._keys, *self._values):
            kept = buffer[a, :, :length].clone()
            buffer[a, :, :length] = buffer[b, :, :length]
            buffer[b, :, :length] = kept

    def copy(self, source: int, target: int, length: int) -> None:
        """Copy the first `length` positions of slot `source` to slot `target`."""
        for buffer in (*self._keys, *self._values):
            buffer[target, :, :length] = buffer[source, :, :length]

    def clear(self) -> None:
        """Forget everything. The next episodes start from the same state as those of a new cache, down to
        the capacity, on which the last bits of attention depend."""
        self._keys, self._values = [], []
        self._height = self._capacity = 0

    def _places_of(self, heads: int) -> torch.Tensor:
        """Return where the announced states [n, heads, q] go in a buffer seen as [rows * heads * capacity,
        ...]."""
        if heads not in self._places:
            device = self._positions.device
            rows = torch.arange(self._first, self._first + self._rows, device=device)
            planes = rows[:, None] * heads + torch.arange(heads, device=device)
            self._places[heads] = (planes[:, :, None] * self._capacity + self._positions[:, None, :]).reshape(
                -1
            )
        return self._places[heads]


_MAX_BLOCK = 1 << 14  # tokens of one forward pass over new context, padding included
_MAX_PADDING = 0.5  # share of a block
_MIN_SAVED = 8  # tokens: a forward pass of its own that saves fewer costs more than it saves


@dataclass(eq=False)
class Row:
    """One episode in the engine: what its slot holds and the turn that is being sampled."""

    episode_id: str
    context: list[int] = field(default_factory=list)  # ids whose keys are in the slot, plus the pending ones
    cached: int = 0  # positions of `context` whose keys are in the slot
    open_turn: OpenTurn | None = None

    @property
    def turn(self) -> OpenTurn:
        """Return the turn of a row that is sampling."""
        if self.open_turn is None:
            raise RuntimeError(f"episode {self.episode_id} has no turn to sample")
        return self.open_turn


def cache_keyword(decoder: Callable[..., Any]) -> str:
    """Return what a decoder calls its cache, in its arguments and its output: `cache` since transformers 5.24
    in the families that took the name over."""
    accepted = inspect.signature(getattr(decoder, "forward", decoder)).parameters
    return "cache" if "cache" in accepted else "past_key_values"


class SlotEngine:
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
        dtype: torch.dtype = torch.float32,
        sample: TokenSampler = sample_rows,
    ) -> None:
        self._decoder, self._head, self._sample_rows = decoder, head, sample
        self._cache_keyword = cache_keyword(decoder)
        self._stop_ids, self._max_context, self._device = stop_ids, max_context, device
        self._rows: list[Row] = []  # by slot: active first, then parked
        self._slot_of: dict[str, int] = {}
        self._active = 0
        self._cache = SlotCache(slots=slots, dtype=dtype, longest=max_context)
        self.sampled_tokens = 0
        self.prefilled_tokens = 0

    @property
    def has_work(self) -> bool:
        """Return True while a turn is being sampled."""
        return self._active > 0

    def reset(self) -> None:
        """Forget every cached key: the weights have changed, and no turn is being sampled."""
        for row in self._rows:
            row.cached = 0
        if not self._rows:
            self._cache.clear()

    @torch.inference_mode()
    def release(self, episode_id: str) -> list[Finished]:
        """Free the slot of an episode; the last row takes its place. A turn that was still being sampled (its
        episode was cancelled) ends here."""
        if episode_id not in self._slot_of:
            return []
        slot = self._slot_of[episode_id]
        cut = [self._park(slot)] if slot < self._active else []
        slot, last = self._slot_of.pop(episode_id), self._rows.pop()
        if last.episode_id != episode_id:
            self._cache.copy(len(self._rows), slot, last.cached)
            self._rows[slot] = last
            self._slot_of[last.episode_id] = slot
        if not self._rows:
            self._cache.clear()
        return cut

    @torch.inference_mode()
    def admit(self, requests: Sequence[CompletionRequest]) -> list[Finished]:
        """Let requests join; returns those whose first token ends them."""
        # Known rows in slot order, then new ones in the order given: the batch layout depends only on what
        # was asked, and rows that are already in place are not moved.
        joining = sorted(requests, key=lambda r: self._slot_of.get(r.episode_id, 1 << 30))
        first = self._active
        opening = sum(r.episode_id not in self._slot_of for r in joining)
        if len(self._rows) + opening > self._cache.slots:
            raise RuntimeError(f"the engine has {self._cache.slots} slots, all in use")
        self._cache.reserve(rows=len(self._rows) + opening)
        for request in joining:
            self._join(request)
        return self._prefill(first)

    @torch.inference_mode()
    def step(self) -> list[Finished]:
        """One token for every active row."""
        rows = self._rows[: self._active]
        cached = [r.cached for r in rows]
        inputs = torch.tensor([cached, [r.context[r.cached] for r in rows]], device=self._device)
        positions, ids = inputs[:, :, None]
        hidden = self._forward(ids, positions, first=0, length=max(cached) + 1)[:, -1]
        for row in rows:
            row.cached += 1
        return self._sample(rows, hidden)

    def _join(self, request: CompletionRequest) -> None:
        slot = self._slot_of.get(request.episode_id)
        if slot is None:
            slot = len(self._rows)
            self._rows.append(Row(request.episode_id))
            self._slot_of[request.episode_id] = slot
        row = self._rows[slot]
        context = list(request.token_ids)
        # Keys are reused as far as the context is the one they were computed for.
        same = _common_prefix(context, row.context[: row.cached])
        # At least one token is computed again: the next token is sampled from its output.
        row.context, row.cached = context, min(same, len(context) - 1)
        row.open_turn = OpenTurn.begin(request, max_context=self._max_context)
        self._exchange(slot, self._active)
        self._active += 1

    def _prefill(self, first: int) -> list[Finished]:
        rows = self._rows[first : self._active]
        if not rows:
            return []
        self._share_prefixes(first)
        counts = [len(r.context) - r.cached for r in rows]
        self.prefilled_tokens += sum(counts)
        last: list[torch.Tensor] = []
        for start, end in _blocks(counts):
            last.append(self._extend(rows[start:end], first=first + start))
        return self._sample(rows, torch.cat(last), first=first)

    def _extend(self, rows: list[Row], *, first: int) -> torch.Tensor:
        """Compute what is new in each context; returns the hidden states [n, hidden] of the last tokens."""
        cached = [r.cached for r in rows]
        counts = [len(r.context) - r.cached for r in rows]
        width = max(counts)
        # Right padding: a pad position writes keys past the row's end, where the mask hides them until the
        # row's own tokens overwrite them.
        ids = torch.tensor(
            [r.context[r.cached :] + [0] * (width - n) for r, n in zip(rows, counts, strict=True)]
        )
        positions = torch.tensor(cached)[:, None] + torch.arange(width)
        hidden = self._forward(
            ids.to(self._device), positions.to(self._device), first=first, length=max(cached) + width
        )
        for row in rows:
            row.cached = len(row.context)
        return hidden[torch.arange(len(rows)), torch.tensor(counts) - 1]

    def _share_prefixes(self, first: int) -> None:
        """Compute what new contexts have in common once, and copy its keys: the tools of a server, the prompt
        of a group, what an episode that is under way begins with.

        Sorted by their tokens, contexts share most with their neighbours. So each new one copies from the
        cached one next to it, and then from the new one before it, which computes as much as they share.
        """
        new = [slot for slot in range(first, self._active) if self._rows[slot].cached == 0]
        if not new:
            return
        new.sort(key=lambda slot: self._rows[slot].context)
        cached = sorted(
            (row.context[: row.cached], slot) for slot, row in enumerate(self._rows) if row.cached
        )
        for slot in new:
            at = bisect(cached, (self._rows[slot].context,))
            for _, source in cached[max(at - 1, 0) : at + 1]:
                self._take(slot, source, limit=self._rows[source].cached)
        shared = [self._shared(a, b) for a, b in pairwise(new)]
        for i, (before, after) in enumerate(pairwise(new)):
            row, reach = self._rows[before], shared[i]
            takers = sum(1 for _ in takewhile(partial(le, reach), shared[i:]))
            if (reach - row.cached) * takers >= _MIN_SAVED:
                self._compute(before, row.context[row.cached : reach], start=row.cached)
                row.cached = reach
            self._take(after, before, limit=row.cached)

    def _shared(self, a: int, b: int) -> int:
        """Return how many positions two slots can share: the last token of a context is always computed
        for itself, since the next one is sampled from its output."""
        x, y = self._rows[a].context, self._rows[b].context
        return min(_common_prefix(x, y), len(x) - 1, len(y) - 1)

    def _take(self, slot: int, source: int, *, limit: int) -> None:
        """Copy what the first `limit` positions of `source` share with `slot`, if it has fewer."""
        length = min(limit, self._shared(slot, source))
        if length > self._rows[slot].cached:
            self._cache.copy(source, slot, length)
            self._rows[slot].cached = length

    def _compute(self, slot: int, ids: list[int], *, start: int) -> None:
        tokens = torch.tensor([ids], device=self._device)
        positions = start + torch.arange(tokens.shape[1], device=self._device)[None]
        self._forward(tokens, positions, first=slot, length=start + tokens.shape[1])
        self.prefilled_tokens += tokens.shape[1]

    def _forward(
        self, ids: torch.Tensor, positions: torch.Tensor, *, first: int, length: int
    ) -> torch.Tensor:
        mask = self._cache.begin(first=first, positions=positions, length=length)
        out = self._decoder(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            use_cache=True,
            **{self._cache_keyword: self._cache},
        )
        return out.last_hidden_state

    def _sample(self, rows: list[Row], hidden: torch.Tensor, *, first: int = 0) -> list[Finished]:
        turns = [row.turn for row in rows]
        sample_turns(turns, self._head(hidden), sample=self._sample_rows)
        self.sampled_tokens += len(rows)
        for row, turn in zip(rows, turns, strict=True):
            row.context.append(turn.tokens[-1])
        ended = [first + i for i, turn in enumerate(turns) if turn.is_over(self._stop_ids)]
        # From the back, so that a swap never moves a row that is still to be parked.
        return [self._park(slot) for slot in reversed(ended)]

    def _park(self, slot: int) -> Finished:
        row = self._rows[slot]
        turn, row.open_turn = row.turn, None
        self._active -= 1
        self._exchange(slot, self._active)
        return turn.finished(self._stop_ids)

    def _exchange(self, a: int, b: int) -> None:
        if a == b:
            return
        rows = self._rows
        self._cache.swap(a, b, max(rows[a].cached, rows[b].cached))
        rows[a], rows[b] = rows[b], rows[a]
        self._slot_of[rows[a].episode_id], self._slot_of[rows[b].episode_id] = a, b


def _common_prefix(a: list[int], b: list[int]) -> int:
    if a[: len(b)] == b:
        return len(b)
    return next((i for i, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), len(a))


def _blocks(counts: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Neighbouring rows [start, end) to compute together: not too much padding, not too many tokens."""
    start = longest = total = 0
    for i, count in enumerate(counts):
        size = (i + 1 - start) * max(longest, count)
        if i > start and (size > _MAX_BLOCK or size - total - count > _MAX_PADDING * size):
            yield start, i
            start, longest, total = i, 0, 0
        longest, total = max(longest, count), total + count
    if counts:
        yield start, len(counts)
