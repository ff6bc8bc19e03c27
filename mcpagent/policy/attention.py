"""Attention of sampling on a CPU.

torch's fused kernel works in blocks of queries; a step of sampling has one query a row, for which three plain
products are about twice as fast (and grouped-query heads need no repeated keys). Longer inputs go to the
fused kernel as before, so a model that is also trained is trained as before.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from mcpagent.errors import UserError

_NAME = "mcpagent_cpu"


def prepare_attention(model: Any) -> None:
    """Let `model` attend as the slot cache needs it. Raises UserError where it cannot.

    The cache gives every layer one mask over all earlier positions, which kernels that take no mask, layers
    with a sliding window and recurrent layers would not follow.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    window = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    if kinds != {"full_attention"} or window is not None:
        found = ", ".join(sorted(kinds - {"full_attention"})) or f"a sliding window of {window} tokens"
        raise UserError(
            f"the hf backend samples with full attention only, but {config.model_type} has {found}",
            remedy="use rollout.backend=vllm, or a model whose layers all attend to the whole context",
        )
    implementation = config._attn_implementation
    if implementation not in ("sdpa", "eager", _NAME):
        raise UserError(
            f"the hf backend cannot sample with attn_implementation {implementation}",
            where="model.attn_implementation",
            remedy="set model.attn_implementation to sdpa",
        )
    if implementation == "sdpa" and model.device.type == "cpu":
        AttentionInterface.register(_NAME, _attend)
        AttentionMaskInterface.register(_NAME, sdpa_mask)
        model.set_attn_implementation(_NAME)


def _attend(
    module: Any,
    query: torch.Tensor,  # [n, heads, q, head_dim]
    key: torch.Tensor,  # [n, key_value_heads, kv, head_dim]
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,  # additive [n, 1, q, kv], or what `sdpa_mask` makes
    dropout: float = 0.0,
    scaling: float | None = None,
    **options: Any,
) -> tuple[torch.Tensor, None]:
    if (
        query.shape[2] > 1
        or attention_mask is None
        or not attention_mask.is_floating_point()
        or scaling is None
        or dropout
    ):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **options
        )
    n, heads, _, head_dim = query.shape
    # The query heads that share a key-value head are its queries: [n, key_value_heads, group, head_dim].
    grouped = query.view(n, key.shape[1], -1, head_dim)
    weights = torch.matmul(grouped, key.transpose(2, 3)) * scaling + attention_mask
    weights = weights.softmax(-1, dtype=torch.float32).to(value.dtype)
    return torch.matmul(weights, value).view(n, 1, heads, -1), None
