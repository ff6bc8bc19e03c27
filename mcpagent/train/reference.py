"""The reference that follows the policy: a moving average of what is trained, and of nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mcpagent.errors import RunError

_FILE = "reference.safetensors"


class EmaReference:
    """Shadows of trained parameters (adapters, or weights), which are swapped in while the reference is
    asked. Every `every` steps: shadow = `decay` * shadow + (1 - `decay`) * parameter (TR-DPO,
    arXiv 2404.09656, section 3, with alpha = 1 - decay)."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], *, every: int, decay: float) -> None:
        self._parameters = {n: p for n, p in named if p.requires_grad}
        self._shadows = {n: p.detach().clone() for n, p in self._parameters.items()}
        self._every, self._decay = every, decay

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Step `step` (1-based) is over."""
        if step % self._every == 0:
            for name, parameter in self._parameters.items():
                self._shadows[name].lerp_(parameter, 1.0 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model is the reference inside; nothing is copied."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def save(self, folder: Path) -> None:
        """Into a folder of trainer state."""
        save_file({n: s.cpu().contiguous() for n, s in self._shadows.items()}, folder / _FILE)

    @torch.no_grad()
    def load(self, folder: Path) -> None:
        """Put back what `save` wrote. Raises RunError if it does not fit."""
        saved = load_file(folder / _FILE)
        if saved.keys() != self._shadows.keys():
            raise RunError(
                "the checkpoint's reference does not have the parameters that this run trains",
                where=str(folder),
                remedy="resume with the configuration that the run was started with",
            )
        for name, shadow in self._shadows.items():
            shadow.copy_(saved[name])

    def _swap(self) -> None:
        for name, parameter in self._parameters.items():
            parameter.data, self._shadows[name] = self._shadows[name], parameter.data
