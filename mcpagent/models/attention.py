"""Attention: torch's fused kernel as mcpagent gives it to models, and over packed trees of sequences."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import torch
from torch.backends.cuda import SDPAParams, can_use_flash_attention
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

_MAX_SCORES = 1 << 28  # of attention without a flash kernel at once: 1 GiB in float32


@dataclass(frozen=True)
class Siblings:
    """Segments of the given `lengths` that stand one after another from `start` and continue the same
    `path`: the (start, end) of each ancestor, root first."""

    start: int
    lengths: tuple[int, ...]
    path: tuple[tuple[int, int], ...] = ()

    @property
    def width(self) -> int:
        """The longest segment, in tokens."""
        return max(self.lengths)

    @property
    def end(self) -> int:
        """The first position behind these segments."""
        return self.start + sum(self.lengths)

    @property
    def size(self) -> int:
        """Tokens once every segment is as long as the longest."""
        return len(self.lengths) * self.width


@dataclass(frozen=True)
class _Padding:
    """Between the L tokens of a row and the P >= L places of its sets with every segment as long as the
    longest of its set. `token_P` is the token at a place (a neighbour's if there is none), `place_L` the
    place of a token, `empty` the places without one."""

    token_P: torch.Tensor
    place_L: torch.Tensor
    empty: torch.Tensor


@dataclass(frozen=True)
class PrefixTree:
    """The packed row as sets of siblings that cover it in order. Masks and places are made once and serve all
    layers."""

    sets: tuple[Siblings, ...]
    _masks: list[torch.Tensor] = field(default_factory=list, compare=False, repr=False)
    _paddings: list[_Padding | None] = field(default_factory=list, compare=False, repr=False)

    def mask(self, device: torch.device) -> torch.Tensor:
        """Return who sees whom [L, L]: a token its ancestors, and its own segment up to itself."""
        if not self._masks:
            tokens = self.sets[-1].end
            mask = torch.zeros(tokens, tokens, dtype=torch.bool)
            for siblings in self.sets:
                start = siblings.start
                for length in siblings.lengths:
                    segment = slice(start, start + length)
                    mask[segment, segment] = torch.ones(length, length, dtype=torch.bool).tril()
                    for ancestor in siblings.path:
                        mask[segment, slice(*ancestor)] = True
                    start += length
            self._masks.append(mask.to(device))
        return self._masks[0]

    @cached_property
    def continued(self) -> list[tuple[slice, slice]]:
        """Return each segment that others continue, with a run of tokens below it that attends to all of
        it."""
        runs: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for siblings in self.sets:
            for ancestor in siblings.path:
                of_ancestor = runs.setdefault(ancestor, [])
                if of_ancestor and of_ancestor[-1][1] == siblings.start:
                    of_ancestor[-1] = (of_ancestor[-1][0], siblings.end)
                else:
                    of_ancestor.append((siblings.start, siblings.end))
        return [(slice(*ancestor), slice(*run)) for ancestor, below in runs.items() for run in below]

    def padding(self, device: torch.device) -> _Padding | None:
        """Return None if no segment is shorter than its siblings."""
        if not self._paddings:
            self._paddings.append(_padding(self.sets, device))
        return self._paddings[0]


class Trunk:
    """Keys and values of a prefix that several rows share: computed once, in a pass of its own, and cut off
    from its graph, so that each row's backward pass ends there; `backward` then goes on with their sum."""

    def __init__(self) -> None:
        self._made: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}  # by layer, with their graph
        self._leaves: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self.is_made = False

    def before(
        self, layer: int, key: torch.Tensor, value: torch.Tensor
    ) -> tuple[torch.Tensor, torch.Tensor] | None:
        """Return what a row attends to besides itself in a layer. In the trunk's own pass that is nothing,
        and its keys and values are kept; also if checkpointing makes them again."""
        if not self.is_made:
            self._made.setdefault(layer, (key, value))
            return None
        if not self._leaves:
            return None
        return self._leaves[layer]

    def cut(self) -> None:
        """The trunk's own pass is over."""
        self._leaves = {
            layer: (
                key.detach().requires_grad_(key.requires_grad),
                value.detach().requires_grad_(value.requires_grad),
            )
            for layer, (key, value) in self._made.items()
        }
        self.is_made = True

    def backward(self) -> None:
        """Carry the gradients of all rows on into the trunk, once."""
        pairs = [
            (made, leaf.grad)
            for layer, states in self._made.items()
            for made, leaf in zip(states, self._leaves[layer], strict=True)
            if leaf.grad is not None
        ]
        self._leaves = {}  # a pass that is computed again attends to nothing
        if pairs:
            torch.autograd.backward([made for made, _ in pairs], [gradient for _, gradient in pairs])
        self._made = {}


def attend_tree(
    query: torch.Tensor,  # [1, heads, L, head_dim]
    key: torch.Tensor,  # [1, key_value_heads, L, head_dim]
    value: torch.Tensor,
    tree: PrefixTree,
    *,
    scaling: float | None,
    dropout: float = 0.0,
    trunk: tuple[torch.Tensor, torch.Tensor] | None = None,
) -> torch.Tensor:
    """[1, L, heads, head_dim]. `trunk` are keys and values before the row, to which all of it attends: for
    flash kernels alone."""
    kind = query.device.type
    before = trunk or (None, None)
    if torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind):
        dtype = torch.get_autocast_dtype(kind)
        query, key, value = (states.to(dtype) for states in (query, key, value))
        before = tuple(None if states is None else states.to(dtype) for states in before)
    if not dropout and _has_flash(query, key, value):
        return _InParts.apply(query, key, value, *before, tree, scaling)  # type: ignore[return-value]
    assert trunk is None
    return _attend_masked(query, key, value, tree, scaling=scaling, dropout=dropout)


def _has_flash(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> bool:
    """Return whether torch's flash kernel takes these; on the meta device, where memory is counted, as on
    a GPU."""
    if query.device.type == "cuda":
        return can_use_flash_attention(SDPAParams(query, key, value, None, 0.0, True, True))
    return query.device.type in ("cpu", "meta")


class _InParts(torch.autograd.Function):
    """Attention in parts: each segment attends to itself, and the segments below it to all of it: flash
    attention without a mask or a copy of a key, merged by the log-sum-exp of the parts (Dao et al. 2022,
    arXiv 2205.14135, section 3.1; ring attention, arXiv 2310.01889, does the same over devices). A part's
    backward pass with the output and the log-sum-exp of the whole gives its share of the gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        trunk_key: torch.Tensor | None,
        trunk_value: torch.Tensor | None,
        tree: PrefixTree,
        scaling: float | None,
    ) -> torch.Tensor:
        padding = tree.padding(query.device)
        parts = zip(*(_by_set(states, tree, padding) for states in (query, key, value)), strict=True)
        of_sets = [_flash(*states, is_causal=True, scaling=scaling) for states in parts]
        out_L, lse_L = (
            _from_sets([part[i] for part in of_sets], padding) for i in range(2)
        )  # [L, heads, head_dim] and [L, heads]
        shared_parts = [(key[:, :, part], value[:, :, part], below) for part, below in tree.continued]
        if trunk_key is not None and trunk_value is not None:
            shared_parts.append((trunk_key, trunk_value, slice(None)))
        for shared_key, shared_value, below in shared_parts:
            out, lse = _flash(query[:, :, below], shared_key, shared_value, is_causal=False, scaling=scaling)
            of_own, of_shared = lse_L[below], lse[0].T
            weight = torch.sigmoid(of_shared - of_own)[..., None]
            merged = torch.lerp(
                out_L[below].to(weight.dtype), out[0].transpose(0, 1).to(weight.dtype), weight
            )
            out_L[below] = merged.to(out_L.dtype)
            lse_L[below] = torch.logaddexp(of_own, of_shared)
        ctx.save_for_backward(query, key, value, trunk_key, trunk_value, out_L, lse_L)
        ctx.tree, ctx.scaling = tree, scaling
        return out_L[None]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        tree, scaling = ctx.tree, ctx.scaling
        query, key, value, trunk_key, trunk_value, out_L, lse_L = ctx.saved_tensors
        given_L = gradients[0][0].contiguous()
        padding = tree.padding(query.device)
        given, out = (states.transpose(0, 1)[None] for states in (given_L, out_L))
        lse = lse_L.T[None, ..., None]
        # No token is at an empty place: it gives no gradient, and its weights are exp(score - infinity).
        sets = [_by_set(states, tree, padding) for states in (query, key, value, out)]
        sets += [_by_set(given, tree, padding, empty=0.0), _by_set(lse, tree, padding, empty=1e30)]
        of_sets = [
            _flash_backward(g, q, k, v, o, logs[..., 0], is_causal=True, scaling=scaling)
            for q, k, v, o, g, logs in zip(*sets, strict=True)
        ]
        made = [_from_sets([part[i] for part in of_sets], padding) for i in range(3)]
        for shared, below in tree.continued:
            of_part = _flash_backward(
                given[:, :, below],
                query[:, :, below],
                key[:, :, shared],
                value[:, :, shared],
                out[:, :, below],
                lse[:, :, below, 0],
                is_causal=False,
                scaling=scaling,
            )
            for whole, place, part in zip(made, (below, shared, shared), of_part, strict=True):
                whole[place] += part[0].transpose(0, 1)
        of_trunk = (None, None)
        if trunk_key is not None:
            of_part = _flash_backward(
                given, query, trunk_key, trunk_value, out, lse[..., 0], is_causal=False, scaling=scaling
            )
            made[0] += of_part[0][0].transpose(0, 1)
            of_trunk = of_part[1:]
        return *(states.transpose(0, 1)[None] for states in made), *of_trunk, None, None


def _flash(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, is_causal: bool, scaling: float | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [n, heads, q, head_dim] and the logs [n, heads, q] of the sums of exponentials."""
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            query, key, value, 0.0, is_causal, scale=scaling
        )
    return torch.ops.aten._scaled_dot_product_flash_attention(
        query, key, value, 0.0, is_causal, scale=scaling
    )[:2]


def _flash_backward(
    given: torch.Tensor,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *,
    is_causal: bool,
    scaling: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the gradients of queries, keys and values."""
    states = (given, query, key, value, out, lse.contiguous())
    if query.device.type == "cpu":
        return torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *states, 0.0, is_causal, scale=scaling
        )
    unused = torch.zeros(2, dtype=torch.uint64, device=query.device)  # the random state of dropout
    return torch.ops.aten._scaled_dot_product_flash_attention_backward(
        *states, None, None, query.shape[2], key.shape[2], 0.0, is_causal, unused, unused, scale=scaling
    )


def _from_sets(parts: Sequence[torch.Tensor], padding: _Padding | None) -> torch.Tensor:
    """[L, heads, ...] of the sets' [siblings, heads, width, ...]."""
    rows = torch.cat([part.transpose(1, 2).flatten(0, 1) for part in parts])
    return rows if padding is None else rows.index_select(0, padding.place_L)


def _attend_masked(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    tree: PrefixTree,
    *,
    scaling: float | None,
    dropout: float,
    max_scores: int = _MAX_SCORES,
) -> torch.Tensor:
    """Return the same for devices and dtypes without a flash kernel, and with dropout: under one mask over
    the row. Of more than `max_scores` scores the queries are computed in parts, each of them again in the
    backward pass: torch's plain kernel keeps all scores."""

    def attend(part: slice) -> torch.Tensor:
        return scaled_dot_product_attention(
            query[:, :, part],
            key,
            value,
            attn_mask=mask[part],
            scale=scaling,
            dropout_p=dropout,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    mask, tokens = tree.mask(query.device), query.shape[2]
    step = max(1, max_scores // (query.shape[1] * tokens))
    if step >= tokens:
        return attend(slice(None)).transpose(1, 2)
    parts = [checkpoint(attend, slice(i, i + step), use_reentrant=False) for i in range(0, tokens, step)]
    return torch.cat(parts, dim=2).transpose(1, 2)


def _by_set(
    states: torch.Tensor, tree: PrefixTree, padding: _Padding | None, *, empty: float | None = None
) -> list[torch.Tensor]:
    """Return, for each set, [siblings, heads, width, head_dim] of [1, heads, L, head_dim]; with `empty`, that
    is what stands at the places without a token."""
    rows = states[0].transpose(0, 1)
    if padding is not None:
        rows = rows.index_select(0, padding.token_P)
        if empty is not None:
            rows.index_fill_(0, padding.empty, empty)
    parts = rows.split([s.size for s in tree.sets])
    return [
        part.unflatten(0, (len(siblings.lengths), siblings.width)).transpose(1, 2)
        for part, siblings in zip(parts, tree.sets, strict=True)
    ]


def _padding(sets: Sequence[Siblings], device: torch.device) -> _Padding | None:
    token_P: list[int] = []
    place_L: list[int] = []
    empty: list[int] = []
    for siblings in sets:
        for length in siblings.lengths:
            start, place, missing = len(place_L), len(token_P), siblings.width - length
            place_L += range(place, place + length)
            empty += range(place + length, place + siblings.width)
            token_P += (*range(start, start + length), *[start] * missing)
    if not empty:
        return None
    return _Padding(*(torch.tensor(indices, device=device) for indices in (token_P, place_L, empty)))


NAME = "mcpagent"
_REPLACED = ("sdpa", "flash_attention_2", "flash_attention_3")


def use_own_attention(model: Any) -> None:
    """Replace `sdpa`, and the package flash-attn, by an attention that also knows packed trees and the single
    queries of sampling: trees run on torch's own flash kernel, and what else the model asks for is computed
    by sdpa. Models with another implementation stay as they are."""
    if model.config.get_text_config()._attn_implementation in _REPLACED:
        AttentionInterface.register(NAME, _attend)
        AttentionMaskInterface.register(NAME, sdpa_mask)
        model.set_attn_implementation(NAME)


def _attend(
    module: Any,
    query: torch.Tensor,  # [n, heads, q, head_dim]
    key: torch.Tensor,  # [n, key_value_heads, kv, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # additive [n, 1, q, kv], or what `sdpa_mask` makes
    dropout: float = 0.0,
    scaling: float | None = None,
    tree: PrefixTree | None = None,
    trunk: Trunk | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    if tree is not None:
        before = None if trunk is None else trunk.before(module.layer_idx, key, value)
        return attend_tree(query, key, value, tree, scaling=scaling, dropout=dropout, trunk=before), None
    is_sampling = query.shape[2] == 1 and not dropout
    if (
        is_sampling
        and scaling is not None
        and attention_mask is not None
        and attention_mask.is_floating_point()
    ):
        return _attend_once(query, key, value, attention_mask, scaling), None
    return sdpa_attention_forward(
        module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
    )


def _attend_once(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, mask: torch.Tensor, scaling: float
) -> torch.Tensor:
    """One query a row. The fused kernel of torch works in blocks of queries; for one, three plain products
    are about twice as fast on a CPU, and on any device grouped-query heads need no repeated keys: with this
    mask transformers copies the whole cache for them in each layer."""
    n, heads, _, head_dim = query.shape
    # The query heads that share a key-value head are its queries: [n, key_value_heads, group, head_dim].
    grouped = query.view(n, key.shape[1], -1, head_dim)
    weights = torch.matmul(grouped, key.transpose(2, 3)) * scaling + mask
    weights = weights.softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(n, 1, heads, -1)
