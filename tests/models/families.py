"""Tiny random models of every family of transformers that does something to its logits after the head."""

from __future__ import annotations

from typing import Any

import torch
import transformers

VOCABULARY = 48
SHAPE: dict[str, Any] = {
    "vocab_size": VOCABULARY,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 256,
    "initializer_range": 0.3,  # distributions far from uniform
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
_EXPERTS = {"num_local_experts": 2, "num_experts_per_tok": 1}
_LATENT = {"q_lora_rank": 8, "kv_lora_rank": 8, "qk_nope_head_dim": 4, "qk_rope_head_dim": 4, "v_head_dim": 4}
_CAP = {"final_logit_softcapping": 2.0}
_MAMBA = {"mamba_n_heads": 4, "mamba_d_head": 8, "mamba_n_groups": 1, "mamba_d_state": 8}
# Settings far enough from their neutral values that leaving them out is seen. Prefixes of the names of
# the configuration and of the model differ in some.
_FAMILIES: dict[str, tuple[str, dict[str, Any]]] = {
    "Gemma2": ("Gemma2", {**_CAP, "sliding_window": 8}),
    "Gemma3": ("Gemma3Text", {**_CAP, "sliding_window": 8}),
    "Gemma4": (
        "Gemma4Text",
        {
            **_CAP,
            "layer_types": ["sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": VOCABULARY,
            "hidden_size_per_layer_input": 4,
        },
    ),
    "VaultGemma": ("VaultGemma", _CAP),
    "RecurrentGemma": ("RecurrentGemma", {"logits_soft_cap": 0.5, "lru_width": 16}),
    "NanoChat": ("NanoChat", _CAP),
    # Its cache has heads of multiples of 64.
    "xLSTM": (
        "xLSTM",
        {
            "output_logit_soft_cap": 2.0,
            "num_heads": 1,
            "num_blocks": 2,
            "hidden_size": 64,
            "qk_dim_factor": 1.0,
        },
    ),
    "Cohere": ("Cohere", {"logit_scale": 0.3}),
    "Cohere2": ("Cohere2", {"logit_scale": 0.3}),
    "Cohere2Moe": ("Cohere2Moe", {"logit_scale": 0.3}),
    "Granite": ("Granite", {"logits_scaling": 3.0}),
    "GraniteSWA": ("GraniteSWA", {"logits_scaling": 3.0}),
    "GraniteMoe": ("GraniteMoe", {"logits_scaling": 3.0, **_EXPERTS}),
    "GraniteMoeShared": ("GraniteMoeShared", {"logits_scaling": 3.0, **_EXPERTS}),
    "GraniteMoeHybrid": (
        "GraniteMoeHybrid",
        {"logits_scaling": 3.0, **_EXPERTS, **_MAMBA, "layer_types": ["mamba", "attention"]},
    ),
    "HyperCLOVAX": ("HyperCLOVAX", {"logits_scaling": 0.3}),
    "MiniCPM3": ("MiniCPM3", {"dim_model_base": 4, "num_key_value_heads": 4, **_LATENT}),
    "FalconH1": ("FalconH1", {"lm_head_multiplier": 0.3, "mamba_d_ssm": 32, **_MAMBA}),
    "Mpt": ("Mpt", {"logit_scale": 0.3, "d_model": 16, "n_heads": 4, "n_layers": 2}),
}
FAMILIES = tuple(_FAMILIES)


def tiny(family: str, *, seed: int = 0) -> Any:
    config, settings = _FAMILIES[family]
    torch.manual_seed(seed)
    made = getattr(transformers, f"{config}Config")(**{**SHAPE, **settings})
    return getattr(transformers, f"{family}ForCausalLM")(made).eval()
