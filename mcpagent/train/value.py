"""A value for the state before each turn: a linear head on the policy's own hidden states."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from statistics import pvariance
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mcpagent.models.load import causal_lm
from mcpagent.train.samples import TrainSample

VALUE_HEAD = "value_head"  # prefix of its parameters' names
_FILE = "value_head.safetensors"


def new_value_head(model: Any) -> nn.Linear:
    """Everything is worth 0 at first, so that nothing is drawn. In float32, whatever the model is."""
    width = causal_lm(model).config.get_text_config().hidden_size
    device = next(model.parameters()).device
    head = nn.Linear(width, 1, device=device, dtype=torch.float32)
    nn.init.zeros_(head.weight)
    nn.init.zeros_(head.bias)
    return head


def named_parameters(head: nn.Linear | None) -> list[tuple[str, nn.Parameter]]:
    """By the names that they have in a checkpoint."""
    return [(f"{VALUE_HEAD}.{n}", p) for n, p in head.named_parameters()] if head is not None else []


def save_value_head(head: nn.Linear, folder: Path) -> None:
    """Into a folder of trainer state: the head is no part of the model that is exported."""
    save_file({n: p.detach().cpu().contiguous() for n, p in head.named_parameters()}, folder / _FILE)


def load_value_head(head: nn.Linear, folder: Path) -> None:
    """Put back what `save_value_head` wrote."""
    head.load_state_dict(load_file(folder / _FILE))


def turn_starts(samples: Sequence[TrainSample]) -> list[int]:
    """Where each turn's first token is among the N loss-bearing tokens of the samples, in their order."""
    starts: list[int] = []
    before = 0
    for sample in samples:
        for length in sample.turn_tokens_K:
            starts.append(before)
            before += length
    return starts


def value_loss(
    values_K: torch.Tensor, *, old_values_K: torch.Tensor, returns_K: torch.Tensor, clip: float | None
) -> torch.Tensor:
    """Half the squared error [K]; with `clip`, the larger one of the value and of the value held within
    `clip` of the old one (Schulman's PPO code; Engstrom et al., arXiv 2005.12729)."""
    error = (values_K - returns_K).square()
    if clip is not None:
        held = old_values_K + (values_K - old_values_K).clamp(-clip, clip)
        error = torch.maximum(error, (held - returns_K).square())
    return 0.5 * error


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float | None:
    """The share of the targets' variance that the values account for: 1 is all of it, 0 no more than their
    mean does. None where the targets do not vary."""
    if len(targets) < 2 or not (total := pvariance(targets)):
        return None
    return 1.0 - pvariance([t - v for v, t in zip(values, targets, strict=True)]) / total
