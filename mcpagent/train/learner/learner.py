"""What learns: the model with its optimisers, in one or many processes, saved and restored exactly."""

from __future__ import annotations

import json
import random
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mcpagent.core.records import JsonObject
from mcpagent.errors import RunError
from mcpagent.models.load import save_model
from mcpagent.storage.checkpoints import STATE_FILE, STATE_FOLDER, sealed_dir, verified
from mcpagent.train.batch.samples import TrainSample, packed_batches, padded_batches
from mcpagent.train.batch.scoring import Batch, TokenScorer, why_not_packed
from mcpagent.train.learner.optim import MasterWeights, Precision, Schedule
from mcpagent.train.learner.processes import Processes
from mcpagent.train.objective.value import ValueHead, load_value_head, named_parameters, save_value_head


def save_trainer_state(
    folder: Path, *, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any], state: JsonObject
) -> None:
    """Write optimiser moments, random state and counters into `folder`/trainer_state."""
    target = folder / STATE_FOLDER
    target.mkdir()
    names = {id(p): n for n, p in named}
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, moments in optimizer.state.items():
            for key, value in moments.items():
                place = f"{number}|{names[id(parameter)]}|{key}"
                if isinstance(value, torch.Tensor):
                    tensors[place] = value.detach().cpu().clone().contiguous()
                else:
                    scalars[place] = value
    save_file(tensors, target / "optimizer.safetensors")
    streams, places = _random_state()
    save_file(streams, target / "rng.safetensors")
    document = {"state": state, "optimizer_scalars": scalars, "rng": places}
    text = json.dumps(document, indent=1, sort_keys=True)
    (folder / STATE_FILE).write_text(text + "\n", encoding="utf-8")


def load_trainer_state(
    folder: Path, *, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any]
) -> JsonObject:
    """Put back what `save_trainer_state` wrote; returns `state`. Raises RunError if it does not fit,
    UserError where the folder is damaged."""
    source = verified(folder) / STATE_FOLDER
    parameters = dict(named)
    document = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    entries: dict[str, Any] = {**document["optimizer_scalars"]}
    entries.update(load_file(source / "optimizer.safetensors"))
    for place, value in entries.items():
        number, name, key = place.split("|")
        if name not in parameters or int(number) >= len(optimizers):
            raise RunError(
                f"the checkpoint has optimiser state for {name}, which this run does not train",
                where=str(folder),
                remedy="resume with the configuration that the run was started with",
            )
        parameter = parameters[name]
        # Step counters stay on the CPU, but for fused optimisers, whose kernels read them.
        is_fused = optimizers[int(number)].defaults.get("fused")
        if isinstance(value, torch.Tensor) and (value.ndim or is_fused):
            value = value.to(parameter.device)
        optimizers[int(number)].state.setdefault(parameter, {})[key] = value
    _set_random_state(load_file(source / "rng.safetensors"), document["rng"])
    return document["state"]


def _random_state() -> tuple[dict[str, torch.Tensor], JsonObject]:
    """The words of every generator, and the numbers beside them."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    streams = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        streams |= {f"cuda:{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    if torch.backends.mps.is_available():
        streams["mps"] = torch.mps.get_rng_state()
    places: JsonObject = {
        "python": [version, gauss],
        "numpy": [
            int(numpy_state["state"]["pos"]),
            int(numpy_state["has_gauss"]),
            float(numpy_state["gauss"]),
        ],
    }
    return streams, places


def _set_random_state(streams: dict[str, torch.Tensor], places: JsonObject) -> None:
    version, gauss = places["python"]
    random.setstate((version, tuple(streams["python"].tolist()), gauss))
    position, has_gauss, numpy_gauss = places["numpy"]
    key = streams["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, position, has_gauss, numpy_gauss))
    torch.set_rng_state(streams["torch"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda:{index}" in streams:
                torch.cuda.set_rng_state(streams[f"cuda:{index}"], index)
    if torch.backends.mps.is_available() and "mps" in streams:
        torch.mps.set_rng_state(streams["mps"])


def load_weights(model: Any, folder: Path) -> None:
    """Weights of a checkpoint into a live model: its adapters, or all of them. Raises UserError where the
    folder is damaged."""
    verified(folder)
    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        return
    files = sorted(folder.glob("model*.safetensors"))
    weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise RunError(
            f"the checkpoint does not fit the model: {len(missing)} weights missing, "
            f"{len(unexpected)} unknown",
            where=str(folder),
        )


_FILE = "reference.safetensors"


class EmaReference:
    """Shadows of trained parameters (adapters, or weights), at least in float32, which are put in their place
    while the reference is asked. Every `every` steps: shadow = `decay` * shadow + (1 - `decay`) * parameter
    (TR-DPO, arXiv 2404.09656, section 3, with alpha = 1 - decay)."""

    def __init__(self, named: Iterable[tuple[str, nn.Parameter]], *, every: int, decay: float) -> None:
        self._parameters = {n: p for n, p in named if p.requires_grad}
        self._shadows = {
            n: p.detach().to(torch.promote_types(p.dtype, torch.float32), copy=True)
            for n, p in self._parameters.items()
        }
        self._every, self._decay = every, decay

    @torch.no_grad()
    def follow(self, step: int) -> None:
        """Step `step` (1-based) is over."""
        if step % self._every == 0:
            for name, parameter in self._parameters.items():
                shadow = self._shadows[name]
                shadow.lerp_(parameter.to(shadow.dtype), 1.0 - self._decay)

    @contextmanager
    def in_place(self) -> Iterator[None]:
        """The model is the reference inside; only weights in half precision are copied."""
        policy = {name: parameter.data for name, parameter in self._parameters.items()}
        for name, parameter in self._parameters.items():
            parameter.data = self._shadows[name].to(parameter.dtype)
        try:
            yield
        finally:
            for name, parameter in self._parameters.items():
                parameter.data = policy[name]

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


class Learner:
    """One process of the training run, with a whole copy of what is trained.

    `reference` is a model of its own or an `EmaReference`; None: the base with the adapters off.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        schedule: Schedule,
        gradient_clip: float | None,
        processes: Processes | None = None,
        reference: Any = None,
        value_head: ValueHead | None = None,
        precision: Precision | None = None,
    ) -> None:
        self.model, self.tokenizer, self.processes = model, tokenizer, processes or Processes()
        self._schedule, self._gradient_clip = schedule, gradient_clip
        self._optimizers, self._value_head = schedule.optimizers, value_head
        self._precision = precision or Precision()
        self.why_not_packed = why_not_packed(model)
        self._ema = self._reference = None
        if isinstance(reference, EmaReference):
            self._ema = reference
        elif reference is not None:
            self._reference = TokenScorer(reference, precision=self._precision)
            self.why_not_packed = self.why_not_packed or why_not_packed(reference)
        self.scorer = TokenScorer(model, value_head=value_head, precision=self._precision)
        self._masters = MasterWeights(self._named(), self._optimizers)

    @property
    def device(self) -> torch.device:
        """Where the parameters are."""
        return next(self.model.parameters()).device

    @property
    def loss_dtype(self) -> torch.dtype:
        """What logprobs and losses are computed in: at least float32."""
        return torch.promote_types(self.model.dtype, torch.float32)

    def batches(self, samples: Sequence[TrainSample], *, max_tokens: int) -> Iterator[Batch]:
        """Micro-batches that cover every sample once: packed where the model allows it, else padded."""
        make = packed_batches if self.why_not_packed is None else padded_batches
        return iter(make(samples, max_tokens=max_tokens, device=self.device))

    def score(
        self, batch: Batch, *, temperature: float = 1.0, entropy_gradient: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [N] of the batch's loss-bearing tokens, with gradient."""
        return self.scorer(batch, temperature, entropy_gradient=entropy_gradient)

    def score_with_values(
        self,
        batch: Batch,
        value_at: Sequence[int],
        *,
        temperature: float = 1.0,
        entropy_gradient: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor | None]:
        """As `score`, and the values [K] of the states before those of the N tokens; None without a value
        head."""
        if self._value_head is None:
            return *self.score(batch, temperature=temperature, entropy_gradient=entropy_gradient), None
        return self.scorer(batch, temperature, entropy_gradient=entropy_gradient, value_at=value_at)

    def measuring_states(self) -> AbstractContextManager[None]:
        """What is scored in here, by all processes, tells a new value head how states are distributed."""
        if self._value_head is None:
            return nullcontext()
        return self._value_head.measuring(self.processes.sum)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, *, temperature: float = 1.0) -> torch.Tensor:
        """Logprobs [N] under the reference."""
        if self._reference is not None:
            return self._reference(batch, temperature)[0]
        if self._ema is not None:
            as_reference = self._ema.in_place()
        elif hasattr(self.model, "disable_adapter"):
            as_reference = self.model.disable_adapter()
        else:
            as_reference = nullcontext()
        was_training = self.model.training
        self.model.eval()
        with as_reference:
            logprobs, _ = TokenScorer(self.model, precision=self._precision)(batch, temperature)
        self.model.train(was_training)
        return logprobs

    def end_step(self, step: int) -> None:
        """The training step `step` (1-based) is over: a reference that follows does so now."""
        if self._ema is not None:
            self._ema.follow(step)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""
        self._precision.scaled(loss).backward()
        self._masters.take_gradients()

    def step(self, number: int) -> tuple[float | None, float]:
        """Clip, step, clear, with the gradients of all processes. Returns the gradient norm before clipping
        and the learning-rate factor; the norm is None where a gradient overflowed in float16, and then no
        weight has moved and the scale of the loss is lower."""
        parameters = [p for _, p in self._masters.named]
        self.processes.add_gradients(parameters)
        self._precision.unscale(self._optimizers)
        limit = self._gradient_clip if self._gradient_clip is not None else float("inf")
        norm = nn.utils.clip_grad_norm_(parameters, limit)
        factor = self._schedule.set(number)
        has_moved = self._precision.step(self._optimizers)
        self._masters.give_weights()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        return float(norm) if has_moved else None, factor

    def save(self, folder: Path, *, state: JsonObject) -> None:
        """A complete checkpoint, or none: it gets its name only when everything is written."""
        with sealed_dir(folder) as draft:
            save_model(self.model, self.tokenizer, draft)
            save_trainer_state(draft, named=self._masters.named, optimizers=self._optimizers, state=state)
            self._masters.save(draft / STATE_FOLDER)
            self._precision.save(draft / STATE_FOLDER)
            if self._value_head is not None:
                save_value_head(self._value_head, draft / STATE_FOLDER)
            if self._ema is not None:
                self._ema.save(draft / STATE_FOLDER)

    def restore(self, folder: Path) -> JsonObject:
        """Back to the moment of `save`; returns its state."""
        load_weights(self.model, folder)
        self._precision.load(folder / STATE_FOLDER)
        if self._value_head is not None:
            load_value_head(self._value_head, folder / STATE_FOLDER)
        if self._ema is not None:
            self._ema.load(folder / STATE_FOLDER)
        self._masters.load(folder / STATE_FOLDER)
        return load_trainer_state(folder, named=self._masters.named, optimizers=self._optimizers)

    def _named(self) -> list[tuple[str, nn.Parameter]]:
        """All parameters by name, those of the value head with them."""
        return [*self.model.named_parameters(), *named_parameters(self._value_head)]
