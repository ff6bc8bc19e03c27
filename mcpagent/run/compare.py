"""Two models played on the same tasks: one cassette, the same seeds and limits, and one result of both."""

from __future__ import annotations

import json
import shutil
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.errors import RunError, UserError
from mcpagent.evaluate.compare import POINTS, Comparison, compare
from mcpagent.evaluate.summary import EvalResult
from mcpagent.interrupts import Interrupted
from mcpagent.run.episodes import open_tasks, refuse_policy
from mcpagent.run.evaluate import EpisodeStream, EvalOutcome, evaluate_model
from mcpagent.run.rollout import check_writable
from mcpagent.storage.atomic import write_text
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import token_file

RESULT, CASSETTE = "comparison.json", "cassette"
_SIDES = ("a", "b")
_CONDITIONS = ("seed", "samples", "temperature", "max_new_tokens", "max_turns", "catalog_hash")


@dataclass(frozen=True, kw_only=True)
class PlayedComparison:
    """Both results, what their comparison says, and the folder that holds them."""

    models: tuple[str, str]
    results: tuple[EvalResult, EvalResult]
    comparison: Comparison
    folder: Path | None

    def as_json(self) -> JsonObject:
        """The document of `eval compare --on --json`."""
        facts = self.results[0].provenance
        return {
            **self.comparison.model_dump(mode="json"),
            "models": dict(zip(_SIDES, self.models, strict=True)),
            "policies": {s: r.provenance["policy"] for s, r in zip(_SIDES, self.results, strict=True)},
            "dataset": facts["dataset"],
            "conditions": {name: facts[name] for name in _CONDITIONS},
            "cassette": {side: r.cassette for side, r in zip(_SIDES, self.results, strict=True)},
            "calibration": {n: row.model_dump(mode="json") for n, row in self.results[0].calibration.items()},
            "folder": None if self.folder is None else str(self.folder),
        }


def play_both(
    models: tuple[str, str],
    configs: tuple[TrainConfig, TrainConfig],
    *,
    data: Path,
    samples: int = 1,
    points: float = POINTS,
    out: Path | None = None,
    resume: bool = False,
    overwrite: bool = False,
    console: Console | None = None,
) -> PlayedComparison:
    """Play `samples` attempts at each task of `data` by both models and compare them task by task. The
    configurations must differ in nothing but what belongs to the model. What a tool answered once, to either,
    it answers again: calls go through the cassette that the configuration names, else through one of their
    own. With `out` the folder keeps `a.json`, `b.json`, their episodes, the cassette and `comparison.json`;
    `resume` plays what of it is missing or could not be scored. Raises UserError before anything is written,
    RunError where nothing of one side could be scored."""
    console = console or Console()
    if configs[0].tools.cassette_mode == "off":
        raise UserError(
            "both are played on one cassette",
            where="tools.cassette_mode: off",
            remedy="leave it out, or choose replay, record or strict",
        )
    if resume and out is None:
        raise UserError("goes on with what --out names", where="--resume", remedy="add --out FOLDER")
    for model in models:
        refuse_policy(model)
    open_tasks(configs[0], data).close()
    with ExitStack() as stack:
        if out is None:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="mcpagent-compare-")))
        else:
            folder = out
            _check_folder(folder, resume=resume, overwrite=overwrite)
            stack.enter_context(locked_file(folder / RESULT))
            if overwrite and not resume:
                _clear(folder)
        try:
            results = _played(models, configs, data, samples, folder, resume=resume, console=console)
        except KeyboardInterrupt as interrupt:
            if out is None or not _present(out):
                raise KeyboardInterrupt from interrupt  # the folder of one side's episodes goes with it
            raise Interrupted(f"{out} keeps the episodes that ended", option="--resume") from interrupt
        with open_tasks(configs[0], data) as tasks:
            comparison = compare(*results, tasks=tasks, points=points)
        outcome = PlayedComparison(models=models, results=results, comparison=comparison, folder=out)
        if out is not None:
            write_text(folder / RESULT, json.dumps(outcome.as_json(), indent=1) + "\n")
    return outcome


def _played(
    models: tuple[str, str],
    configs: tuple[TrainConfig, TrainConfig],
    data: Path,
    samples: int,
    folder: Path,
    *,
    resume: bool,
    console: Console,
) -> tuple[EvalResult, EvalResult]:
    outcomes: list[EvalOutcome] = []
    for side, model, config in zip(_SIDES, models, configs, strict=True):
        console.note(f"{side}: {model}")
        result = folder / f"{side}.json"
        begun = result.exists() or EpisodeStream.path_of(result).exists()
        outcome = evaluate_model(
            _on_cassette(config, folder, is_first=side == _SIDES[0]),
            model=model,
            data=data,
            samples=samples,
            out=result,
            retry_infra=resume and begun,
            calibrate=side == _SIDES[0],
            keep=False,
            console=console,
        )
        if outcome.failure is not None:
            raise RunError(
                f"no episode of {model} could be scored; the first error: {outcome.failure}",
                where=side,
                remedy="once the servers hold, the same command with --out FOLDER --resume goes on",
            )
        outcomes.append(outcome)
    return outcomes[0].result, outcomes[1].result


def _on_cassette(config: TrainConfig, folder: Path, *, is_first: bool) -> TrainConfig:
    """What `record` asks anew is recorded by the first; the second hears the same."""
    tools = config.tools
    mode = "replay" if tools.cassette_mode == "record" and not is_first else tools.cassette_mode
    update = {"cassette": tools.cassette or str(folder / CASSETTE), "cassette_mode": mode}
    return config.model_copy(update={"tools": tools.model_copy(update=update)})


def _files(folder: Path) -> list[Path]:
    """All that a comparison writes but the cassette."""
    results = [folder / f"{side}.json" for side in _SIDES]
    beside = [[r, r.with_suffix(".jsonl.zst"), EpisodeStream.path_of(r)] for r in results]
    files = [path for each in beside for path in (*each, token_file(each[1]))]
    return [folder / RESULT, *files]


def _present(folder: Path) -> list[str]:
    return [path.name for path in (*_files(folder), folder / CASSETTE) if path.exists()]


def _check_folder(folder: Path, *, resume: bool, overwrite: bool) -> None:
    check_writable(folder / RESULT)
    there = _present(folder)
    if there and not (resume or overwrite):
        raise UserError(
            f"holds a comparison already ({there[0]})",
            where=str(folder),
            remedy="go on with it with --resume, begin anew with --overwrite, or name another folder",
        )
    if resume and not there:
        raise UserError(
            "holds no comparison to go on with", where=str(folder), remedy="begin one, without --resume"
        )


def _clear(folder: Path) -> None:
    for path in _files(folder):
        path.unlink(missing_ok=True)
    shutil.rmtree(folder / CASSETTE, ignore_errors=True)
