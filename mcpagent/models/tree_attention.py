"""Attention over packed trees: sequences that share prefixes, one after another in a single row, no padding.

A tree of segments holds every shared token once. Each segment attends to its ancestors and, causally, to
itself, so the result is that of each sequence alone. Segments that continue the same path are computed
together; nothing is kept between calls, so gradient checkpointing works as for any other attention.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch.nn.functional import pad, scaled_dot_product_attention


@dataclass(frozen=True)
class Siblings:
    """Segments of the given `lengths` that stand one after another from `start` and continue the same
    `path`: the (start, end) of each ancestor, root first."""

    start: int
    lengths: tuple[int, ...]
    path: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        return max(self.lengths)

    @property
    def end(self) -> int:
        return self.start + sum(self.lengths)


@dataclass(frozen=True)
class Tree:
    """The packed row as sets of siblings that cover it in order. Masks are made once and serve all layers."""

    sets: tuple[Siblings, ...]
    _masks: dict[tuple[int, int], torch.Tensor] = field(default_factory=dict, compare=False, repr=False)

    def mask(self, width: int, before: int, like: torch.Tensor) -> torch.Tensor:
        """Additive [width, before + width]: query i sees everything before its segment and itself up to i."""
        key = (width, before)
        if key not in self._masks:
            hidden = torch.ones(width, before + width, dtype=torch.bool, device=like.device).triu(before + 1)
            self._masks[key] = torch.zeros_like(hidden, dtype=like.dtype).masked_fill_(hidden, -torch.inf)
        return self._masks[key]


def attend_tree(
    query: torch.Tensor,  # [1, heads, L, head_dim]
    key: torch.Tensor,  # [1, key_value_heads, L, head_dim]
    value: torch.Tensor,
    tree: Tree,
    *,
    scaling: float | None,
    dropout: float = 0.0,
) -> torch.Tensor:
    """[1, L, heads, head_dim]."""
    parts = [_attend(query, key, value, tree, siblings, scaling, dropout) for siblings in tree.sets]
    return torch.cat(parts)[None]


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: Tree,
    siblings: Siblings,
    scaling: float | None,
    dropout: float,
) -> torch.Tensor:
    keys, values = _rows(key, siblings), _rows(value, siblings)
    before = sum(end - start for start, end in siblings.path)
    if before:
        keys = torch.cat([_path(key, siblings), keys], dim=2)
        values = torch.cat([_path(value, siblings), values], dim=2)
    out = scaled_dot_product_attention(
        _rows(query, siblings),
        keys,
        values,
        attn_mask=tree.mask(siblings.width, before, query) if before else None,
        is_causal=not before,
        scale=scaling,
        dropout_p=dropout,
        enable_gqa=query.shape[1] != key.shape[1],
    )
    return _packed(out, siblings.lengths)


def _rows(states: torch.Tensor, siblings: Siblings) -> torch.Tensor:
    """[siblings, heads, width, head_dim]; shorter ones end in zeros, which nothing before them sees."""
    own = states[0, :, siblings.start : siblings.end]
    lengths, width = siblings.lengths, siblings.width
    if min(lengths) == width:
        return own.unflatten(1, (len(lengths), width)).transpose(0, 1)
    return torch.stack([pad(s, (0, 0, 0, width - s.shape[1])) for s in own.split(lengths, dim=1)])


def _path(states: torch.Tensor, siblings: Siblings) -> torch.Tensor:
    """[siblings, heads, tokens of the ancestors, head_dim], the same for each."""
    ancestors = [states[:, :, start:end] for start, end in siblings.path]
    shared = ancestors[0] if len(ancestors) == 1 else torch.cat(ancestors, dim=2)
    return shared.expand(len(siblings.lengths), -1, -1, -1)


def _packed(out: torch.Tensor, lengths: Sequence[int]) -> torch.Tensor:
    """[tokens, heads, head_dim] of [siblings, heads, width, head_dim]."""
    rows = out.transpose(1, 2)
    if min(lengths) == out.shape[2]:
        return rows.flatten(0, 1)
    return torch.cat([row[:length] for row, length in zip(rows, lengths, strict=True)])
