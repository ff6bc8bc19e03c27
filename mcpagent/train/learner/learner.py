"""What learns: the model with its optimisers, in one or many processes, saved and restored exactly."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from mcpagent.core.records import JsonObject
from mcpagent.models.adapters import evaluation_mode, model_device
from mcpagent.models.load import is_quantised, save_model, trim_heap
from mcpagent.models.probe import (
    PROBE_ROWS,
    PROBE_TOKENS,
    Probe,
    compare,
    read_probe,
    windows,
    write_probe,
)
from mcpagent.models.weights import stored_tensors
from mcpagent.storage.checkpoints import STATE_FILE, STATE_FOLDER, sealed_dir
from mcpagent.storage.lineage import base_of, write_lineage
from mcpagent.train.batch.samples import (
    PackedBatch,
    SharedPrefix,
    TrainSample,
    packed_batches,
    padded_batches,
)
from mcpagent.train.batch.scoring import Batch, TokenScorer, why_not_packed
from mcpagent.train.learner.optim import MasterWeights, Precision, Schedule
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.reference import ShadowReference
from mcpagent.train.learner.trainer_state import load_trainer_state, optimizer_state, random_state
from mcpagent.train.learner.wrapping import Wrapping, load_tensors, put_stored, save_tensors
from mcpagent.train.objective.value import VALUE_HEAD, ValueHead, named_parameters
from mcpagent.train.start import Start, lineage_of


def load_weights(model: Any, folder: Path, *, wrapping: Wrapping) -> None:
    """Weights of a checkpoint into a live model: its adapters, or all of them. Raises UserError if the
    folder is damaged, RunError if it does not fit."""
    targets = model.state_dict(keep_vars=True)
    if hasattr(model, "peft_config"):
        from peft import get_peft_model_state_dict

        targets = get_peft_model_state_dict(model, state_dict=targets)
    put_stored(targets, stored_tensors(folder), wrapping=wrapping, where=str(folder))


def _all_but_first(token_ids: Sequence[int]) -> TrainSample:
    """Return a sample in which every token but the first counts."""
    return TrainSample(token_ids_T=tuple(token_ids), loss_mask_T=(False, *[True] * (len(token_ids) - 1)))


_NOTHING = TrainSample(token_ids_T=(1, 2), loss_mask_T=(False, False))  # no token that carries loss


class Learner:
    """One process of the training run, with a whole copy of what is trained or, by its `wrapping`, a shard.

    `reference` None is the base with the adapters off. `scorer` is that of `model`, if it is sharded already.
    `start` is what the run began with, which its checkpoints name, as they do the `tool_format` of its
    episodes.
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        *,
        schedule: Schedule,
        gradient_clip: float | None,
        processes: Processes | None = None,
        reference: ShadowReference | None = None,
        value_head: ValueHead | None = None,
        precision: Precision | None = None,
        wrapping: Wrapping | None = None,
        scorer: TokenScorer | None = None,
        start: Start | None = None,
        tool_format: str | None = None,
    ) -> None:
        # Only an update trains: PEFT hands over a model in training mode, in which the sampler of its weights
        # would apply dropout, and with checkpointing have no cache.
        self.model, self.tokenizer, self.processes = model.eval(), tokenizer, processes or Processes()
        self._start, self._tool_format = start, tool_format
        # Told how many samples of how many the micro-batches of an update have covered.
        self.on_samples: Callable[[int, int], None] = lambda _done, _total: None
        self._trained_on: Sequence[TrainSample] = ()  # the last step's
        self.wrapping = wrapping or Wrapping(self.processes)
        self._schedule, self._optimizers, self._value_head = schedule, schedule.optimizers, value_head
        self._reference = reference
        self._precision = precision or Precision()
        scorer = scorer or TokenScorer(model, value_head=value_head, precision=self._precision)
        limit = self._limit = gradient_clip if gradient_clip is not None else float("inf")
        self.scorer: Any = self.wrapping.prepare(scorer, self._optimizers, limit=limit)
        self.why_not_packed = why_not_packed(model, self.scorer if self.wrapping.is_sharded else None)
        self.wrapping.settle()  # parameters are the shards again, which the optimisers move
        named = [*self.model.named_parameters(), *named_parameters(value_head)]
        self._masters = MasterWeights(
            named,
            self._optimizers,
            kept=self.wrapping.masters({n: p for n, p in named if p.requires_grad}),
            local=self.wrapping.local,
        )

    @property
    def device(self) -> torch.device:
        """The device that the model computes on."""
        return model_device(self.model)

    @property
    def loss_dtype(self) -> torch.dtype:
        """Return the dtype of logprobs and losses: at least float32."""
        return torch.promote_types(self.model.dtype, torch.float32)

    def batches(self, samples: Sequence[TrainSample], *, max_tokens: int) -> Iterator[Batch]:
        """Yield micro-batches that cover every sample once: packed if the model allows it, else padded. If
        weights are sharded, all processes ask for them at the same time, and batches without `rows` stand for
        those that only others have."""
        make: Any = padded_batches
        if self.why_not_packed is None:
            make = partial(packed_batches, may_share=self._shares_prefix)
        is_update = torch.is_grad_enabled()
        if is_update:
            self._trained_on = samples

        def empty() -> Batch:
            (batch,) = make([_NOTHING], max_tokens=2, device=self.device)
            return replace(batch, rows=())

        done = 0
        made = self._with_prefix(make(samples, max_tokens=max_tokens, device=self.device))
        for batch in self.wrapping.agreed(made, empty):
            yield batch
            done += len(batch.rows)
            if is_update:
                self.on_samples(done, len(samples))

    def _with_prefix(self, batches: Iterable[Batch]) -> Iterator[Batch]:
        """The batches, and after the last of those that share a prefix its backward pass."""
        prefix: SharedPrefix | None = None
        for batch in batches:
            following = batch.prefix if isinstance(batch, PackedBatch) else None
            if prefix is not None and following is not prefix:
                self._end_prefix(prefix)
            prefix = following
            yield batch
            if prefix is not None:
                trim_heap()  # what one pass freed stays between what the next one keeps
        if prefix is not None:
            self._end_prefix(prefix)

    def _end_prefix(self, prefix: SharedPrefix) -> None:
        prefix.backward()
        self._masters.take_gradients()

    @property
    def _shares_prefix(self) -> bool:
        """Return True if several rows can share a prefix: there is always a flash kernel, and the weights are
        in one place."""
        config = self.model.config.get_text_config()
        has_dropout = getattr(config, "attention_dropout", 0.0)
        return self.device.type == "cpu" and not self.wrapping.is_sharded and not has_dropout

    def idle(self, batch: Batch, *, temperature: float = 1.0, with_reference: bool = False) -> None:
        """Take part in the passes of a micro-batch that only other processes have: no gradient comes of
        it."""
        if with_reference:
            self.reference_logprobs(batch, temperature=temperature)
        value_at = None if self._value_head is None else []
        outputs = self.scorer(batch, temperature, value_at=value_at)
        self.backward(torch.stack([out.sum() for out in outputs if out.requires_grad]).sum())

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
        """Return what `score` does, and the values [K] of the states before those of the N tokens; None
        without a value head."""
        if self._value_head is None:
            return *self.score(batch, temperature=temperature, entropy_gradient=entropy_gradient), None
        return self.scorer(batch, temperature, entropy_gradient=entropy_gradient, value_at=value_at)

    def measuring_states(self) -> AbstractContextManager[None]:
        """Return the context in which what all processes score tells a new value head how states are
        distributed."""
        if self._value_head is None:
            return nullcontext()
        return self._value_head.measuring(self.processes.sum)

    @torch.no_grad()
    def reference_logprobs(self, batch: Batch, *, temperature: float = 1.0) -> torch.Tensor:
        """Logprobs [N] under the reference."""
        if isinstance(batch, PackedBatch) and batch.prefix is not None:
            batch = replace(batch, prefix=replace(batch.prefix, of="reference"))
        if self._reference is not None:
            as_reference = self._reference.in_place()
        elif hasattr(self.model, "disable_adapter"):
            as_reference = self.model.disable_adapter()
        else:
            as_reference = nullcontext()
        with evaluation_mode(self.model), as_reference:
            logprobs, _ = self.scorer(batch, temperature)  # it is the root of what is sharded
        return logprobs

    def end_step(self, step: int) -> None:
        """The training step `step` (1-based) is over: a reference that follows does so now."""
        if self._reference is not None:
            self._reference.follow(step)

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""
        self.wrapping.backward(self._precision.scaled(loss))
        self._masters.take_gradients()

    def step(self, number: int) -> tuple[float | None, float]:
        """Clip, step, clear, with the gradients of all processes. Returns the gradient norm before clipping
        and the learning-rate factor; the norm is None if a gradient overflowed in float16, and then no
        weight has moved and the scale of the loss is lower."""
        factor = self._schedule.set(number)
        norm = self.wrapping.step(
            [p for _, p in self._masters.named],
            self._optimizers,
            limit=self._limit,
            precision=self._precision,
        )
        self._masters.give_weights()
        for optimizer in self._optimizers:
            optimizer.zero_grad()
        return norm, factor

    def save(self, folder: Path, *, state: JsonObject) -> None:
        """A complete checkpoint, or none: it gets its name only when everything is written. Every process
        calls this, and the first one writes; what one process holds says nothing of their number."""
        wrapping, probe = self.wrapping, self._probe()
        with sealed_dir(folder) if self.processes.is_first else nullcontext() as draft:
            weights = self.weights() if wrapping.is_sharded else None
            if draft is not None:
                save_model(self.model, self.tokenizer, draft, weights)
                write_probe(draft, probe)
                if self._start is not None:
                    is_adapter = hasattr(self.model, "peft_config")
                    write_lineage(draft, lineage_of(self._start, folder, is_adapter=is_adapter))
                (draft / STATE_FOLDER).mkdir()
            del weights
            moments, scalars = optimizer_state(self._masters.named, self._optimizers, wrapping)
            for name, tensors in {"optimizer": moments, **self._further_tensors()}.items():
                self.processes.meet()  # what is written takes its time
                path = None if draft is None else draft / STATE_FOLDER / f"{name}.safetensors"
                save_tensors(path, tensors, wrapping=wrapping)
            if draft is not None:
                self._precision.save(draft / STATE_FOLDER)
                streams, places = random_state()
                save_file(streams, draft / STATE_FOLDER / "rng.safetensors")
                document = {"state": state, "optimizer_scalars": scalars, "rng": places}
                text = json.dumps(document, indent=1, sort_keys=True)
                (draft / STATE_FILE).write_text(text + "\n", encoding="utf-8")
        self.processes.meet()

    def _further_tensors(self) -> dict[str, Mapping[str, torch.Tensor]]:
        """Return what a checkpoint holds besides weights and the optimisers' state, by the names of its
        files."""
        head, further = self._value_head, dict[str, Mapping[str, torch.Tensor]]()
        if head is not None:
            further[VALUE_HEAD] = head.state_dict(keep_vars=True)
        # Frozen whole weights are those of the start, which a resumed run loads again.
        is_adapter = hasattr(self.model, "peft_config")
        if self._reference is not None and (is_adapter or self._reference.follows):
            further["reference"] = self._reference.shadows
        if self._masters.copies:
            further["master_weights"] = self._masters.copies
        return further

    @torch.no_grad()
    def logprobs(
        self, rows: Sequence[TrainSample], *, max_tokens: int = 4096, temperature: float = 1.0
    ) -> list[list[float]]:
        """Return the trainer's logprobs (nats) of the loss-bearing tokens of each row. Of weights in shards,
        all processes ask for as many rows as they have."""
        scored: list[list[float]] = [[] for _ in rows]
        with evaluation_mode(self.model):
            for batch in self.batches(rows, max_tokens=max_tokens):
                values = iter(self.score(batch, temperature=temperature)[0].tolist())
                for row in batch.rows:
                    scored[row] = [next(values) for _ in range(rows[row].loss_tokens)]
        return scored

    def _probe(self) -> Probe:
        """The probe of the weights as they are: sequences of the last step, before the first one made up."""
        cut = windows([(sample.token_ids_T, sample.first_loss) for sample in self._trained_on[:PROBE_ROWS]])
        if not cut:
            numbers = random.Random(0)
            vocabulary = self.model.config.get_text_config().vocab_size
            cut = [[numbers.randrange(vocabulary) for _ in range(PROBE_TOKENS)] for _ in range(PROBE_ROWS)]
        return Probe(
            token_ids=cut,
            logprobs=self.logprobs([_all_but_first(ids) for ids in cut]),
            dtype=self._dtype_name,
            is_quantised=is_quantised(self.model),
            tool_format=self._tool_format,
        )

    @property
    def _dtype_name(self) -> str:
        return str(self._precision.dtype or self.model.dtype).removeprefix("torch.")

    def prove(self, folder: Path) -> None:
        """Score the probe of a checkpoint with the weights as they are, in all processes. Raises UserError
        if its logprobs are others."""
        probe = read_probe(folder)
        if probe is not None and probe.is_quantised == is_quantised(self.model):
            logprobs = self.logprobs([_all_but_first(ids) for ids in probe.token_ids])
            compare(probe, logprobs, folder=folder, dtype=self._dtype_name)

    def weights(self, *, everywhere: bool = False) -> dict[str, torch.Tensor]:
        """Return the whole weights by their names in a state dict, on the CPU, in the first process or
        `everywhere`: every process calls this."""
        self.wrapping.settle()
        return self.wrapping.gathered(self.model.state_dict(keep_vars=True), everywhere=everywhere)

    def load_weights(self, folder: Path) -> None:
        """The weights of a checkpoint, without what else is in it."""
        load_weights(self.model, folder, wrapping=self.wrapping)
        self.wrapping.settle()

    def restore(self, folder: Path) -> JsonObject:
        """Go back to the moment of `save`; returns its state."""
        if self._start is not None:
            base_of(folder)  # which refuses a base that is not the one that was recorded
        self.load_weights(folder)
        self.prove(folder)
        source = folder / STATE_FOLDER
        self._precision.load(source)
        for name, tensors in self._further_tensors().items():
            load_tensors(source / f"{name}.safetensors", tensors, wrapping=self.wrapping)
        state = load_trainer_state(
            folder, named=self._masters.named, optimizers=self._optimizers, wrapping=self.wrapping
        )
        self.wrapping.settle()
        return state
