"""In what precision the trainer computes: under autocast, and in float16 with the loss scaled."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import torch

_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FILE = "loss_scale.json"


class Precision:
    """`no` computes in the weights' dtype. `bf16` and `fp16` are autocast: matrix products in that dtype,
    weights and sums as they are. float16 has five bits of exponent, so that small gradients become 0: with
    `fp16` the loss is multiplied by a scale that falls when a gradient overflows and slowly grows otherwise
    (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2)."""

    def __init__(self, name: str = "no", *, device: torch.device | None = None) -> None:
        self._device = (device or torch.device("cpu")).type
        self.dtype = _DTYPES.get(name)
        self._scaler = torch.amp.GradScaler(self._device) if name == "fp16" else None

    def autocast(self) -> AbstractContextManager[object]:
        """Around a forward pass."""
        return nullcontext() if self.dtype is None else torch.autocast(self._device, dtype=self.dtype)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """What to call `backward` on."""
        return loss if self._scaler is None else self._scaler.scale(loss)

    def unscale(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """The gradients are those of the loss again, to be clipped."""
        if self._scaler is not None:
            for optimizer in optimizers:
                self._scaler.unscale_(optimizer)

    def step(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """One step of each after `unscale`; False where a gradient overflowed, and then no weight moved."""
        if self._scaler is None:
            for optimizer in optimizers:
                optimizer.step()
            return True
        before = self._scaler.get_scale()
        for optimizer in optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= before

    def save(self, folder: Path) -> None:
        """Into a folder of trainer state."""
        if self._scaler is not None:
            (folder / _FILE).write_text(json.dumps(self._scaler.state_dict()) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Put back what `save` wrote."""
        if self._scaler is not None:
            self._scaler.load_state_dict(json.loads((folder / _FILE).read_text(encoding="utf-8")))
