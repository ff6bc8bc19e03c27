"""The attention that mcpagent gives to models which use torch's fused kernel."""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mcpagent.models.tree_attention import Tree, attend_tree

NAME = "mcpagent"


def use_own_attention(model: Any) -> None:
    """Replace `sdpa` by an attention that also knows packed trees and the single queries of sampling.
    Anything else is computed by sdpa as before. Models with another implementation stay as they are."""
    if model.config.get_text_config()._attn_implementation == "sdpa":
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
    tree: Tree | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    if tree is not None:
        return attend_tree(query, key, value, tree, scaling=scaling, dropout=dropout), None
    is_sampling = query.shape[2] == 1 and query.device.type == "cpu" and not dropout
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
    """One query a row. torch's fused kernel works in blocks of queries; for one, three plain products are
    about twice as fast on a CPU, and grouped-query heads need no repeated keys."""
    n, heads, _, head_dim = query.shape
    # The query heads that share a key-value head are its queries: [n, key_value_heads, group, head_dim].
    grouped = query.view(n, key.shape[1], -1, head_dim)
    weights = torch.matmul(grouped, key.transpose(2, 3)) * scaling + mask
    weights = weights.softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(n, 1, heads, -1)
