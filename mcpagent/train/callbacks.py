"""What may look at every step of a run, add to its record, and end it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory


@dataclass(frozen=True, kw_only=True)
class StepReport:
    """A step that is done: its record as it stands in metrics.jsonl, and its episodes, which were sampled
    with the weights of the step before."""

    step: int
    metrics: JsonObject
    trajectories: Sequence[Trajectory]


class Callback(Protocol):
    """Both are called once a step, in this order, before the step's checkpoint is written."""

    def on_step(self, report: StepReport) -> None:
        """Look at a step; what is added to `report.metrics` joins the record."""
        ...

    def should_stop(self) -> str | None:
        """Why the run is to end now; None goes on."""
        ...


class Abandoned(KeyboardInterrupt):
    """Ctrl-C twice: the step was cut in its middle, so its weights are not to be kept."""


@contextmanager
def uninterrupted(on_interrupt: Callable[[], None]) -> Iterator[None]:
    """Holds the first Ctrl-C back until the block is done, then raises it; a second one raises Abandoned at
    once. Outside of the main thread, where no Ctrl-C arrives, it does nothing."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    asked = False

    def hold(_number: int, _frame: Any) -> None:
        nonlocal asked
        if asked:
            raise Abandoned
        asked = True
        on_interrupt()

    before = signal.signal(signal.SIGINT, hold)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if asked:
        raise KeyboardInterrupt
