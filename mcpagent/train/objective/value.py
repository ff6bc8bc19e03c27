"""A value for the state before each turn: a small head on the policy's own hidden states."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from itertools import accumulate
from statistics import pvariance
from typing import Any

import torch
from torch import nn

from mcpagent.models.adapters import causal_lm
from mcpagent.train.batch.samples import TrainSample

VALUE_HEAD = "value_head"  # prefix of its parameters' names
VALUE_CLIP = 0.2  # how far a value may move from the one before the update
_UNITS = 128
_LEAST_VARIANCE = (
    1e-4  # of a component, as a share of the mean variance: an almost constant one is not blown up
)


class ValueHead(nn.Module):
    """Hidden states [K, width] -> values [K], in `dtype`: float32, or float64 with a model in float64.

    Two layers on standardised states. Last hidden states share a large mean and vary along a few directions
    that say what the next token is: gradient descent on them as they are does not find the rest.
    Every value is 0 at first, since units come in pairs of equal inner and opposite outer weights (Zhang et
    al., arXiv 1905.07777). An outer layer of zeros would give that too, but the inner layer would then have
    no gradient in the first step, and in the second one as small as AdamW's epsilon: it would learn rounding.
    """

    mean: torch.Tensor
    scale: torch.Tensor

    def __init__(
        self, width: int, *, device: torch.device | None = None, dtype: torch.dtype = torch.float32
    ) -> None:
        super().__init__()
        self.inner = nn.Linear(width, _UNITS, device=device, dtype=dtype)
        self.outer = nn.Linear(_UNITS, 1, device=device, dtype=dtype)
        half = _UNITS // 2
        with torch.no_grad():
            self.inner.weight[half:] = self.inner.weight[:half]
            self.inner.bias[half:] = self.inner.bias[:half]
            self.outer.weight[:, half:] = -self.outer.weight[:, :half]
        nn.init.zeros_(self.outer.bias)
        # Buffers, so that a checkpoint has them. A scale of 0 says that no state was measured yet.
        self.register_buffer("mean", torch.zeros(width, device=device, dtype=dtype))
        self.register_buffer("scale", torch.zeros(width, device=device, dtype=dtype))

    def forward(self, states_K: torch.Tensor) -> torch.Tensor:
        """Hidden states [K, width] to values [K]."""
        standard = (states_K.to(self.mean.dtype) - self.mean) * self.scale
        units: torch.Tensor = nn.functional.gelu(self.inner(standard)) * self.outer.weight
        half = units.shape[-1] // 2
        # Pair by pair, so that opposite ones are 0 in whatever order a kernel adds.
        return (units[:, :half] + units[:, half:]).sum(-1) + self.outer.bias

    @contextmanager
    def measuring(self, add_up: Callable[[Sequence[float]], Sequence[float]]) -> Generator[None, None, None]:
        """The first states that are seen, in here, are those by whose mean and spread all are standardised:
        later ones would move the values that were learned. `add_up` adds the sums of all processes."""
        if self.scale.any():
            yield
            return
        seen = [torch.zeros(0, len(self.mean), device=self.mean.device)]
        hook = self.register_forward_pre_hook(lambda _, states: seen.append(states[0].detach()))
        try:
            yield
        finally:
            hook.remove()
        states_K = torch.cat([states.cpu().double() for states in seen])
        both = torch.stack([states_K.sum(0), states_K.square().sum(0)]).flatten()
        sums = [float(value) for value in both]
        count, *added = add_up([float(len(states_K)), *sums])
        first, second = torch.tensor(added, dtype=torch.float64).view(2, -1) / max(count, 1.0)
        variance = (second - first.square()).clamp(min=0.0)
        if variance.any():
            self.mean.copy_(first)
            self.scale.copy_((variance + _LEAST_VARIANCE * variance.mean()).rsqrt())


def new_value_head(model: Any) -> ValueHead:
    """Return a head for the hidden states of `model`, on its device and at least in float32."""
    inner = causal_lm(model)
    return ValueHead(
        inner.config.get_text_config().hidden_size,
        device=next(model.parameters()).device,
        dtype=torch.promote_types(inner.dtype, torch.float32),
    )


def named_parameters(head: ValueHead | None) -> list[tuple[str, nn.Parameter]]:
    """Return the head's parameters by their names in a checkpoint."""
    return [(f"{VALUE_HEAD}.{n}", p) for n, p in head.named_parameters()] if head is not None else []


def turn_starts(samples: Sequence[TrainSample]) -> list[int]:
    """Return the place of each turn's first token among the N loss-bearing tokens of the samples."""
    lengths = [length for sample in samples for length in sample.turn_tokens_K]
    return list(accumulate(lengths, initial=0))[:-1]


def value_loss(
    values_K: torch.Tensor, *, old_values_K: torch.Tensor, returns_K: torch.Tensor
) -> torch.Tensor:
    """Half the squared error [K]: the larger one of the value and of the value held within `VALUE_CLIP` of
    the old one (Schulman's PPO code; Engstrom et al., arXiv 2005.12729)."""
    held = old_values_K + (values_K - old_values_K).clamp(-VALUE_CLIP, VALUE_CLIP)
    return 0.5 * torch.maximum((values_K - returns_K).square(), (held - returns_K).square())


def explained_variance(values: Sequence[float], targets: Sequence[float]) -> float | None:
    """Return the share of the targets' variance that the values account for: 1 is all of it, 0 no more than
    their mean does. None if the targets do not vary."""
    if len(targets) < 2 or not (total := pvariance(targets)):
        return None
    return 1.0 - pvariance([t - v for v, t in zip(values, targets, strict=True)]) / total
