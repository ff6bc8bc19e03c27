"""Whether a model can be sampled with the slot cache."""

from __future__ import annotations

from typing import Any

from mcpagent.models.attention import NAME, use_own_attention


def why_no_slots(model: Any) -> str | None:
    """Why the slot cache cannot serve `model`; None where it can, and then its attention is ready for it.

    The cache gives every layer one mask over all earlier positions, which kernels that take no mask, layers
    with a sliding window and recurrent layers would not follow.
    """
    config = model.config.get_text_config()
    kinds = set(getattr(config, "layer_types", None) or ("full_attention",))
    window = getattr(config, "sliding_window", None) if not getattr(config, "layer_types", None) else None
    if kinds != {"full_attention"} or window is not None:
        found = ", ".join(sorted(kinds - {"full_attention"})) or f"a sliding window of {window} tokens"
        return f"{config.model_type} has {found}"
    if model._is_stateful:
        return f"{config.model_type} has recurrent layers"
    if config._attn_implementation not in ("sdpa", "eager", NAME):
        return f"attn_implementation {config._attn_implementation} takes no mask of its own"
    use_own_attention(model)
    return None
