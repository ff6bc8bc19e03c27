"""Where metrics go besides metrics.jsonl: wandb, weave, tensorboard, each optional and kept at a distance. A
tracker lives on a thread of its own; one that fails or hangs is reported once and left alone."""

# pyright: reportMissingImports=false
from __future__ import annotations

import importlib.util
import os
import queue
import re
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcpagent.config.environment import environment
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.core.registry import TRACKERS
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import RunError, UserError
from mcpagent.storage.packages import pip_install
from mcpagent.storage.run_folder import RunFolder

_WAITING_STEPS = 256  # that a slow tracker may be behind before it counts as hanging
_TAKE_EPISODES = {"weave"}
_OWN_VARIABLES = ("WANDB_", "WEAVE_")
_USER_IN_URL = re.compile(r"(?<=://)[^/@\s]+@")


@dataclass(frozen=True, kw_only=True)
class TrackedRun:
    """The facts that a tracker gets when it is opened. `config` is redacted; `folder` is where it may
    write."""

    project: str
    name: str
    folder: Path
    config: JsonObject
    is_online: bool
    begins_at: int = 0  # the step that a resumed run goes on from

    @classmethod
    def of(cls, config: TrainConfig, run: RunFolder, *, begins_at: int = 0) -> TrackedRun:
        """Return what `config.tracking` says of the run in that folder."""
        tracking = config.tracking
        return cls(
            project=tracking.project,
            name=run.path.name,
            folder=run.logs,
            config=config.model_dump(mode="json"),
            is_online=tracking.mode == "online",
            begins_at=begins_at,
        )


@dataclass(frozen=True)
class Tracker:
    """A service that is open. Both are called from one thread: `log` with each step in its order, its numbers
    and its episodes; `close` when nothing more will come."""

    log: Callable[[int, JsonObject, Sequence[JsonObject]], None]
    close: Callable[[], object]


class TrackerThread:
    """Drives a tracker away from the training loop. `open_tracker` runs on the thread too: a login that waits
    for a network that is not there costs the run nothing."""

    def __init__(
        self,
        name: str,
        open_tracker: Callable[[], Tracker],
        *,
        note: Callable[[str], None],
        deadline_s: float = 30.0,
    ) -> None:
        self.name, self._note, self._deadline_s = name, note, deadline_s
        self._queue: queue.Queue[tuple[int, JsonObject, list[JsonObject]] | None] = queue.Queue(
            _WAITING_STEPS
        )
        self._lock = threading.Lock()
        self._failed = False
        self._thread = threading.Thread(
            target=self._drive, args=(open_tracker,), name=f"mcpagent-{name}", daemon=True
        )
        self._thread.start()

    def log(self, step: int, metrics: JsonObject, trajectories: list[JsonObject]) -> None:
        """Hand over a step; returns at once, and does nothing once the tracker has failed."""
        if self._failed:
            return
        try:
            self._queue.put_nowait((step, metrics, trajectories))
        except queue.Full:
            self._fail(f"it is {_WAITING_STEPS} steps behind")

    def close(self) -> None:
        """Let it finish what it has, for at most the deadline."""
        if self._failed:
            return
        with suppress(queue.Full):
            self._queue.put(None, timeout=self._deadline_s)
            self._thread.join(self._deadline_s)
        if self._thread.is_alive():
            self._fail(f"it did not finish within {self._deadline_s:g} s")

    def _drive(self, open_tracker: Callable[[], Tracker]) -> None:
        try:
            tracker = open_tracker()
            while (item := self._queue.get()) is not None:
                tracker.log(*item)
            tracker.close()
        except (Exception, SystemExit) as error:  # noqa: BLE001 - boundary: a tracker is foreign code
            self._fail(f"{type(error).__name__}: {error}")

    def _fail(self, why: str) -> None:
        with self._lock:
            if self._failed:
                return
            self._failed = True
        first_line = why.strip().partition("\n")[0]
        self._note(f"tracker {self.name} is off from here on: {first_line} (metrics.jsonl has every step)")


class Trackers:
    """The trackers of a run, which get only what is free of secrets."""

    def __init__(self, threads: Sequence[TrackerThread]) -> None:
        self._threads = threads

    def log(self, step: int, metrics: JsonObject, trajectories: Sequence[Trajectory]) -> None:
        """Hand the numbers of a step to each tracker, and its episodes to those that take them, redacted."""
        if not self._threads:
            return
        numbers = {k: v for k, v in metrics.items() if isinstance(v, int | float)}
        logged = trajectories if any(t.name in _TAKE_EPISODES for t in self._threads) else ()
        episodes = [SECRETS.value(t.model_dump(mode="json")) for t in logged]
        for thread in self._threads:
            thread.log(step, numbers, episodes if thread.name in _TAKE_EPISODES else [])

    def close(self) -> None:
        """Let every tracker finish what it was handed."""
        for thread in self._threads:
            thread.close()


def open_trackers(
    backends: Sequence[str], run: TrackedRun, *, note: Callable[[str], None], deadline_s: float = 30.0
) -> Trackers:
    """Start them. Raises UserError if the package of one is not installed."""
    variables = environment()
    if backends:
        # Their packages read keys and settings from the environment, which `.env` is not part of.
        os.environ.update({n: v for n, v in variables.items() if n.startswith(_OWN_VARIABLES)})
    for backend in backends:
        require_tracker(backend)
    clean = replace(run, config=safe_config(run.config))
    threads = [
        TrackerThread(name, lambda name=name: TRACKERS.load(name)(clean), note=note, deadline_s=deadline_s)
        for name in backends
    ]
    return Trackers(threads)


def safe_config(config: JsonObject) -> JsonObject:
    """Return `config` without the secrets of this process and without users in URLs."""
    return _without_users(SECRETS.value(config))


def _without_users(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_users(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_without_users(item) for item in value]
    return _USER_IN_URL.sub("", value) if isinstance(value, str) else value


def require_tracker(backend: str) -> None:
    """Raise UserError if the package of a tracker is not installed."""
    if importlib.util.find_spec(backend) is None:
        raise UserError(
            f"the tracker {backend} is not installed",
            where="tracking.backends",
            remedy=f"{pip_install(backend)} (or mcpagent[track] for all three)",
        )


def open_wandb(run: TrackedRun) -> Tracker:
    """Open Weights & Biases, which gets numbers."""
    import wandb

    opened = wandb.init(
        project=run.project,
        name=run.name,
        dir=str(run.folder),
        config=run.config,
        mode="online" if run.is_online else "offline",
    )
    return Tracker(lambda step, metrics, _: opened.log(metrics, step=step), opened.finish)


def open_tensorboard(run: TrackedRun) -> Tracker:
    """Open event files, which get numbers."""
    from torch.utils.tensorboard import SummaryWriter

    # Steps after the one that a resumed run goes on from were rolled back: they are hidden.
    writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=run.begins_at + 1)
    writer.add_text("config", "\n".join(f"    {k}: {v}" for k, v in run.config.items()))

    def log(step: int, metrics: JsonObject, _: Sequence[JsonObject]) -> None:
        for name, value in metrics.items():
            writer.add_scalar(name, value, global_step=step)
        writer.flush()

    return Tracker(log, writer.close)


def weave_project(run: TrackedRun) -> str:
    """Return the project as weave names it: `entity/project` if WANDB_ENTITY is set, which wandb reads."""
    entity = os.environ.get("WANDB_ENTITY")
    return run.project if entity is None or "/" in run.project else f"{entity}/{run.project}"


def open_weave(run: TrackedRun) -> Tracker:
    """Open Weave, which gets each episode as one call. It has no offline mode; the run keeps its episodes
    anyway."""
    if not run.is_online:
        raise RunError("it has no offline mode; the episodes are in trajectories/ of the run")
    import weave

    client = weave.init(weave_project(run))

    def log(step: int, _: JsonObject, trajectories: Sequence[JsonObject]) -> None:
        for trajectory in trajectories:
            told = {"step": step, "task_id": trajectory["task_id"], "prompt": trajectory["prompt"]}
            client.finish_call(client.create_call("episode", told), output=trajectory)

    return Tracker(log, weave.finish)
