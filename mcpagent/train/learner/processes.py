"""The processes of a run (`torchrun`, `accelerate launch`): which share is whose, and what they agree on.

Every process holds a whole copy of what it trains. Episodes and gradients are shared out by groups; all else
(advantages, decisions, the reference) is computed by every process from the same numbers, so that there is
one training loop and not one for each kind of process. The first process alone writes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
from accelerate import PartialState
from torch import distributed

from mcpagent.core.seeds import derive_seed
from mcpagent.errors import UserError
from mcpagent.interrupts import held_back

T = TypeVar("T")

_BUCKET = 1 << 25  # elements of gradients that travel at once
_PATIENCE = timedelta(hours=24)  # a step's episodes may take one process much longer than another
_ONE_INTERRUPT_S = 3.0  # terminal and launcher both pass an interrupt on


class Processes:
    """`count` processes, of which this is number `index`."""

    def __init__(self, *, index: int = 0, count: int = 1) -> None:
        self.index, self.count = index, count

    @classmethod
    def join(cls, device: torch.device) -> Self:
        """Meet the other processes that the launcher started; alone where there was none."""
        if int(os.environ.get("WORLD_SIZE", "1")) > 1:
            if any(os.environ.get(f"ACCELERATE_USE_{kind}") == "true" for kind in ("FSDP", "DEEPSPEED")):
                raise UserError(
                    "the launcher asks for sharded weights, but each process of mcpagent holds a whole model",
                    where="accelerate launch",
                    remedy="use configs/accelerate/ddp.yaml, with --mode lora or qlora for a large model",
                )
            state = PartialState(cpu=device.type == "cpu", timeout=_PATIENCE)
            return cls(index=state.process_index, count=state.num_processes)
        return cls()

    @property
    def is_first(self) -> bool:
        """Whether this is the one that writes."""
        return self.index == 0

    @property
    def folder_name(self) -> str:
        """Of what each process writes for itself inside a folder of the run; nothing for the first."""
        return "" if self.is_first else f"process-{self.index}"

    def seed_torch(self, *parts: object) -> None:
        """Dropout of its own for every process but the first, whose stream is that of a run alone and is kept
        in checkpoints; the others' are a function of `parts` (the run's seed and the step)."""
        if not self.is_first:
            torch.manual_seed(derive_seed(*parts, "process", self.index))

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """The consecutive part of this process; `gather` of the parts is the whole again, in order."""
        start, end = (len(items) * i // self.count for i in (self.index, self.index + 1))
        return items[start:end]

    def gather(self, items: Iterable[T]) -> list[T]:
        """The items of all processes, those of the first one first."""
        here = list(items)
        if self.count == 1:
            return here
        parts: list[list[T]] = [[] for _ in range(self.count)]
        distributed.all_gather_object(parts, here)
        return [item for part in parts for item in part]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Those of all processes, added up place by place."""
        if self.count == 1:
            return list(numbers)
        rows = self.gather([list(numbers)])
        return [sum(column) for column in zip(*rows, strict=True)]

    def broadcast_from_rank0(self, ask: Callable[[], T]) -> T:
        """What `ask` returns in the first process, for all; the others do not call it. What it raises ends
        the first process, and with it (through the launcher) the run."""
        if self.count == 1:
            return ask()
        box: list[Any] = [ask() if self.is_first else None]
        distributed.broadcast_object_list(box, src=0)
        return box[0]

    @torch.no_grad()
    def add_gradients(self, parameters: Sequence[torch.nn.Parameter]) -> None:
        """Every process gets the sum of all gradients, once an optimiser step. A process without a sample has
        no gradient, which counts as 0."""
        if self.count == 1:
            return
        for parameter in parameters:
            if parameter.grad is None:
                parameter.grad = torch.zeros_like(parameter)
        for bucket in _buckets([p.grad for p in parameters if p.grad is not None]):
            flat = torch.cat([gradient.flatten() for gradient in bucket])
            distributed.all_reduce(flat)
            for gradient, summed in zip(bucket, flat.split([g.numel() for g in bucket]), strict=True):
                gradient.copy_(summed.view_as(gradient))

    @contextmanager
    def holding_interrupts(self, note: Callable[[], None]) -> Iterator[Callable[[], bool]]:
        """A Ctrl-C inside is not raised but answered by what this gives, so that the processes can stop at
        the same place; a second one, later than the echoes of the first, is raised. One process alone is
        interrupted as ever."""
        if self.count == 1:
            yield lambda: False
            return
        with held_back(note, echo_s=_ONE_INTERRUPT_S) as is_asked:
            yield is_asked


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Of one dtype each, and of about `_BUCKET` elements at most."""
    bucket: list[torch.Tensor] = []
    size = 0
    for gradient in sorted(gradients, key=lambda g: str(g.dtype)):
        if bucket and (size + gradient.numel() > _BUCKET or gradient.dtype != bucket[0].dtype):
            yield bucket
            bucket, size = [], 0
        bucket.append(gradient)
        size += gradient.numel()
    if bucket:
        yield bucket
