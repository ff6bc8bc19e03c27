"""A key-value cache of slots: one row for each episode, kept across its turns.

transformers' `DynamicCache` concatenates at every step, which copies the whole cache for every token. Here
each layer holds one buffer [rows, heads, capacity, head_dim]; a forward pass writes its new keys in place,
at each row's own position, and attends over a view. Rows that are sampling stay in front, so that the view is
a slice; a row that waits for a tool is swapped behind them and keeps its keys.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

_STEP = 32  # capacities are multiples of it
_GROWTH = 1.25  # factor, at least
# A view with gaps between its rows is read at half the speed of one without (hardware prefetching stops at
# each gap): below this share of unused positions they are read along, behind the mask.
_MAX_READ_ALONG = 1 / 4


class SlotCache(Cache):
    """Keys and values by slot. `begin` names the rows and positions that the next forward pass writes."""

    def __init__(self, *, slots: int, dtype: torch.dtype) -> None:
        super().__init__(layers=[])
        self.slots = slots
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
            self._capacity = -(-int(max(length, _GROWTH * capacity)) // _STEP) * _STEP
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

    def copy(self, source: int, targets: slice, length: int) -> None:
        """Copy the first `length` positions of slot `source` into `targets` (a shared prompt)."""
        for buffer in (*self._keys, *self._values):
            buffer[targets, :, :length] = buffer[source : source + 1, :, :length]

    def clear(self) -> None:
        """Forget everything. The next episodes start from the same state as those of a new cache, down to
        the capacity, on which the last bits of attention depend."""
        self._keys, self._values = [], []
        self._height = self._capacity = 0

    def _places_of(self, heads: int) -> torch.Tensor:
        """Where the announced states [n, heads, q] go in a buffer seen as [rows * heads * capacity, ...]."""
        if heads not in self._places:
            device = self._positions.device
            rows = torch.arange(self._first, self._first + self._rows, device=device)
            planes = rows[:, None] * heads + torch.arange(heads, device=device)
            self._places[heads] = (planes[:, :, None] * self._capacity + self._positions[:, None, :]).reshape(
                -1
            )
        return self._places[heads]
