"""The reference of the KL if it is other values of the weights that are trained."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import nn

from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Wrapping


class ShadowReference:
    """Shadows of trained parameters (adapters, or weights), which are put in their place while the reference
    is asked; of sharded ones, the shards. With `every` None they stay what the parameters are now: a frozen
    reference. Otherwise they are at least in float32, and every `every` steps
    shadow = `decay` * shadow + (1 - `decay`) * parameter
    (TR-DPO, arXiv 2404.09656, section 3, with alpha = 1 - decay)."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        *,
        every: int | None,
        decay: float = 1.0,
        wrapping: Wrapping | None = None,
    ) -> None:
        self._parameters = {n: p for n, p in named if p.requires_grad}
        self._wrapping = wrapping or Wrapping(Processes())
        self._every, self._decay = every, decay
        self.shadows = {
            n: self._wrapping.copied(
                p, torch.promote_types(p.dtype, torch.float32) if self.follows else p.dtype
            )
            for n, p in self._parameters.items()
        }

    @property
    def follows(self) -> bool:
        """Return True if it moves with the policy."""
        return self._every is not None

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Step `step` (1-based) is over."""
        if self._every is not None and step % self._every == 0:
            for name, parameter in self._parameters.items():
                shadow = self._wrapping.local(self.shadows[name])
                shadow.lerp_(self._wrapping.local(parameter).to(shadow.dtype), 1.0 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model is the reference inside; of whole weights, only those in half precision are copied."""
        if self._wrapping.is_sharded:
            with self._in_shards():
                yield
            return
        policy = {name: parameter.data for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            parameter.data = self.shadows[name].to(parameter.dtype)
        try:
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = policy[name]

    @contextmanager
    def _in_shards(self) -> Iterator[None]:
        """Exchange what is in the shards: who sharded them keeps pointers of its own to them. What was
        gathered before is of the other weights."""
        local = self._wrapping.local
        policy = {name: local(parameter).clone() for name, parameter in self._parameters.items()}
        self._wrapping.settle()
        with torch.no_grad():
            for name, parameter in self._parameters.items():
                local(parameter).copy_(local(self.shadows[name]))
        try:
            yield
        finally:
            self._wrapping.settle()
            with torch.no_grad():
                for name, parameter in self._parameters.items():
                    local(parameter).copy_(policy[name])
