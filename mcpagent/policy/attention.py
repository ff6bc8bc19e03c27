"""Whether a model can be sampled with the slot cache."""

from __future__ import annotations

from typing import Any

from mcpagent.errors import UserError
from mcpagent.models.attention import NAME, use_own_attention


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
    if implementation not in ("sdpa", "eager", NAME):
        raise UserError(
            f"the hf backend cannot sample with attn_implementation {implementation}",
            where="model.attn_implementation",
            remedy="set model.attn_implementation to sdpa",
        )
    use_own_attention(model)
