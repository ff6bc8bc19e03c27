"""Models that change their logits after the output head are refused, by setting or by what they compute."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    CohereForCausalLM,
    FalconH1Config,
    Gemma2Config,
    Gemma2ForCausalLM,
    GraniteConfig,
    LlamaConfig,
    LlamaForCausalLM,
    NanoChatConfig,
    RecurrentGemmaConfig,
)

from mcpagent.errors import UserError
from mcpagent.models.logits import logit_transforms, refuse_logit_transforms

TINY: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "intermediate_size": 32,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


@pytest.mark.parametrize(
    ("config", "setting"),
    [
        (Gemma2Config(), "final_logit_softcapping=30.0"),
        (NanoChatConfig(), "final_logit_softcapping=15.0"),
        (RecurrentGemmaConfig(), "logits_soft_cap=30.0"),
        (CohereConfig(), "logit_scale=0.0625"),
        (GraniteConfig(logits_scaling=8.0), "logits_scaling=8.0"),
        (FalconH1Config(lm_head_multiplier=0.5), "lm_head_multiplier=0.5"),
    ],
)
def test_a_configuration_names_what_it_does_to_logits(config: Any, setting: str) -> None:
    assert logit_transforms(config) == [setting]


@pytest.mark.parametrize("config", [LlamaConfig(), GraniteConfig(), CohereConfig(logit_scale=1.0)])
def test_a_neutral_value_is_no_transform(config: Any) -> None:
    assert logit_transforms(config) == []


@pytest.mark.parametrize(
    "model_of",
    [lambda: Gemma2ForCausalLM(Gemma2Config(**TINY)), lambda: CohereForCausalLM(CohereConfig(**TINY))],
)
def test_such_a_model_is_refused(model_of: Any) -> None:
    with pytest.raises(UserError, match="changes its logits after the output head") as caught:
        refuse_logit_transforms(model_of(), name="odd")
    assert caught.value.remedy


class Scaled(LlamaForCausalLM):
    """Code of the hub's own, which no setting tells of."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.9
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_model_is_judged_by_what_it_computes(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    refuse_logit_transforms(LlamaForCausalLM(LlamaConfig(**TINY)).to(dtype), name="plain")
    with pytest.raises(UserError, match="away from those of its head"):
        refuse_logit_transforms(Scaled(LlamaConfig(**TINY)).to(dtype), name="scaled")
