"""The processes of a run (`torchrun`, `accelerate launch`): which share is whose, and what they agree on.

Every process holds a whole copy of what it trains. Episodes and gradients are shared out by groups; all else
(advantages, decisions, the reference) is computed by every process from the same numbers, so that there is
one training loop and not one for each kind of process. The first process alone writes.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, Self, TypeVar

import torch
from torch import distributed
from torch.distributed import PrefixStore, ProcessGroup, Store, TCPStore  # pyright: ignore[reportPrivateImportUsage]
from torch.distributed.rendezvous import rendezvous

from mcpagent.core.seeds import derive_seed
from mcpagent.errors import RunError
from mcpagent.interrupts import held_back

T = TypeVar("T")

_BUCKET = 1 << 25  # elements of gradients that travel at once
COLLECTIVE_TIMEOUT_S = 600.0  # training.collective_timeout_s, if nothing else is said
_BEATS = 8  # signs of life in the time after which a process without one counts as lost
_LONGEST_POLL_S = 0.05
_LONGEST_CLOSE_S = 5.0
_ONE_INTERRUPT_S = 3.0  # terminal and launcher both pass an interrupt on


class _RollCall:
    """A watch over who is still there. Every process counts its signs of life in the store that the launcher
    opened, and reads those of the others, on a thread of its own. Unlike a collective, waiting for the others
    by this may take hours, and yet it ends soon after one of them is gone."""

    def __init__(self, index: int, count: int, timeout_s: float) -> None:
        self.index, self.count, self.timeout_s = index, count, timeout_s
        self._others = [other for other in range(count) if other != index]
        self._heard_s = dict.fromkeys(self._others, time.monotonic())
        self._meetings = 0
        self._store, of_thread = self._connect(), self._connect()
        self._store.set(f"process/{index}", f"{socket.gethostname()} {os.getpid()}")
        self._is_over = threading.Event()
        self._thread = threading.Thread(
            target=self._live, args=[of_thread], name="mcpagent-signs-of-life", daemon=True
        )
        self._thread.start()

    def close(self) -> None:
        """Stop the signs of life. A thread inside the store while the interpreter ends would abort the
        process (exit code -6)."""
        self._is_over.set()
        self._thread.join(_LONGEST_CLOSE_S)  # a store whose host is stopped does not answer

    def _connect(self) -> Store:
        """Whoever hosts the store (the launcher, or the first process), all are its clients."""
        store = TCPStore(
            os.environ["MASTER_ADDR"],
            int(os.environ["MASTER_PORT"]),
            is_master=False,
            timeout=timedelta(seconds=self.timeout_s),
        )
        return PrefixStore(f"mcpagent/{os.environ.get('TORCHELASTIC_RESTART_COUNT', '0')}", store)

    def _live(self, store: Store) -> None:
        beats = dict.fromkeys(self._others, -1)
        with suppress(RuntimeError, OSError):  # the store is gone, and with it the run
            while not self._is_over.is_set():
                store.add(f"beats/{self.index}", 1)
                for other, before in beats.items():
                    beats[other] = store.add(f"beats/{other}", 0)
                    if beats[other] != before:
                        self._heard_s[other] = time.monotonic()
                self._is_over.wait(self.timeout_s / _BEATS)

    def _silent(self, longer_than_s: float) -> list[int]:
        now = time.monotonic()
        return [other for other, heard_s in self._heard_s.items() if now - heard_s > longer_than_s]

    def meet(self) -> None:
        """Return when every process has come here. Raises RunError if one shows no sign of life."""
        self._meetings += 1
        self._store.add(f"met/{self.index}", 1)
        absent, pause_s = self._others, 0.001
        while absent := [i for i in absent if self._store.add(f"met/{i}", 0) < self._meetings]:
            if lost := set(absent).intersection(self._silent(self.timeout_s)):
                raise _lost(self, f"process {min(lost)} has shown no sign of life for {self.timeout_s:g} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_POLL_S)

    def end_silent(self) -> None:
        """End the processes of this machine that show no sign of life: a launcher waits long for what is
        stopped, and without one it would stay."""
        for other in self._silent(self.timeout_s / 2):
            host, pid = self._store.get(f"process/{other}").decode().split()
            if host == socket.gethostname():
                with suppress(ProcessLookupError):
                    os.kill(int(pid), signal.SIGKILL)

    def is_first_to_fail(self) -> bool:
        """Return whether no other process has asked this before."""
        return self._store.add("failures", 1) == 1


class Processes:
    """`count` processes, of which this is number `index`."""

    def __init__(self, *, index: int = 0, count: int = 1, roll_call: _RollCall | None = None) -> None:
        self.index, self.count, self._roll_call = index, count, roll_call
        self._has_lost = False

    @classmethod
    def join(
        cls,
        device: torch.device,
        *,
        timeout_s: float = COLLECTIVE_TIMEOUT_S,
        start_within_s: float = COLLECTIVE_TIMEOUT_S,
    ) -> Self:
        """Meet the other processes that the launcher started; alone if there was none. Collectives end
        with an error after `timeout_s`, and processes may start `start_within_s` apart. They part when the
        interpreter ends, however it does. Raises RunError if one does not come."""
        count = int(os.environ.get("WORLD_SIZE", "1"))
        if count == 1:
            return cls()
        if not distributed.is_initialized():
            if device.type == "cuda":
                torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")))
            store, index = _started(count, within_s=max(timeout_s, start_within_s))
            distributed.init_process_group(
                "cpu:gloo,cuda:nccl" if device.type == "cuda" else "gloo",
                store=store,
                rank=index,
                world_size=count,
                timeout=timedelta(seconds=timeout_s),
            )
        index = distributed.get_rank()
        processes = cls(index=index, count=count, roll_call=_RollCall(index, count, timeout_s))
        atexit.register(processes.leave)
        return processes

    def leave(self) -> None:
        """Stop the thread that shows life, and destroy the process group; if another process is lost the
        group is left as it is, since what waits for that one would be waited for."""
        if self._roll_call is not None:
            self._roll_call.close()
        if distributed.is_initialized() and not self._has_lost:
            distributed.destroy_process_group()

    def meet(self) -> None:
        """Wait until every process has come here, however long what it does before takes: episodes, a
        checkpoint, loading. Raises RunError if one of them is gone."""
        if self._roll_call is not None:
            self._roll_call.meet()

    @contextmanager
    def failing_together(self) -> Iterator[None]:
        """If a process is lost inside, the others end too, and one of them says so, as RunError. The
        others raise SystemExit."""
        try:
            yield
        except (RuntimeError, RunError) as error:
            if self._roll_call is None or not (isinstance(error, RunError) or _is_of_collective(error)):
                raise
            self._has_lost = True
            said = error if isinstance(error, RunError) else _failed(self._roll_call, error)
            try:
                is_first = self._roll_call.is_first_to_fail()
                self._roll_call.end_silent()
            except (RuntimeError, OSError):
                is_first = True  # the store is gone with the process that hosted it
            if not is_first:
                raise SystemExit(1) from error
            raise said from error

    def split(self, size: int) -> list[ProcessGroup]:
        """Return the two groups of this process: of those at its place in each consecutive `size` processes,
        and of its own `size`. Their collectives end with an error after the time that holds for all; groups
        of a mesh that torch makes wait for half an hour."""
        rows = torch.arange(self.count).view(-1, size)
        groups: list[ProcessGroup] = []
        for ranks in (*rows.T.tolist(), *rows.tolist()):  # every process makes all groups, in one order
            group = distributed.new_group(ranks, timeout=self.timeout)
            if isinstance(group, ProcessGroup):  # this process is one of it
                groups.append(group)
        return groups

    @property
    def timeout(self) -> timedelta:
        """The time after which collectives of these processes end with an error."""
        roll_call = self._roll_call
        return timedelta(seconds=COLLECTIVE_TIMEOUT_S if roll_call is None else roll_call.timeout_s)

    @property
    def is_first(self) -> bool:
        """Return whether this is the one that writes."""
        return self.index == 0

    @property
    def folder_name(self) -> str:
        """Return the name of the folder that each process writes for itself inside a folder of the run;
        nothing for the first."""
        return "" if self.is_first else f"process-{self.index}"

    def seed_torch(self, *parts: object) -> None:
        """Dropout of its own for every process but the first, whose stream is that of a run alone and is kept
        in checkpoints; the others' are a function of `parts` (the run's seed and the step)."""
        if not self.is_first:
            torch.manual_seed(derive_seed(*parts, "process", self.index))

    def share(self, items: Sequence[T]) -> Sequence[T]:
        """Return the consecutive part of this process; `gather` of the parts is the whole again, in order."""
        if self.count == 1:
            return items
        start, end = (len(items) * i // self.count for i in (self.index, self.index + 1))
        return items[start:end]

    def gather(self, items: Iterable[T]) -> Sequence[T]:
        """Return the items of all processes, those of the first one first."""
        if self.count == 1:
            return items if isinstance(items, Sequence) else list(items)
        parts: list[list[T]] = [[] for _ in range(self.count)]
        distributed.all_gather_object(parts, list(items))
        return [item for part in parts for item in part]

    def sum(self, numbers: Sequence[float]) -> list[float]:
        """Return those of all processes, added up place by place."""
        if self.count == 1:
            return list(numbers)
        rows = self.gather([list(numbers)])
        return [sum(column) for column in zip(*rows, strict=True)]

    def broadcast_from_rank0(self, ask: Callable[[], T]) -> T:
        """Return what `ask` returns in the first process, for all; the others do not call it. What it raises
        ends the first process, and with it (through the launcher) the run. It may take its time."""
        if self.count == 1:
            return ask()
        box: list[Any] = [ask() if self.is_first else None]
        self.meet()
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


def _started(count: int, *, within_s: float) -> tuple[Store, int]:
    """The store of the launcher, and the number of this process, once all have started. Connecting counts
    as a collective: were it tried before, imports and reading the tasks would count too."""
    store, index, _ = next(rendezvous("env://", timeout=timedelta(seconds=within_s)))
    names = [f"mcpagent/started/{i}" for i in range(count)]
    store.set(names[index], "")
    try:
        store.wait(names, timedelta(seconds=within_s))
    except distributed.DistStoreError as error:
        absent = [i for i, name in enumerate(names) if not store.check([name])]
        if index != min(set(range(count)).difference(absent)):
            raise SystemExit(1) from error
        raise RunError(
            f"process {index} stops: process {min(absent, default=0)} has not started within {within_s:g} s",
            remedy="see what keeps it, on which machine, and start the run again",
        ) from error
    return store, index


def _buckets(gradients: Sequence[torch.Tensor]) -> Iterator[list[torch.Tensor]]:
    """Yield the gradients in buckets of one dtype each, and of about `_BUCKET` elements at most."""
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


# torch has no type for what gloo says.
_SAID_OF_COLLECTIVES = (
    "gloo",
    "NCCL",
    "Connection closed by peer",
    "Connection reset by peer",
    "Broken pipe",
)


def _is_of_collective(error: RuntimeError) -> bool:
    """Return whether other processes are the reason."""
    return isinstance(error, distributed.DistError) or any(s in str(error) for s in _SAID_OF_COLLECTIVES)


def _failed(roll_call: _RollCall, error: RuntimeError) -> RunError:
    is_late = "timed out" in str(error).lower() or "timeout" in str(error).lower()
    what = f"did not answer within {roll_call.timeout_s:g} s" if is_late else "is gone"
    return _lost(roll_call, f"another of the {roll_call.count} processes {what}")


def _lost(roll_call: _RollCall, what: str) -> RunError:
    return RunError(
        f"process {roll_call.index} stops: {what}",
        where="training.collective_timeout_s",
        remedy="see what ended or stopped it; the run continues from its last checkpoint with --resume",
    )
