"""Models whose logits are more than the output head of the last hidden state: what scores tokens here takes
the head alone, so that such a model would be trained on other probabilities than its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from mcpagent.errors import UserError
from mcpagent.models.load import causal_lm

# What configurations of transformers call it, and the value that changes nothing: Gemma, NanoChat and Muse;
# Cohere and MPT; Granite and HyperCLOVA X; Falcon H1; Muse.
_NEUTRAL: Mapping[str, float | None] = {
    "final_logit_softcapping": None,
    "logits_soft_cap": None,
    "logit_scale": 1.0,
    "logits_scaling": 1.0,
    "lm_head_multiplier": 1.0,
    "output_multiplier": 1.0,
}
_PROBE_TOKENS = 8


def logit_transforms(config: Any) -> list[str]:
    """The settings of a transformers configuration that change logits after the head, as `name=value`."""
    text = config.get_text_config()
    return [
        f"{name}={value}"
        for name, neutral in _NEUTRAL.items()
        if (value := getattr(text, name, None)) is not None and value != neutral
    ]


@torch.no_grad()
def refuse_logit_transforms(model: Any, *, name: str) -> None:
    """Raises UserError where the configuration names such a transform, or the model's logits on a few tokens
    are not those of its head: an architecture may do what no setting says."""
    found = logit_transforms(model.config)
    if not found:
        inner = causal_lm(model)
        was_training = inner.training
        inner.eval()
        ids = torch.arange(1, 1 + _PROBE_TOKENS, device=next(inner.parameters()).device)[None]
        own = inner(input_ids=ids, use_cache=False).logits.float()
        states = inner.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        head = inner.get_output_embeddings()(states).float()
        inner.train(was_training)
        difference = float((own - head).abs().max()) if own.shape == head.shape else float("inf")
        if difference > 8 * torch.finfo(model.dtype).eps * float(head.abs().max()):
            found = [f"logits up to {difference:.2g} away from those of its head"]
    if found:
        raise logits_refusal(name, found)


def logits_refusal(name: str, found: list[str]) -> UserError:
    return UserError(
        f"{name} changes its logits after the output head ({', '.join(found)}), which scoring and sampling "
        "here leave out, so that it would be trained on probabilities that are not its own",
        where="model.name",
        remedy="use a model without such a transform, such as those of the Qwen3 or Llama families",
    )
