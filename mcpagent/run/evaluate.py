"""Evaluate a model on a dataset, and compare two evaluations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from pydantic import ValidationError

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject, describe
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.summary import (
    EvalResult,
    EvalSummary,
    evaluate,
    summarise,
)
from mcpagent.reward.terms import load_reward, regraded
from mcpagent.run.episodes import EpisodeSetup, open_episodes
from mcpagent.run.rollout import check_writable, episode_progress
from mcpagent.storage.atomic import write_text
from mcpagent.storage.checkpoints import run_of
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.json_stream import reading
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, read_trajectories, write_trajectories

# What two evaluations must share for their difference to say something about the model, and its name.
_CONDITIONS = {
    "dataset.sha256": "the data",
    "catalog_hash": "the tools",
    "temperature": "the temperature",
    "samples": "the number of attempts",
    "max_new_tokens": "the limit of tokens a turn",
    "max_turns": "the limit of turns",
    "reward": "the reward",
    "policy.chat_template_sha256": "the chat template",
}


@dataclass(frozen=True, kw_only=True)
class EvalOutcome:
    """`failure` is the first error of an evaluation in which no episode could be scored; `in_run` where the
    result was stored in the run that the checkpoint is of."""

    result: EvalResult
    path: Path | None
    trajectories: Path | None
    in_run: Path | None
    failure: str | None


def evaluate_model(
    config: TrainConfig,
    *,
    model: str,
    data: Path | None = None,
    samples: int = 1,
    out: Path | None = None,
    shard: tuple[int, int] = (1, 1),
    console: Console | None = None,
) -> EvalOutcome:
    """`samples` attempts at each task by `model` (a checkpoint or run folder, a hub id, or `openai:NAME`),
    sampled as the `rollout` section of `config` says, `deterministic` included.
    With `out`, a .json file, the result is written there and the trajectories beside it; that of a checkpoint
    of a run is kept in the run too, for its report and model card. Raises UserError; then nothing is
    written."""
    console = console or Console()
    if out is not None:
        check_evaluation_path(out)
    with open_episodes(
        config, policy=model, samples=samples, console=console, data=data, shard=shard
    ) as setup:
        if samples > 1 and setup.settings.sampling.temperature == 0.0:
            console.note(f"at temperature 0 all {samples} attempts at a task are the same")
        with episode_progress(console, "Evaluation", total=len(setup.tasks) * samples) as on_done:
            trajectories = evaluate_on(setup, samples=samples, on_done=on_done)
        breakdown = break_down(setup.tasks, trajectories)
        provenance = setup.provenance(samples=samples)
        run_checkpoint = _run_of(setup) if shard[1] == 1 else None  # a shard says nothing of the whole
        if shard[1] > 1:
            provenance["shard"] = f"{shard[0]}/{shard[1]}"
        if run_checkpoint is not None:
            provenance["step"] = step_of(run_checkpoint[1])
        cassette = setup.tools.take_cassette_counts()
        tool_metrics = setup.tools.pool.metrics()
    result = summarise(trajectories).with_provenance(
        provenance, cassette=cassette, tool_metrics=tool_metrics, breakdown=breakdown
    )
    stored = None
    if out is not None:
        stored = write_trajectories(out.with_suffix(""), trajectories)
        write_text(out, result.model_dump_json(indent=1) + "\n")
    in_run = None if run_checkpoint is None else _keep_in_run(*run_checkpoint, result, trajectories, console)
    errors = [error for trajectory in trajectories for error in trajectory.errors]
    failure = (errors or ["no reward could be computed"])[0] if result.unscored == result.n_episodes else None
    return EvalOutcome(result=result, path=out, trajectories=stored, in_run=in_run, failure=failure)


def _run_of(setup: EpisodeSetup) -> tuple[RunFolder, Path] | None:
    """The run whose checkpoint was evaluated, and that checkpoint; None for any other model."""
    identity = setup.ready.identity
    if "weights_sha256" not in identity:
        return None
    checkpoint = Path(identity["path"])
    run = run_of(checkpoint)
    return None if run is None else (run, checkpoint)


def _keep_in_run(
    run: RunFolder, checkpoint: Path, result: EvalResult, trajectories: list[Trajectory], console: Console
) -> Path | None:
    """`eval/step-000040-heldout.json`, with the attempts and the temperature in the name where it was not
    greedy; a second time it replaces the first. None, with a note, where the run cannot be written to."""
    facts = result.provenance
    name = f"{checkpoint.name}-{Path(facts['dataset']['path']).name.partition('.')[0]}"
    if facts["samples"] > 1 or facts["temperature"] > 0:
        name += f"-{facts['samples']}x-t{facts['temperature']:g}"
    path = run.evaluations / f"{name}.json"
    if path.is_file() and _dataset_of(path) != facts["dataset"]["sha256"]:
        path = path.with_stem(f"{name}-{facts['dataset']['sha256'][:8]}")
    try:
        write_trajectories(run.trajectories / f"eval_{path.stem}", trajectories)
        write_text(path, result.model_dump_json(indent=1) + "\n")
    except OSError as error:
        console.note(f"the result could not be kept in the run: {error}")
        return None
    return path


def _dataset_of(path: Path) -> object:
    """The SHA-256 of the data that a stored evaluation is of."""
    try:
        return _at(json.loads(path.read_text(encoding="utf-8")), "provenance.dataset.sha256")
    except ValueError:
        return None


def evaluate_on(
    setup: EpisodeSetup,
    *,
    samples: int,
    on_done: Callable[[Trajectory], None],
    tasks: Sequence[Task] | None = None,
) -> list[Trajectory]:
    """`samples` attempts at each task of the setup, or at `tasks`, with the seeds of an evaluation."""
    return setup.tools.io.run(
        evaluate(
            setup.tasks if tasks is None else tasks,
            policy=setup.ready.policy,
            tools=setup.tools.pool,
            settings=setup.settings,
            renderer=setup.ready.renderer,
            samples=samples,
            seed=setup.config.seed,
            concurrency=setup.concurrency,
            deterministic=setup.ready.is_deterministic,
            on_done=on_done,
        )
    )


def check_evaluation_path(out: Path) -> None:
    """Refuse, before any work is done, a path that the result cannot be written to. Raises UserError."""
    check_writable(out)
    if out.suffix != ".json":
        raise UserError(
            "the result is a .json file; the trajectories go beside it",
            where=f"--out {out}",
            remedy=f"--out {out.with_suffix('.json')}",
        )


@dataclass(frozen=True, kw_only=True)
class RegradeOutcome:
    """`changed` are the episodes whose success or reward is another one now, by id."""

    result: EvalSummary
    changed: Sequence[str]
    path: Path | None

    def as_json(self) -> JsonObject:
        """The document of `eval regrade --json`."""
        path = None if self.path is None else str(self.path)
        return {**self.result.model_dump(mode="json"), "changed": list(self.changed), "path": path}


def regrade(
    path: Path, config: TrainConfig, *, data: Path | None = None, out: Path | None = None
) -> RegradeOutcome:
    """Grade stored episodes anew, with the tasks as they are now and the reward of `config`; nothing is
    played. `path` is a result of `evaluate_model` or its trajectories. Raises UserError."""
    reward = load_reward(config.reward)
    before = read_evaluation(path)
    records = path if path.name.endswith(RECORDS_SUFFIXES) else _trajectories_of(path)
    stored = list(read_trajectories(records))
    facts = before.provenance if isinstance(before, EvalResult) else {}
    named = _at(facts, "dataset.path")
    dataset = data or (Path(str(named)) if named else None)
    if dataset is None or not dataset.is_file():
        missing = "are not known" if dataset is None else f"({dataset}) are gone"
        raise UserError(
            f"the tasks of these episodes {missing}", where=str(path), remedy="name them: --data FILE"
        )
    tasks = {task.id: task for task in read_tasks(dataset)}
    strangers = sorted({t.task_id for t in stored} - tasks.keys())
    if strangers:
        raise UserError(
            f"has no task {strangers[0]} ({len(strangers)} such)",
            where=str(dataset),
            remedy=f"name the tasks that {records.name} was played on: --data FILE",
        )
    graded = [regraded(tasks[t.task_id], t, reward) for t in stored]
    changed = [
        new.id
        for old, new in zip(stored, graded, strict=True)
        if (old.is_success, old.reward) != (new.is_success, new.reward)
    ]
    summary = summarise(graded)
    if facts:
        sha256 = hashlib.sha256(dataset.read_bytes()).hexdigest()
        again = {"path": str(dataset), "sha256": sha256, "tasks": len(tasks)}
        facts = {**facts, "dataset": again, "reward": reward.as_json(), "regraded_from": str(path)}
        summary = summary.with_provenance(facts, breakdown=break_down(tasks.values(), graded))
    if out is not None:
        write_trajectories(out.with_suffix(""), graded)
        write_text(out, summary.model_dump_json(indent=1) + "\n")
    return RegradeOutcome(result=summary, changed=changed, path=out)


def _trajectories_of(result: Path) -> Path:
    """The episodes of a result: beside it, or in the run that it is kept in."""
    beside = result.with_suffix(".jsonl.zst")
    in_run = result.parent.parent / "trajectories" / f"eval_{result.stem}.jsonl.zst"
    for records in (beside, in_run):
        if records.is_file():
            return records
    raise UserError(
        "its episodes are not there",
        where=str(beside),
        remedy="name the .jsonl.zst file that mcpagent eval wrote beside the result",
    )


def compare_files(a: Path, b: Path, *, console: Console | None = None) -> Comparison:
    """`b` against `a`, task by task: each is a result of `evaluate_model` or a file of trajectories. Notes
    what else differs between them. Raises UserError."""
    console = console or Console()
    left, right = read_evaluation(a), read_evaluation(b)
    if isinstance(left, EvalResult) and isinstance(right, EvalResult):
        others = _differing_conditions(left.provenance, right.provenance)
        if others:
            console.note(
                f"{a} and {b} differ in {', '.join(others)} too, so the difference is not the model's alone"
            )
    return compare(left, right)


def read_evaluation(path: Path) -> EvalSummary:
    """A result of `eval --out`, or the summary of trajectories. Raises UserError."""
    if path.name.endswith(RECORDS_SUFFIXES):
        return summarise(read_trajectories(path, with_tokens=False))
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return EvalResult.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"is not an evaluation: {describe(first, root='the document')}",
            where=str(path),
            remedy="name a file that mcpagent eval wrote with --out, or its trajectories (.jsonl.zst)",
        ) from None


def _differing_conditions(a: JsonObject, b: JsonObject) -> list[str]:
    """The conditions that both name, with different values."""
    differing: list[str] = []
    for dotted, name in _CONDITIONS.items():
        left, right = _at(a, dotted), _at(b, dotted)
        if left is not None and right is not None and left != right:
            differing.append(name)
    return differing


def _at(tree: JsonObject, dotted: str) -> object:
    value: object = tree
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
