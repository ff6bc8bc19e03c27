"""A run folder as the report sees it: read once, tolerant of what a run did not write."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from mcpagent.core.records import JsonObject, Metric, OpenRecord, describe
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.report.episodes import EpisodeFiles, NonceCount
from mcpagent.evaluate.stored import read_document
from mcpagent.evaluate.summary import BEST, COMPLEXITIES, UNTRAINED, EvalResult
from mcpagent.storage.run_folder import RunFolder
from mcpagent.tools.metrics import PoolMetrics

# The two sides of a run as the keys of its evaluations, each maybe with SAMPLED: the stems of the files that
# the quickstart writes under eval/. `_sides` finds them among those of any other run.
BEFORE, AFTER = "warm_start", "trained"
SAMPLED = "_sampled"
_CONTROLS = "controls.json"  # in the folder of the evaluations
_BROKEN = "write the file again, or delete it"


class Control(OpenRecord):
    """A control experiment with the same budget as the run."""

    name: str
    what: str = ""
    cpu_s: float | None = None
    greedy: Metric | None = None
    sampled: Metric | None = None


@dataclass(frozen=True)
class TaskPair:
    """First attempts at one task before and after training."""

    before: Trajectory
    after: Trajectory


@dataclass(frozen=True)
class RunView:
    """A run folder in memory. `steps` are the lines of metrics.jsonl, in the order of their steps."""

    path: Path
    steps: list[JsonObject]
    manifest: JsonObject = field(default_factory=dict)
    config_text: str = ""
    config: JsonObject = field(default_factory=dict)
    evaluations: dict[str, EvalResult] = field(default_factory=dict)  # by side; others by their file's stem
    validations: dict[str, EvalResult] = field(default_factory=dict)  # those of steps, while it trained
    controls: list[Control] = field(default_factory=list)
    pairs: list[TaskPair] = field(default_factory=list)
    nonces: NonceCount = field(default_factory=NonceCount)
    episodes: EpisodeFiles | None = None
    tool_metrics: PoolMetrics | None = None  # of the last step: since the servers were last started

    @property
    def suffix(self) -> str:
        """The suffix of the evaluations that verdicts use: greedy ones, else sampled ones."""
        return SAMPLED if AFTER not in self.evaluations and AFTER + SAMPLED in self.evaluations else ""

    @property
    def split(self) -> str:
        """The name of the split that the last evaluation used."""
        after = self.evaluations.get(AFTER + self.suffix)
        facts = after.provenance if after is not None else {}
        named = facts.get("split") or Path(str((facts.get("dataset") or {}).get("path", "held-out"))).stem
        return {"heldout": "held-out"}.get(str(named), str(named))

    def series(self, key: str) -> list[float | None]:
        """Return one value a step; None if the step did not report a finite number."""
        return [_finite(row.get(key)) for row in self.steps]

    def values(self, key: str) -> list[float]:
        """Return the finite values of `key`, in the order of the steps."""
        return [v for v in self.series(key) if v is not None]


def read_run(run_dir: Path, *, episodes: EpisodeFiles | None = None) -> RunView:
    """Read a run folder; of its trajectories only what has changed since `episodes` last looked. Raises
    UserError when it is missing, holds no step or a file that cannot be read."""
    if not run_dir.is_dir():
        raise UserError(
            f"{run_dir} is not a run folder",
            remedy="pass the folder that `mcpagent train` or `mcpagent quickstart` printed",
        )
    steps = _read_steps(run_dir)
    config_text, config = read_config(run_dir)
    evaluations, validations, sources = _sides(read_evaluations(run_dir / "eval"))
    episodes = EpisodeFiles(run_dir / "trajectories") if episodes is None else episodes
    episodes.refresh()
    controls = run_dir / "eval" / _CONTROLS
    return RunView(
        path=run_dir,
        steps=steps,
        manifest=read_object(run_dir / "manifest.json"),
        config_text=config_text,
        config=config,
        evaluations=evaluations,
        validations=validations,
        controls=read_document(controls, list[Control], wrong="is not a list of controls", remedy=_BROKEN)
        if controls.exists()
        else [],
        pairs=_pairs(episodes, sources),
        nonces=episodes.nonces,
        episodes=episodes,
        tool_metrics=_last_tool_metrics(steps, run_dir / "metrics.jsonl"),
    )


def _last_tool_metrics(steps: Sequence[JsonObject], path: Path) -> PoolMetrics | None:
    told = next((row["tool_metrics"] for row in reversed(steps) if "tool_metrics" in row), None)
    try:
        return None if told is None else PoolMetrics.model_validate(told)
    except ValidationError as error:
        wrong = f"tool_metrics cannot be read: {describe(error.errors()[0])}"
        raise UserError(wrong, where=str(path), remedy=_BROKEN) from None


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
        path = run_dir / "metrics.jsonl"
        raise UserError("a line has no whole number as its step", where=str(path), remedy=_BROKEN)
    # A step that was trained again after a resume counts once, as it was last.
    by_step = {row["step"]: row for row in rows}
    return [by_step[step] for step in sorted(by_step)]


def read_object(path: Path) -> JsonObject:
    """Read the JSON object of a file, {} without the file. Raises UserError."""
    if not path.exists():
        return {}
    return read_document(path, JsonObject, wrong="is not a JSON object", remedy=_BROKEN)


def read_config(run_dir: Path) -> tuple[str, JsonObject]:
    """Read the settings of a run as text and as what it means; nothing without the file. Raises
    UserError."""
    run = RunFolder(run_dir)
    if not run.config_path.exists():
        return "", {}
    return run.config_path.read_text(encoding="utf-8"), run.settings


def read_evaluations(folder: Path) -> dict[str, EvalResult]:
    """Read the evaluations of a folder by their file's stem. Raises UserError."""
    return {
        path.stem: read_document(path, EvalResult, wrong="is not an evaluation", remedy=_BROKEN)
        for path in sorted(folder.glob("*.json"))
        if path != folder / _CONTROLS
    }


def _sides(
    stored: dict[str, EvalResult],
) -> tuple[dict[str, EvalResult], dict[str, EvalResult], dict[str, str]]:
    """Return evaluations by side, validations of steps, and for each side the stem of its file. The sides are
    what the quickstart or the run itself measured, else what `mcpagent eval` kept of the first and the last
    weights."""
    validations = {stem: e for stem, e in stored.items() if re.fullmatch(r"step-\d+", stem)}
    rest = {stem: e for stem, e in stored.items() if stem not in validations}
    stem_of_side = {stem: stem for stem in rest if stem.removesuffix(SAMPLED) in (BEFORE, AFTER)}
    if not stem_of_side:
        for suffix, is_sampled in (("", False), (SAMPLED, True)):
            alike = {s: e for s, e in rest.items() if bool(e.provenance.get("temperature")) is is_sampled}
            before, after = _pair(alike)
            stem_of_side |= {BEFORE + suffix: before} if before else {}
            stem_of_side |= {AFTER + suffix: after} if after else {}
    named = {side: rest[stem] for side, stem in stem_of_side.items()}
    others = {stem: e for stem, e in rest.items() if stem not in stem_of_side.values()}
    return named | others, validations, stem_of_side


def _pair(alike: dict[str, EvalResult]) -> tuple[str | None, str | None]:
    """Return the stems of the evaluations before and after training: of the same tasks if there are such, of
    the latest step."""

    def step(stem: str) -> int:
        return int(alike[stem].provenance.get("step") or 0)

    without_shots = {s: e for s, e in alike.items() if not (e.provenance.get("shots") or {}).get("count")}
    with_step = [stem for stem, e in without_shots.items() if isinstance(e.provenance.get("step"), int)]
    firsts = [stem for stem in with_step if step(stem) == 0 and stem != BEST]
    lasts = [stem for stem in with_step if step(stem) > 0 or stem == BEST]  # a start may stay the best
    pairs = [(a, b) for a in firsts for b in lasts if alike[a].tasks.keys() & alike[b].tasks.keys()]
    if pairs:
        return max(pairs, key=lambda pair: (pair == (UNTRAINED, BEST), step(pair[1]), pair))
    return (
        max(firsts, key=lambda stem: (stem == UNTRAINED, stem), default=None),
        max(lasts, key=lambda stem: (stem == BEST, step(stem), stem), default=None),
    )


def _pairs(episodes: EpisodeFiles, sources: dict[str, str]) -> list[TaskPair]:
    """Return the tasks that the evaluations before and after training both have."""
    greedy = any(side in sources for side in (BEFORE, AFTER))
    stems = [sources.get(side if greedy else side + SAMPLED) for side in (BEFORE, AFTER)]
    files = [episodes.files.get(f"eval_{stem}") for stem in stems]
    before, after = ({} if file is None else file.first_attempts for file in files)
    return [TaskPair(before[name], after[name]) for name in sorted(before.keys() & after.keys())]


# (succeeded before, succeeded after, how many are shown): learned, still failing, got worse, always right.
FATES = ((False, True, 3), (False, False, 2), (True, False, 2), (True, True, 1))


def choose(pairs: Sequence[TaskPair]) -> list[TaskPair]:
    """Return a handful of tasks, failures and regressions included, the hardest first within each outcome."""
    ranked = sorted(pairs, key=lambda pair: -_difficulty(pair.after))
    shown: list[TaskPair] = []
    for *fate, count in FATES:
        shown += [p for p in ranked if [p.before.is_success, p.after.is_success] == fate][:count]
    return shown


def _difficulty(trajectory: Trajectory) -> int:
    return COMPLEXITIES.index(trajectory.complexity) if trajectory.complexity in COMPLEXITIES else -1
