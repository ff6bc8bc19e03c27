"""Kernels other than torch's: which of them can run here, and which a model gets."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from typing import Any

import torch

from mcpagent.models.adapters import causal_lm, has_stacked_experts
from mcpagent.storage.packages import pip_install

_PROBE_TOKENS = 16
# Rotary positions keep nothing for the backward pass, and Liger replaces them for every model of a process.
# Its fused output heads give no entropies, and each loss that they know in a sum of their own; logprobs are
# chunked here instead (`train.batch.scoring`).
_PARTS = {
    "rms_norm": True,
    "swiglu": True,
    "geglu": True,
    "rope": False,
    "cross_entropy": False,
    "fused_linear_cross_entropy": False,
}


@dataclass(frozen=True)
class FusedChoice:
    """Whether norms and feed-forward layers are computed by liger-kernel; `why` is for the user."""

    is_used: bool
    why: str


_FUSED = FusedChoice(True, "norms and feed-forward layers are computed by liger-kernel")


def choose_fused(*, device: torch.device, kind: str, is_here: bool = True) -> FusedChoice:
    """Liger-kernel if the device is CUDA, the package is there and knows models of this `kind` (`model_type`
    of transformers). With `is_here` off the device is another machine's, if it is not counted on."""
    why = _why_not(device, kind, is_here=is_here)
    return _FUSED if why is None else FusedChoice(False, why)


def _why_not(device: torch.device, kind: str, *, is_here: bool) -> str | None:
    if device.type != "cuda":
        return f"liger-kernel needs a CUDA GPU, and the device is {device.type}"
    if not is_here:
        return "whether liger-kernel is installed there is not known"
    if importlib.util.find_spec("liger_kernel") is None:
        return (
            "liger-kernel is not installed: with it an update keeps about a quarter less "
            f"({pip_install('mcpagent[fused]')})"
        )
    from liger_kernel.transformers.monkey_patch import (  # pyright: ignore[reportMissingImports]
        MODEL_TYPE_TO_APPLY_LIGER_FN,
    )

    return None if kind in MODEL_TYPE_TO_APPLY_LIGER_FN else f"liger-kernel does not know {kind} models"


def fuse(model: Any, *, is_filled: bool = True) -> FusedChoice:
    """Compute this model's norms and feed-forward layers with liger-kernel, and no other model's. Where it
    then says something else of a few tokens, it is left as it was. `is_filled` is off for a model whose
    weights have no values yet, which says nothing."""
    from transformers.integrations.liger import apply_liger_kernel

    inner = causal_lm(model)
    modules = [sys.modules[cls.__module__] for cls in {type(m) for m in inner.modules()}]
    classes = [(namespace, dict(vars(namespace))) for namespace in modules]
    methods = [(module, dict(vars(module))) for module in inner.modules()]
    before = _probe(inner) if is_filled else None
    # The experts of a mixture are stacked, and adapters next to them are not what Liger's kernel computes.
    is_mixture = has_stacked_experts(inner)
    apply_liger_kernel(inner, _PARTS | ({"swiglu": False, "geglu": False} if is_mixture else {}))
    for namespace, names in classes:
        vars(namespace).update(names)
    if before is None:
        return _FUSED
    apart = float((_probe(inner) - before).abs().max())
    # Not `>`: a difference that is not a number must not pass.
    if apart <= 8 * torch.finfo(inner.dtype).eps * float(before.abs().max()):
        return _FUSED
    for module, names in methods:
        vars(module).clear()
        vars(module).update(names)
    return FusedChoice(False, f"with liger-kernel the model's logits are up to {apart:.2g} away from its own")


@torch.no_grad()
def _probe(model: Any) -> torch.Tensor:
    """Logits of a few tokens."""
    was_training = model.training
    model.eval()
    ids = torch.arange(1, 1 + _PROBE_TOKENS, device=next(model.parameters()).device)[None]
    logits = model(input_ids=ids, use_cache=False).logits.float()
    model.train(was_training)
    return logits
