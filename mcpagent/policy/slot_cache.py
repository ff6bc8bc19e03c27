"""A key-value cache of slots: one row for each episode, kept across its turns.

transformers' `DynamicCache` concatenates at every step, which copies the whole cache for every token. Here
each layer holds one buffer [slots, heads, capacity, head_dim]; a forward pass writes its new keys in place,
at each row's own position, and attends over a view. Rows that are sampling stay in front, so that the view is a
slice; a row that waits for a tool is swapped behind them and keeps its keys.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers.cache_utils import Cache

_GROWTH = 64  # positions added when the capacity is exceeded


class SlotCache(Cache):
    """Keys and values by slot. `begin` names the rows and positions that the next forward pass writes."""

    def __init__(self, *, slots: int) -> None:
        super().__init__(layers=[])
        self.slots = slots
        self.capacity = 0
        self._keys: list[torch.Tensor] = []
        self._values: list[torch.Tensor] = []
        self._first = self._rows = self._kv_length = 0
        self._row_index = torch.empty(0, dtype=torch.long)
        self._positions = torch.empty(0, dtype=torch.long)

    def begin(self, *, first: int, positions: torch.Tensor) -> torch.Tensor:
        """Announce a forward pass over slots [first, first + n), writing at `positions` [n, q].

        Returns the attention mask, bool [n, 1, q, kv]: each query sees its own row up to its own position.
        """
        self._first, self._rows = first, positions.shape[0]
        self._positions = positions
        self._row_index = torch.arange(first, first + self._rows, device=positions.device)
        self._kv_length = int(positions.max()) + 1
        self._reserve(self._kv_length)
        keys = torch.arange(self._kv_length, device=positions.device)
        return (keys[None, None, :] <= positions[:, :, None])[:, None]

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, layer_idx: int, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write [n, heads, q, head_dim] at the announced positions; return views over the whole context."""
        while len(self._keys) <= layer_idx:
            shape = (self.slots, key_states.shape[1], self.capacity)
            self._keys.append(key_states.new_zeros(*shape, key_states.shape[3]))
            self._values.append(value_states.new_zeros(*shape, value_states.shape[3]))
        keys, values = self._keys[layer_idx], self._values[layer_idx]
        rows = self._row_index[:, None]
        # Advanced indices around a slice move to the front: [n, q, heads, head_dim].
        keys[rows, :, self._positions] = key_states.transpose(1, 2)
        values[rows, :, self._positions] = value_states.transpose(1, 2)
        window = slice(self._first, self._first + self._rows)
        return keys[window, :, : self._kv_length], values[window, :, : self._kv_length]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Length of the longest announced row before this forward pass (positions are passed explicitly)."""
        return self._kv_length - (self._positions.shape[1] if self._positions.ndim == 2 else 0)

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

    def _reserve(self, length: int) -> None:
        if length <= self.capacity:
            return
        old, self.capacity = self.capacity, -(-length // _GROWTH) * _GROWTH
        for buffers in (self._keys, self._values):
            for i, buffer in enumerate(buffers):
                grown = buffer.new_zeros(buffer.shape[0], buffer.shape[1], self.capacity, buffer.shape[3])
                grown[:, :, :old] = buffer
                buffers[i] = grown
