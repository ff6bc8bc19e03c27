"""What learns: the model with its optimisers, on `accelerate.Accelerator`, saved and restored exactly."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import Accelerator

from mcpagent.core.records import JsonObject
from mcpagent.models.load import save_model
from mcpagent.storage.checkpoints import sealed_dir
from mcpagent.train.batching import padded_batches
from mcpagent.train.checkpoint import load_trainer_state, load_weights, save_trainer_state
from mcpagent.train.optim import Schedule
from mcpagent.train.packing import packed_batches
from mcpagent.train.samples import TrainSample
from mcpagent.train.scoring import Batch, TokenScorer, why_not_packed


class Learner:
    """One process of the training run. `scorer` is what accelerate wrapped; `model` the model inside it."""

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        optimizers: list[torch.optim.Optimizer],
        schedule: Schedule,
        gradient_clip: float | None,
        accelerator: Accelerator,
        reference: Any = None,
    ) -> None:
        self.model, self.tokenizer, self.accelerator = model, tokenizer, accelerator
        self._optimizers, self._schedule, self._gradient_clip = optimizers, schedule, gradient_clip
        self._reference = TokenScorer(reference) if reference is not None else None
        self.why_not_packed = why_not_packed(model)
        if reference is not None and self.why_not_packed is None:
            self.why_not_packed = why_not_packed(reference)
        self.scorer, *self._prepared = accelerator.prepare(TokenScorer(model), *optimizers)

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def batches(self, samples: Sequence[TrainSample], *, max_tokens: int) -> Iterator[Batch]:
        """Micro-batches that cover every sample once: packed where the model allows it, else padded."""
        make = packed_batches if self.why_not_packed is None else padded_batches
        return iter(make(samples, max_tokens=max_tokens, device=self.device))

    def score(
        self, batch: Batch, *, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [N] of the batch's loss-bearing tokens, with gradient."""
        return self.scorer(batch, temperature, entropy_gradient=entropy_gradient)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, *, temperature: float = 1.0) -> torch.Tensor:
        """Logprobs [N] under the frozen reference: a second model, or the base with the adapters off."""
        if self._reference is not None:
            return self._reference(batch, temperature)[0]
        adapters_off = (
            self.model.disable_adapter() if hasattr(self.model, "disable_adapter") else nullcontext()
        )
        was_training = self.model.training
        self.model.eval()
        with adapters_off:
            logprobs, _ = TokenScorer(self.model)(batch, temperature)
        self.model.train(was_training)
        return logprobs

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""
        self.accelerator.backward(loss)

    def step(self, number: int) -> tuple[float, float]:
        """Clip, step, clear. Returns the gradient norm before clipping and the learning-rate factor."""
        parameters = [p for p in self.model.parameters() if p.requires_grad]
        limit = self._gradient_clip if self._gradient_clip is not None else float("inf")
        norm = self.accelerator.clip_grad_norm_(parameters, limit)
        factor = self._schedule.set(number)
        for optimizer in self._prepared:
            optimizer.step()
            optimizer.zero_grad()
        return float(norm if norm is not None else 0.0), factor

    def save(self, folder: Path, *, state: JsonObject) -> None:
        """A complete checkpoint, or none: it gets its name only when everything is written."""
        with sealed_dir(folder) as draft:
            save_model(self.model, self.tokenizer, draft)
            save_trainer_state(
                draft, named=list(self.model.named_parameters()), optimizers=self._optimizers, state=state
            )

    def restore(self, folder: Path) -> JsonObject:
        """Back to the moment of `save`; returns its state."""
        load_weights(self.model, folder)
        return load_trainer_state(
            folder, named=list(self.model.named_parameters()), optimizers=self._optimizers
        )
