"""A run folder as the report sees it: read once, tolerant of what a run did not write."""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from mcpagent.core.metrics import Metric
from mcpagent.core.records import JsonObject, OpenRecord
from mcpagent.core.tools import NONCE_META_KEY, FailureKind
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.summary import EvalResult
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.metrics import PoolMetrics

BEFORE, AFTER = "warm_start", "trained"  # file stems under eval/, each maybe with _sampled
SAMPLED = "_sampled"
_NOT_SENT = {
    FailureKind.UNKNOWN_TOOL,
    FailureKind.INVALID_ARGUMENTS,
    FailureKind.DENIED,
    FailureKind.LIMIT,
}


class Control(OpenRecord):
    """Something else that was tried with the same budget."""

    name: str
    what: str = ""
    cpu_s: float | None = None
    greedy: Metric | None = None
    sampled: Metric | None = None


@dataclass(frozen=True)
class TaskPair:
    """First attempts at one task before and after training; either may be absent."""

    task_id: str
    before: Trajectory | None
    after: Trajectory | None


@dataclass
class NonceCount:
    """By server: results that came from it, how many of them carry the nonce that it stamps, and results that
    a cassette replayed, for which no server was asked."""

    trajectories: int = 0
    results: Counter[str] = field(default_factory=Counter)
    stamped: Counter[str] = field(default_factory=Counter)
    replayed: Counter[str] = field(default_factory=Counter)

    def add(self, trajectory: Trajectory) -> None:
        self.trajectories += 1
        for result in trajectory.tool_results:
            # Refused by the environment itself, or lost on the way: no server answered.
            if result.failure in _NOT_SENT or (result.failure and result.failure.is_infrastructure):
                continue
            if result.from_cassette:
                self.replayed[result.server] += 1
                continue
            self.results[result.server] += 1
            self.stamped[result.server] += NONCE_META_KEY in result.meta


@dataclass(frozen=True)
class RunView:
    """What is in a run folder. `steps` are the lines of metrics.jsonl, in the order of their steps."""

    path: Path
    steps: list[JsonObject]
    manifest: JsonObject = field(default_factory=dict)
    config_text: str = ""
    config: JsonObject = field(default_factory=dict)
    evaluations: dict[str, EvalResult] = field(default_factory=dict)
    controls: list[Control] = field(default_factory=list)
    pairs: list[TaskPair] = field(default_factory=list)
    nonces: NonceCount = field(default_factory=NonceCount)
    tool_metrics: PoolMetrics | None = None  # of the last step: since the servers were last started

    def series(self, key: str) -> list[float | None]:
        """One value a step; None where the step did not report a finite number."""
        return [_finite(row.get(key)) for row in self.steps]

    def values(self, key: str) -> list[float]:
        """The steps that did report a number."""
        return [v for v in self.series(key) if v is not None]


def read_run(run_dir: Path) -> RunView:
    """Raises UserError when the folder is missing, holds no step, or holds a file that cannot be read."""
    if not run_dir.is_dir():
        raise UserError(
            f"there is no run folder {run_dir}",
            remedy="pass the folder that `mcpagent train` or `mcpagent quickstart` printed",
        )
    steps = _read_steps(run_dir)
    config_path = run_dir / "config.yaml"
    config_text = config_path.read_text(encoding="utf-8") if config_path.exists() else ""
    pairs, nonces = _read_trajectories(run_dir / "trajectories")
    told = next((row["tool_metrics"] for row in reversed(steps) if "tool_metrics" in row), None)
    return RunView(
        path=run_dir,
        steps=steps,
        manifest=_read_object(run_dir / "manifest.json"),
        config_text=config_text,
        config=_parse_yaml(config_text, config_path),
        evaluations=_read_evaluations(run_dir / "eval"),
        controls=_read_controls(run_dir / "eval" / "controls.json"),
        pairs=pairs,
        nonces=nonces,
        tool_metrics=None if told is None else _tool_metrics(told, run_dir / "metrics.jsonl"),
    )


def _finite(value: Any) -> float | None:
    usable = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    return float(value) if usable else None


def _read_steps(run_dir: Path) -> list[JsonObject]:
    rows = RunFolder(run_dir).metrics()
    if not rows:
        raise UserError(
            f"{run_dir} holds no metrics.jsonl with a step, so there is nothing to report",
            remedy="wait for the first step, or start it: mcpagent train",
        )
    if any(not isinstance(row.get("step"), int) for row in rows):
        raise _bad_file(run_dir / "metrics.jsonl", "a line has no whole number as its step")
    # A step that was trained again after a resume counts once, as it was last.
    by_step = {row["step"]: row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def _read_json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise _bad_file(path, f"not JSON: {error}") from error


def _read_object(path: Path) -> JsonObject:
    document = _read_json(path) if path.exists() else {}
    if not isinstance(document, dict):
        raise _bad_file(path, "expected a JSON object")
    return document


def _tool_metrics(document: Any, path: Path) -> PoolMetrics:
    try:
        return PoolMetrics.model_validate(document)
    except ValidationError as error:
        raise _bad_file(path, f"tool_metrics cannot be read: {_first(error)}") from error


def _parse_yaml(text: str, path: Path) -> JsonObject:
    try:
        document = yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise _bad_file(path, f"not YAML: {error}") from error
    return document if isinstance(document, dict) else {}


def _read_evaluations(folder: Path) -> dict[str, EvalResult]:
    found: dict[str, EvalResult] = {}
    for path in sorted(folder.glob("*.json")):
        if path.stem == "controls":
            continue
        try:
            found[path.stem] = EvalResult.model_validate(_read_object(path))
        except ValidationError as error:
            raise _bad_file(path, f"not an evaluation: {_first(error)}") from error
    return found


def _read_controls(path: Path) -> list[Control]:
    if not path.exists():
        return []
    document = _read_json(path)
    if not isinstance(document, list):
        raise _bad_file(path, "expected a JSON array of controls")
    try:
        return [Control.model_validate(entry) for entry in document]
    except ValidationError as error:
        raise _bad_file(path, f"not a control: {_first(error)}") from error


def _bad_file(path: Path, message: str) -> UserError:
    return UserError(message, where=str(path), remedy="write the file again, or delete it")


def _first(error: ValidationError) -> str:
    first = error.errors()[0]
    return f"{'.'.join(str(part) for part in first['loc'])}: {first['msg']}"


def _read_trajectories(folder: Path) -> tuple[list[TaskPair], NonceCount]:
    nonces = NonceCount()
    sides: dict[str, dict[str, Trajectory]] = {BEFORE: {}, AFTER: {}}
    for path in sorted(folder.glob("[!.]*.jsonl*")):
        side = _side(path)
        for trajectory in _counted(read_trajectories(path, with_tokens=False), nonces):
            if side is not None and trajectory.attempt == 0:
                sides[side].setdefault(trajectory.task_id, trajectory)
    before, after = sides[BEFORE], sides[AFTER]
    task_ids = sorted(before.keys() | after.keys())
    return [TaskPair(task_id=t, before=before.get(t), after=after.get(t)) for t in task_ids], nonces


def _counted(trajectories: Iterable[Trajectory], nonces: NonceCount) -> Iterator[Trajectory]:
    for trajectory in trajectories:
        nonces.add(trajectory)
        yield trajectory


def _side(path: Path) -> str | None:
    """Greedy evaluations only: `eval_trained.jsonl.zst` and `trained.jsonl.zst` are the after side."""
    stem = path.name.split(".", 1)[0]
    return next((side for side in (BEFORE, AFTER) if stem in (side, f"eval_{side}")), None)
