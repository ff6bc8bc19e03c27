"""From the last hidden state of a model to its logits: the output head and, in some families, a scale or a
soft cap after it. Scoring and sampling take both from here; a model that does anything else is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from mcpagent.errors import UserError
from mcpagent.models.adapters import causal_lm, evaluation_mode, model_device

# What configurations of transformers call it.
_CAPS = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_SCALES: Mapping[str, int] = {  # the power of it that logits are multiplied with
    "logit_scale": 1,
    "lm_head_multiplier": 1,
    "output_multiplier": 1,
    "logits_scaling": -1,
    "logits_mup_width_multiplier": -1,
}
_SCALES_OF_FAMILY: Mapping[tuple[str, str], int] = {
    ("hyperclovax", "logits_scaling"): 1,
    ("mpt", "logit_scale"): 0,  # its configuration has it, its code does not
}
_PROBE_TOKENS = 8


@dataclass(frozen=True, kw_only=True)
class LogitTransform:
    """`cap * tanh(scale * logits / cap)`, without a cap `scale * logits`; in float32 at least."""

    scale: float = 1.0
    cap: float | None = None

    def __call__(self, logits: torch.Tensor) -> torch.Tensor:
        """Return the logits [..., vocabulary] as the model itself would give them, at least in float32."""
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        if self.cap is None:
            return logits * self.scale
        return torch.tanh(logits * (self.scale / self.cap)) * self.cap

    def __str__(self) -> str:
        scaled = "" if self.scale == 1.0 else f"times {self.scale:g}"
        capped = "" if self.cap is None else f"softly capped at {self.cap:g}"
        return ", ".join(filter(None, (scaled, capped)))


def logit_transform(config: Any) -> LogitTransform | None:
    """Return what a model of this transformers configuration does to the logits of its head; None if that is
    nothing."""
    text, scale = config.get_text_config(), 1.0
    for name, power in _SCALES.items():
        power = _SCALES_OF_FAMILY.get((text.model_type, name), power)
        value = getattr(text, name, None)
        if power and value is not None:
            scale *= value**power
    cap = next((cap for name in _CAPS if (cap := getattr(text, name, None)) is not None), None)
    return None if scale == 1.0 and cap is None else LogitTransform(scale=scale, cap=cap)


def output_head(model: Any, *, with_hooks: bool = True) -> Callable[[torch.Tensor], torch.Tensor]:
    """Hidden states [..., hidden] -> the logits [..., V] of a causal LM of transformers; the head's module
    itself if nothing comes after it. Without hooks nothing gathers or releases its weights in a call."""
    module, transform = model.get_output_embeddings(), logit_transform(model.config)
    head = module if with_hooks else module.forward
    return head if transform is None else lambda hidden: transform(head(hidden))


@torch.no_grad()
def refuse_other_logits(model: Any, *, name: str, as_root: Callable[..., Any] | None = None) -> None:
    """Raise UserError if the model's logits on a few tokens are not those of `output_head`: an
    architecture may do what no setting says. If weights are in shards, `as_root` calls a function as a
    pass of the module that gathers them, and all processes call this."""
    inner = causal_lm(model)
    ids = torch.arange(1, 1 + _PROBE_TOKENS, device=model_device(inner))[None]

    def both() -> tuple[torch.Tensor, torch.Tensor]:
        states = inner.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        return inner(input_ids=ids, use_cache=False).logits.float(), output_head(inner)(states).float()

    with evaluation_mode(inner):
        theirs, ours = both() if as_root is None else as_root(both)
    if theirs.shape != ours.shape:
        raise _refusal(name, f"{theirs.shape[-1]} logits of the {ours.shape[-1]} of its head")
    difference = float((theirs - ours).abs().max())
    # Not `>`: a difference that is not a number must not pass.
    if not difference <= 8 * torch.finfo(model.dtype).eps * float(ours.abs().max()):
        raise _refusal(name, f"logits up to {difference:.2g} away from those that its configuration tells")


@torch.no_grad()
def continuation_logprobs(
    model: Any, context: Sequence[int], continuation: Sequence[int], *, temperature: float = 1.0
) -> list[float]:
    """Return the logprobs (nats) of the tokens of `continuation` after `context`; logits are made of these
    alone. Temperature 0 counts as 1, as in sampling."""
    inner = causal_lm(model)
    ids = torch.tensor([[*context, *continuation]], device=inner.device)
    with evaluation_mode(inner):
        states = inner.get_decoder()(input_ids=ids, use_cache=False).last_hidden_state
        logits = output_head(inner)(states[0, len(context) - 1 : -1])
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) / (temperature or 1.0)
    logprobs = torch.log_softmax(logits, dim=-1)
    return logprobs.gather(-1, ids[0, len(context) :, None])[:, 0].tolist()


def _refusal(name: str, difference: str) -> UserError:
    return UserError(
        f"{name} changes its logits after the output head in a way of its own ({difference}), which scoring "
        "and sampling here would leave out: it would be trained on probabilities that are not its own",
        where="model.name",
        remedy="use a model whose logits are its head's, scaled or soft-capped by a setting of transformers, "
        "such as those of the Qwen3, Llama, Gemma or Granite families",
    )
