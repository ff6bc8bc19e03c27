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
from tests.models.families import FAMILIES, SHAPE, tiny

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
    model = llama()
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


def llama() -> Any:
    torch.manual_seed(0)
    return LlamaForCausalLM(LlamaConfig(**SHAPE))


def changed(model: Any, change: Callable[[torch.Tensor], torch.Tensor]) -> Any:
    """The model as code of the hub's own, which does to its logits what no setting tells of."""

    def hook(_module: Any, _inputs: Any, output: Any) -> None:
        output.logits = change(output.logits)

    model.register_forward_hook(hook)
    return model


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize(
    ("model_of", "change", "says"),
    [
        (llama, lambda logits: logits * 0.9, "away from those that its configuration tells"),
        # One that does not do what a setting says: the cap of 2 is taken off again.
        (
            lambda: tiny("Gemma2"),
            lambda logits: torch.atanh(logits / 2) * 2,
            "away from those that its configuration tells",
        ),
        # Inkling's habit: tokens that only fill up its vocabulary have no logits.
        (llama, lambda logits: logits[..., :-4], "44 logits of the 48 of its head"),
        (llama, lambda logits: logits * torch.nan, "nan away"),
    ],
)
def test_a_model_is_judged_by_what_it_computes(
    model_of: Callable[[], Any], change: Callable[[torch.Tensor], torch.Tensor], says: str, dtype: torch.dtype
) -> None:
    refuse_other_logits(llama().to(dtype), name="plain")
    refuse_other_logits(tiny("Gemma2").to(dtype), name="capped")
    with pytest.raises(UserError, match=says) as caught:
        refuse_other_logits(changed(model_of().to(dtype), change), name="odd")
    assert caught.value.remedy
