"""The runs in a folder: their names, how each one stands, and the session of the process that writes one."""

from __future__ import annotations

import itertools
import json
import re
import shutil
import string
from collections.abc import Collection, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal

from mcpagent.core.records import JsonObject
from mcpagent.errors import InUseError, MCPAgentError, UserError
from mcpagent.storage.atomic import write_text
from mcpagent.storage.locks import LOCK_NAME, holder, locked_folder, read_json_object, this_process
from mcpagent.storage.packages import now
from mcpagent.storage.run_folder import STATUS_NAME, RunFolder, has_not_begun, not_empty

RunState = Literal["running", "finished", "interrupted", "failed"]

# What a run, and a quickstart, measures of itself once training is over.
_AFTER_TRAINING = ("best.json", "trained.json")
_WARM_START = "warm_start"  # in the folder of a quickstart
_DEFAULT_NAME = re.compile(r"train-(\d{4}-\d{2}-\d{2})-([a-z]+)")


def planned_folder(parent: Path, name: str | None) -> Path:
    """Return where a new run would be kept; nothing is made. Without a name it is the first free default one
    of today: train-2026-11-22-a, then -b ... -z, -aa ..."""
    if name is not None:
        return parent / name
    today = f"{datetime.now().astimezone():%Y-%m-%d}"
    folders = (parent / f"train-{today}-{letters}" for letters in _letters())
    return next(folder for folder in folders if not folder.exists())


def last_run(parent: Path, *, kind: str) -> Path:
    """Return the latest run with a default name that `kind` (grpo, ppo, sft) made. Raises UserError."""
    candidates = [
        (match[1], len(match[2]), match[2], path)
        for path in (parent.iterdir() if parent.is_dir() else ())
        if (match := _DEFAULT_NAME.fullmatch(path.name))
        and read_json_object(path / STATUS_NAME).get("kind") == kind
    ]
    if not candidates:
        raise UserError(
            f"there is no {kind} run to resume here",
            where=str(parent),
            remedy=f"name the run: --out {parent}/NAME (mcpagent runs {parent} lists them), or start one "
            "without --resume",
        )
    return max(candidates)[-1]


@dataclass
class RunSession:
    """The part of a run that this process plays: from its lock to the state that it leaves."""

    folder: Path
    kind: str
    total_steps: int | None = None
    started_at: str = field(default_factory=now)
    state: RunState = "finished"
    reason: str | None = None
    has_begun: bool = False

    def begin(self, total_steps: int | None = None) -> None:
        """The folder is a run from now on. A process that is killed leaves this behind."""
        self.has_begun = True
        self.total_steps = total_steps if total_steps is not None else self.total_steps
        self._write("running", ended_at=None)

    def end(self, reason: str, *, has_failed: bool = False) -> None:
        """Keep why the run ends, if no exception says so."""
        self.state, self.reason = ("failed" if has_failed else "finished"), reason

    def close(self, error: BaseException | None) -> None:
        """Leave the last state, which `error` decides if there is one."""
        if isinstance(error, KeyboardInterrupt):
            self.state, self.reason = "interrupted", None
        elif error is not None:
            message = (
                error.message if isinstance(error, MCPAgentError) else f"{type(error).__name__}: {error}"
            )
            self.state, self.reason = "failed", message
        self._write(self.state, ended_at=now())

    def _write(self, state: RunState, *, ended_at: str | None) -> None:
        document = {
            "schema_version": 1,
            "kind": self.kind,
            "state": state,
            "reason": None if state == "running" else self.reason,
            "total_steps": self.total_steps,
            "started_at": self.started_at,
            "ended_at": ended_at,
            "process": this_process(),
        }
        write_text(self.folder / STATUS_NAME, json.dumps(document, indent=1) + "\n")


_sessions: dict[Path, RunSession] = {}


@contextmanager
def run_session(folder: Path, *, kind: str) -> Iterator[RunSession]:
    """Locks the run folder, and writes at the end how the run stands; a session inside another one of the
    same folder is that one. A start that fails before the folder is a run leaves nothing. Raises InUseError
    and UserError."""
    place = folder.resolve()
    if place in _sessions:
        yield _sessions[place]
        return
    with ExitStack() as stack:
        stack.enter_context(locked_folder(folder))
        session = _sessions[place] = RunSession(folder, kind)
        stack.callback(_sessions.pop, place)
        before = {path.name for path in folder.iterdir()}
        error: BaseException | None = None
        try:
            yield session
        except BaseException as raised:
            error = raised
            raise
        finally:
            if session.has_begun:
                session.close(error)
            elif not is_run(folder):
                _remove_new(folder, before)


@contextmanager
def new_session(
    parent: Path, name: str | None, *, kind: str, beside: Collection[str] = ()
) -> Iterator[RunSession]:
    """The session of a new run `parent/name`; without a name, under the next default one. Raises UserError
    if the folder already holds something that `beside` does not name."""
    while True:
        with ExitStack() as stack:
            folder = planned_folder(parent, name)
            try:
                session = stack.enter_context(run_session(folder, kind=kind))
            except InUseError:
                if name is None:
                    continue  # another process was faster
                raise
            if has_not_begun(folder, beside):
                yield session
                return
            if name is not None:
                raise not_empty(folder)


@dataclass(frozen=True, kw_only=True)
class RunInfo:
    """The state of a run. `success` is that on the held-out tasks after training, else the best on the
    validation set, else that of its last step's episodes; `success_of` says which. `warm_start` is the run of
    a quickstart's warm start, until its own steps begin."""

    name: str
    path: str
    kind: str
    state: RunState
    reason: str | None
    steps: int
    total_steps: int | None
    success: float | None
    success_of: Literal["heldout", "validation", "training"] | None
    started_at: str | None
    ended_at: str | None
    process: JsonObject | None
    warm_start: RunInfo | None = None


def is_run(folder: Path) -> bool:
    """Return whether a run was begun in this folder."""
    return (folder / STATUS_NAME).is_file() or (folder / "config.yaml").is_file()


def list_runs(parent: Path) -> list[RunInfo]:
    """Return the runs directly in `parent`, the one that was started last first. Raises UserError."""
    if not parent.is_dir():
        raise UserError(
            "there is no such folder", where=str(parent), remedy="name the folder that holds the runs"
        )
    run_infos = [_info(path) for path in parent.iterdir() if path.is_dir() and is_run(path)]
    return sorted(run_infos, key=lambda run: (run.started_at or "", run.name), reverse=True)


def _info(folder: Path) -> RunInfo:
    run, status, process = RunFolder(folder), read_json_object(folder / STATUS_NAME), holder(folder)
    metrics = run.metrics()
    steps = metrics[-1]["step"] if metrics else 0
    success, of = success_of(run)
    warm_start = folder / _WARM_START
    return RunInfo(
        name=folder.name,
        path=str(folder),
        kind=status.get("kind", "unknown"),
        state="running" if process is not None else _state(status),
        reason=None if process is not None else status.get("reason"),
        steps=steps,
        total_steps=status.get("total_steps"),
        success=success,
        success_of=of,
        started_at=status.get("started_at"),
        ended_at=None if process is not None else status.get("ended_at"),
        process=process,
        warm_start=_info(warm_start) if not steps and is_run(warm_start) else None,
    )


def success_of(run: RunFolder) -> tuple[float | None, Literal["heldout", "validation", "training"] | None]:
    """Return the success of a run, and what it was measured on: the held-out tasks after training, else the
    validation set (the best value), else the episodes of the last step."""
    metrics = run.metrics()
    for name in _AFTER_TRAINING:
        try:
            document = json.loads((run.evaluations / name).read_text(encoding="utf-8"))
            if (measured := document["metrics"]["task_success"]["value"]) is not None:
                return measured, "heldout"
        except (OSError, ValueError, LookupError, TypeError):
            continue
    validated = [value for record in metrics if (value := record.get("validation_success")) is not None]
    if validated:
        return max(validated), "validation"
    trained = metrics[-1].get("success_rate") if metrics else None
    return trained, None if trained is None else "training"


def _state(status: JsonObject) -> RunState:
    """Return the state of a run that no process writes: a killed one leaves "running"."""
    state = status.get("state")
    return state if state in ("finished", "failed") else "interrupted"


def _letters() -> Iterator[str]:
    for length in itertools.count(1):
        for letters in itertools.product(string.ascii_lowercase, repeat=length):
            yield "".join(letters)


def _remove_new(folder: Path, before: set[str]) -> None:
    for path in folder.iterdir():
        if path.name not in before and path.name != LOCK_NAME:
            shutil.rmtree(path) if path.is_dir() else path.unlink()
