"""Adapters on small models, as the tests of many folders want them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

from mcpagent.models.adapters import LoraShape, attach_lora


def adapted(
    model: Any,
    *,
    r: int = 4,
    dropout: float = 0.0,
    targets: str | Sequence[str] = "all-linear",
    seed: int = 0,
) -> Any:
    """The model with new adapters, which change nothing: their second half is zero."""
    return attach_lora(model, LoraShape(r=r, alpha=2 * r, dropout=dropout, target_modules=targets), seed=seed)


@torch.no_grad()
def move_adapters(model: Any, *, std: float = 1.0) -> None:
    """Give the second half of the adapters random values, so that they change what the model says."""
    generator = torch.Generator().manual_seed(0)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))
