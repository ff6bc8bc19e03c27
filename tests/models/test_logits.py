"""What a model does to its logits after the output head is done here too, or the model is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import (
    CohereConfig,
    FalconH1Config,
    Gemma2Config,
    Gemma2ForCausalLM,
    Gemma3Config,
    Gemma3TextConfig,
    GraniteConfig,
    HyperCLOVAXConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MptConfig,
    RecurrentGemmaConfig,
)

from mcpagent.errors import UserError
from mcpagent.models.logits import logit_transform, output_head, refuse_other_logits
from tests.models.families import FAMILIES, tiny

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
CAPPED_GEMMA_3 = Gemma3Config(text_config=Gemma3TextConfig(final_logit_softcapping=20.0))


@pytest.mark.parametrize(
    ("config", "says"),
    [
        (Gemma2Config(), "softly capped at 30"),
        (CAPPED_GEMMA_3, "softly capped at 20"),  # the setting is its text model's
        (RecurrentGemmaConfig(), "softly capped at 30"),
        (CohereConfig(), "times 0.0625"),
        (GraniteConfig(logits_scaling=8.0), "times 0.125"),
        (HyperCLOVAXConfig(logits_scaling=8.0), "times 8"),
        (FalconH1Config(lm_head_multiplier=0.5), "times 0.5"),
    ],
)
def test_a_configuration_tells_what_it_does_to_logits(config: Any, says: str) -> None:
    assert str(logit_transform(config)) == says


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(),
        GraniteConfig(),
        CohereConfig(logit_scale=1.0),
        MptConfig(logit_scale="inv_sqrt_d_model"),
    ],
)
def test_a_neutral_or_unused_value_is_no_transform(config: Any) -> None:
    assert logit_transform(config) is None


def test_without_a_transform_the_head_itself_is_used() -> None:
    model = LlamaForCausalLM(LlamaConfig(**TINY))
    assert output_head(model) is model.get_output_embeddings()


@pytest.mark.parametrize("family", FAMILIES)
def test_logits_of_hidden_states_are_those_of_the_model(family: str) -> None:
    model = tiny(family)
    refuse_other_logits(model, name=family)
    ids = torch.arange(3, 23)[None]
    with torch.no_grad():
        own = model(input_ids=ids, use_cache=False).logits
        states = model.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        ours, alone = output_head(model)(states), model.get_output_embeddings()(states)
    assert torch.allclose(ours, own, atol=1e-5)
    assert (family == "Mpt") == torch.allclose(alone, own, atol=0.05)


class Scaled(LlamaForCausalLM):
    """Code of the hub's own, which no setting tells of."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * 0.9
        return output


class Uncapped(Gemma2ForCausalLM):
    """Code of the hub's own, which does not do what a setting says."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        cap = self.config.final_logit_softcapping
        output.logits = torch.atanh(output.logits / cap) * cap
        return output


class Padded(LlamaForCausalLM):
    """Inkling's habit: tokens that only fill up its vocabulary have no logits."""

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits[..., :-4]
        return output


class Broken(LlamaForCausalLM):
    def forward(self, *args: Any, **kwargs: Any) -> Any:
        output = super().forward(*args, **kwargs)
        output.logits = output.logits * torch.nan
        return output


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_of", "says"),
    [
        (lambda: Scaled(LlamaConfig(**TINY)), "away from those that its configuration tells"),
        (
            lambda: Uncapped(Gemma2Config(**TINY, initializer_range=0.5, final_logit_softcapping=5.0)),
            "away from those that its configuration tells",
        ),
        (lambda: Padded(LlamaConfig(**TINY)), "60 logits of the 64 of its head"),
        (lambda: Broken(LlamaConfig(**TINY)), "nan away"),
    ],
)
def test_a_model_is_judged_by_what_it_computes(
    model_of: Callable[[], Any], says: str, dtype: torch.dtype
) -> None:
    torch.manual_seed(0)
    refuse_other_logits(LlamaForCausalLM(LlamaConfig(**TINY)).to(dtype), name="plain")
    refuse_other_logits(tiny("Gemma2").to(dtype), name="capped")
    with pytest.raises(UserError, match=says) as caught:
        refuse_other_logits(model_of().to(dtype), name="odd")
    assert caught.value.remedy
