"""A run on disk.

config.yaml  manifest.json  status.json  metrics.jsonl  trajectories/  checkpoints/step-000010/  eval/  logs/
start/: only if the run began with adapters that had to be merged
"""

from __future__ import annotations

import json
import logging
import math
import os
import re
import traceback
from collections.abc import Collection, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Self

import jsonlines

from mcpagent.core.hidden_text import printable
from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.errors import RunError, UserError
from mcpagent.storage.atomic import TEMPORARY_PREFIX, remove_leftovers, reported, write_text
from mcpagent.storage.datasets import record_reader, record_writer, write_jsonl
from mcpagent.storage.locks import LOCK_NAME
from mcpagent.storage.packages import now, provenance
from mcpagent.storage.yaml_file import read_yaml

START_FOLDER = "start"  # the whole model that a run began with, if it had to be merged: `train.start`
STATUS_NAME = "status.json"  # how the run stands: `storage.runs`
_DAMAGED = "get the whole run folder again"
_STEP_NAME = re.compile(r"step-([0-9]{6,})")


class RunFolder:
    """The files of one run. One process writes to it at a time: the one that holds its `run_session`."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config_path = path / "config.yaml"  # the resolved configuration that it was started with
        self.trajectories = path / "trajectories"  # the episodes of each step
        self.checkpoints = path / "checkpoints"  # one a step that was saved
        self.evaluations = path / "eval"
        self.logs = path / "logs"  # and what trackers keep offline
        self._metrics_path = path / "metrics.jsonl"

    @classmethod
    def create(
        cls,
        path: Path | str,
        *,
        config_yaml: str,
        manifest: Mapping[str, Any],
        beside: Collection[str] = (),
    ) -> Self:
        """Start a run. `manifest` (hashes, seeds) is kept with the versions and the commit, which are added
        here. Raises UserError if the folder already holds something that `beside` does not name."""
        folder = Path(path)
        if folder.exists() and not (folder.is_dir() and has_not_begun(folder, beside)):
            raise not_empty(folder)
        run = cls(folder)
        for child in (run.trajectories, run.checkpoints, run.evaluations, run.logs):
            child.mkdir(parents=True, exist_ok=True)
        document = {**provenance(), **manifest}
        # config.yaml comes last: a folder that has it is a run.
        write_text(folder / "manifest.json", json.dumps(document, indent=2, ensure_ascii=False) + "\n")
        write_text(folder / "config.yaml", config_yaml, is_settings=True)
        return run

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Return an existing run, finished, stopped or still going on; nothing is changed. Raises
        UserError."""
        folder = Path(path)
        if not (folder / "config.yaml").is_file() or not (folder / "manifest.json").is_file():
            raise UserError(
                "is not a run folder: it lacks config.yaml or manifest.json",
                where=str(folder),
                remedy="name the folder that mcpagent train printed, such as outputs/NAME",
            )
        return cls(folder)

    @property
    def manifest(self) -> JsonObject:
        """Return what the run was made with: versions, data, catalog, seeds. Raises UserError."""
        path = self.path / "manifest.json"
        try:
            return json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError, RecursionError) as error:
            raise UserError(f"cannot be read: {error}", where=str(path), remedy=_DAMAGED) from None

    @property
    def settings(self) -> JsonObject:
        """The configuration that the run was started with, as it is in its file. Raises UserError."""
        settings = read_yaml(self.config_path, remedy=_DAMAGED).data
        if not isinstance(settings, dict):
            raise UserError("holds no settings", where=str(self.config_path), remedy=_DAMAGED)
        return settings

    def append_metrics(self, record: Mapping[str, Any]) -> None:
        """Add one line; it is with the operating system before this returns, so a killed run keeps it.

        Raises ValueError without a whole `step`, RunError for a value that is not finite: nothing after it
        would mean anything.
        """
        if not isinstance(record.get("step"), int):
            raise ValueError("a metrics record needs its step")
        broken = [f"{name} is {value}" for name, value in record.items() if _is_broken(value)]
        if broken:
            raise RunError(
                f"step {record['step']}: {', '.join(broken)}",
                where=str(self._metrics_path),
                remedy="lower optimization.learning_rate and continue from the last checkpoint with --resume",
            )
        with reported(self._metrics_path), self._metrics_path.open("ab") as stream:
            size = stream.tell()
            try:
                record_writer(stream, flush=True).write(record)
            except OSError:
                os.truncate(self._metrics_path, size)
                raise

    def metrics(self) -> list[JsonObject]:
        """Every complete line; a last line that a kill cut short is left out. Raises UserError."""
        if not self._metrics_path.exists():
            return []
        with self._metrics_path.open("rb") as stream:
            try:
                return list(record_reader(stream).iter(type=dict))
            except jsonlines.InvalidLineError as error:
                raise UserError(
                    f"broken JSON: {error.message}",
                    where=f"{self._metrics_path}:{error.lineno}",
                    remedy="delete that line",
                ) from None

    def truncate_after(self, step: int) -> None:
        """Make ready to resume from `step`: drop the metrics, trajectories and evaluations of later steps,
        which will be written again, and what a killed process left half-written."""
        for folder in (self.path, self.trajectories, self.checkpoints, self.evaluations):
            remove_leftovers(folder)
        kept = [record for record in self.metrics() if record["step"] <= step]
        if self._metrics_path.exists():
            write_jsonl(self._metrics_path, kept)
        for folder in (self.trajectories, self.evaluations):
            for path in (*folder.glob("step-*"), *folder.glob("eval_step-*")):
                file_step = step_of(Path(path.name.removeprefix("eval_")))
                if file_step is not None and file_step > step:
                    path.unlink()

    def trajectory_stem(self, step: int) -> Path:
        """Return where `write_trajectories` puts the episodes of a step."""
        return self.trajectories / step_name(step)

    def checkpoint_dir(self, step: int) -> Path:
        """Write it inside `atomic_dir`."""
        return self.checkpoints / step_name(step)

    def all_checkpoints(self) -> list[Path]:
        """Return the complete checkpoints by step. A folder has this name only when it is complete."""
        folders = [path for path in self.checkpoints.glob("step-*") if path.is_dir()]
        return sorted((path for path in folders if step_of(path) is not None), key=lambda p: step_of(p) or 0)

    def latest_checkpoint(self) -> Path | None:
        """Return the complete checkpoint of the highest step."""
        return next(reversed(self.all_checkpoints()), None)


def has_not_begun(folder: Path, beside: Collection[str] = ()) -> bool:
    """Return whether nothing is in the folder but what `beside` names, its lock, and what a process left that
    was killed while it made the folder."""
    return all(
        child.name in beside
        or child.name in ("manifest.json", STATUS_NAME, LOCK_NAME, START_FOLDER)
        or child.name.startswith(TEMPORARY_PREFIX)
        or (child.is_dir() and (child.name == "logs" or not any(child.iterdir())))
        for child in folder.iterdir()
    )


def not_empty(folder: Path) -> UserError:
    """Return the error for a new run in a folder that holds something else."""
    return UserError(
        "the output folder is not empty",
        where=str(folder),
        remedy="continue that run with --resume, or name another folder with --out",
    )


def _is_broken(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def step_name(step: int) -> str:
    """`step-000010`."""
    return f"step-{step:06d}"


def step_of(path: Path) -> int | None:
    """Return the step in the name of a checkpoint or trajectory file; None if it has none."""
    match = _STEP_NAME.match(path.name)
    return int(match[1]) if match else None


# Libraries whose loggers hand nothing on to the root once they are set up.
_OWN_HANDLERS = ("transformers", "huggingface_hub", "vllm")


def is_debugging() -> bool:
    """Return whether logs get tracebacks and all messages of libraries, as with `--debug`."""
    return logging.getLogger().isEnabledFor(logging.DEBUG)


class RunLog(logging.Handler):
    """Appends to the file; `step` is the step that is being made. A disk that is full does not end the run
    here but where it writes what counts."""

    def __init__(self, path: Path) -> None:
        super().__init__(logging.DEBUG if is_debugging() else logging.WARNING)
        self.path = path
        self.step = 0
        self._latest: logging.LogRecord | None = None

    def write(self, text: str) -> None:
        """One entry; lines after its first are indented."""
        clean = printable(SECRETS.text(text)).replace("\n", "\n    ")
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with self.path.open("a", encoding="utf-8") as stream:
                stream.write(f"{now()} step {self.step}: {clean}\n")

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record of the logging module as a line of the run's log."""
        if record is self._latest:
            return  # it came by its library's logger and by the root
        self._latest = record
        text = f"{record.levelname.lower()} {record.name}: {record.getMessage()}"
        if is_debugging() and record.exc_info and record.exc_info[0] is not None:
            text += "\n" + "".join(traceback.format_exception(*record.exc_info)).rstrip()
        self.write(text)


@contextmanager
def run_log(folder: Path) -> Iterator[RunLog]:
    """The log of the run in `folder`, which gets the warnings of libraries too and what ends the block."""
    log, root = RunLog(folder / "logs" / "run.log"), logging.getLogger()
    loggers = [root, *map(logging.getLogger, _OWN_HANDLERS)]
    for logger in loggers:
        logger.addHandler(log)
    logging.captureWarnings(True)
    try:
        yield log
    except KeyboardInterrupt:
        log.write("interrupted")
        raise
    except Exception as error:
        trace = traceback.format_exc().rstrip() if is_debugging() else f"{type(error).__name__}: {error}"
        log.write(f"failed: {trace}")
        raise
    finally:
        logging.captureWarnings(False)
        for logger in loggers:
            logger.removeHandler(log)
