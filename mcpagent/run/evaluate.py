"""Evaluate a model on a dataset, and compare two evaluations."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import IO

from pydantic import ValidationError

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject, describe
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.compare import POINTS, Comparison, compare
from mcpagent.evaluate.summary import (
    CalibrationRow,
    EvalResult,
    EvalSummary,
    evaluate,
    summarise,
)
from mcpagent.interrupts import Interrupted
from mcpagent.reward.terms import load_reward, regraded
from mcpagent.run.calibration import BASE, base_model, row_of, scripted_rows, stored_base
from mcpagent.run.episodes import EpisodeSetup, open_episodes
from mcpagent.run.rollout import check_writable, episode_progress
from mcpagent.storage.atomic import write_text
from mcpagent.storage.checkpoints import run_of
from mcpagent.storage.datasets import DiskList, read_tasks, record_reader, record_writer, write_jsonl
from mcpagent.storage.json_stream import reading
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import (
    RECORDS_SUFFIXES,
    ById,
    read_trajectories,
    write_trajectories,
)

_EVALUATION = "name a file that mcpagent eval wrote with --out, or its trajectories (.jsonl.zst)"
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
    resume: bool = False,
    retry_infra: bool = False,
    calibrate: bool = False,
    base: bool = False,
    keep: bool = True,
    console: Console | None = None,
) -> EvalOutcome:
    """`samples` attempts at each task by `model` (a checkpoint or run folder, a hub id, or `openai:NAME`),
    sampled as the `rollout` section of `config` says, `deterministic` included.
    With `out`, a .json file, the result is written there and the trajectories beside it; that of a checkpoint
    of a run is kept in the run too, for its report and model card, unless `keep` is off. `calibrate` adds the
    rows `gold`, `empty` and, where the run has measured it, `base`; with `base` the untrained model is played
    where it has not. Episodes are written as they end: with
    `resume` those that an interrupted evaluation wrote are not played again, and with `retry_infra` only
    those of it, or of a finished one, that could not be scored. Raises UserError; then nothing is written."""
    console = console or Console()
    if out is not None:
        check_evaluation_path(out)
    elif resume or retry_infra:
        option = "--resume" if resume else "--retry-infra"
        raise UserError("goes on with what --out names", where=option, remedy="add --out FILE.json")
    with open_episodes(
        config, policy=model, samples=samples, console=console, data=data, shard=shard
    ) as setup:
        if samples > 1 and setup.settings.sampling.temperature == 0.0:
            console.note(f"at temperature 0 all {samples} attempts at a task are the same")
        untrained = base_model(setup) if base else None
        stream = None
        if out is not None:
            conditions = {**setup.provenance(samples=samples), "shard": f"{shard[0]}/{shard[1]}"}
            stream = EpisodeStream(out, conditions)
            stream.open(resume=resume, retry_infra=retry_infra)
        played = {} if stream is None else stream.played
        with episode_progress(console, "Evaluation", total=len(setup.tasks) * samples) as on_done:
            for trajectory in played.values():
                on_done(trajectory)
            trajectories = _streamed(setup, stream, samples=samples, on_done=on_done)
        breakdown = break_down(setup.tasks, trajectories)
        provenance = setup.provenance(samples=samples)
        # A shard says nothing of the whole.
        run_checkpoint = _run_of(setup) if keep and shard[1] == 1 else None
        if shard[1] > 1:
            provenance["shard"] = f"{shard[0]}/{shard[1]}"
        if run_checkpoint is not None:
            provenance["step"] = step_of(run_checkpoint[1])
        cassette = setup.tools.take_cassette_counts()
        tool_metrics = setup.tools.pool.metrics()
        rows = scripted_rows(setup, console=console) if calibrate else {}
        measured = stored_base(setup, provenance) if calibrate else None
    if isinstance(measured, CalibrationRow):
        rows[BASE] = measured
    elif untrained is not None:
        console.note(f"evaluating the model that it was trained from, {untrained}")
        theirs = evaluate_model(
            config, model=untrained, data=data, samples=samples, shard=shard, keep=False, console=console
        )
        rows[BASE] = row_of(theirs.result, source=untrained)
    elif measured is not None:
        console.note(f"no row for the untrained model: {measured}; --base plays it")
    result = summarise(trajectories).with_provenance(
        provenance, cassette=cassette, tool_metrics=tool_metrics, breakdown=breakdown, calibration=rows
    )
    stored = None
    if out is not None:
        stored = write_trajectories(out.with_suffix(""), trajectories)
        write_text(out, result.model_dump_json(indent=1) + "\n")
        EpisodeStream.path_of(out).unlink(missing_ok=True)
    in_run = None if run_checkpoint is None else _keep_in_run(*run_checkpoint, result, trajectories, console)
    failure = None
    if result.unscored == result.n_episodes:
        errors = (error for trajectory in trajectories for error in trajectory.errors)
        failure = next(errors, "no reward could be computed")
    return EvalOutcome(result=result, path=out, trajectories=stored, in_run=in_run, failure=failure)


@contextmanager
def resumable(out: Path | None) -> Iterator[None]:
    """Says of an interrupt of `evaluate_model` what it leaves to go on from."""
    try:
        yield
    except KeyboardInterrupt as interrupt:
        if out is None or not EpisodeStream.path_of(out).is_file():
            raise
        kept = f"{EpisodeStream.path_of(out)} keeps the episodes that ended"
        raise Interrupted(kept, option="--resume") from interrupt


def _streamed(
    setup: EpisodeSetup,
    stream: EpisodeStream | None,
    *,
    samples: int,
    on_done: Callable[[Trajectory], None],
) -> Sequence[Trajectory]:
    if stream is None:
        return evaluate_on(setup, samples=samples, on_done=on_done)

    def kept(trajectory: Trajectory) -> None:
        stream.add(trajectory)
        on_done(trajectory)

    try:
        return evaluate_on(setup, samples=samples, on_done=kept, played=stream.played)
    finally:
        stream.close()


class EpisodeStream:
    """The episodes of an evaluation as they end, in `X.partial.jsonl` beside the result `X.json`, which
    takes its place. The first line is what the evaluation is made with."""

    def __init__(self, out: Path, conditions: JsonObject) -> None:
        self._out, self._conditions = out, json.loads(json.dumps(conditions))
        self.path = self.path_of(out)
        self.played: Mapping[str, Trajectory] = {}
        self._file: IO[bytes] | None = None
        self._is_empty = True

    @staticmethod
    def path_of(out: Path) -> Path:
        """The file beside the result `out`."""
        return out.with_suffix(".partial.jsonl")

    def open(self, *, resume: bool, retry_infra: bool) -> None:
        """Take over what was played before, where that is asked for, and begin to write. Raises UserError
        where there is nothing, or it was made under other conditions."""
        if resume or retry_infra:
            conditions, episodes = self._stored()
            changed = _differing(self._conditions, conditions)
            if changed:
                raise UserError(
                    f"was begun otherwise: {', '.join(changed)}",
                    where=str(self._out),
                    remedy="give the same options as then, or begin anew with --overwrite",
                )
            self.played = ById(t for t in episodes if not retry_infra or t.is_success is not None)
        write_jsonl(self.path, chain([self._conditions], map(_with_its_tokens, self.played.values())))
        self._file, self._is_empty = self.path.open("ab"), not self.played

    def add(self, trajectory: Trajectory) -> None:
        """Write an episode that has ended."""
        if self._file is not None:
            record_writer(self._file, flush=True).write(_with_its_tokens(trajectory))
            self._is_empty = False

    def close(self) -> None:
        """Write no more; without an episode there is nothing to go on from."""
        if self._file is not None:
            self._file.close()
        if self._is_empty:
            self.path.unlink(missing_ok=True)

    def _stored(self) -> tuple[JsonObject, Iterable[Trajectory]]:
        if self.path.is_file():
            with self.path.open("rb") as stream, reading(self.path):
                rows = record_reader(stream).iter(type=dict)
                conditions = next(rows, {})
                return conditions, DiskList(map(_from_row, rows))
        if self._out.is_file():
            result = read_evaluation(self._out)
            facts = result.provenance if isinstance(result, EvalResult) else {}
            return {"shard": "1/1", **facts}, read_trajectories(_trajectories_of(self._out))
        nothing = "there is no evaluation to go on with"
        raise UserError(nothing, where=str(self._out), remedy="begin one, without --resume and --retry-infra")


def _with_its_tokens(trajectory: Trajectory) -> JsonObject:
    tokens = [
        [turn.added_token_ids, turn.completion.token_ids, turn.completion.logprobs]
        for turn in trajectory.turns
    ]
    return {"episode": trajectory.model_dump(mode="json"), "tokens": tokens}


def _from_row(row: JsonObject) -> Trajectory:
    trajectory = Trajectory.model_validate(row["episode"])
    turns = [
        turn.model_copy(
            update={
                "added_token_ids": tuple(added),
                "completion": turn.completion.model_copy(
                    update={"token_ids": tuple(sampled), "logprobs": tuple(logprobs)}
                ),
            }
        )
        for turn, (added, sampled, logprobs) in zip(trajectory.turns, row["tokens"], strict=True)
    ]
    return trajectory.model_copy(update={"turns": tuple(turns)})


def _differing(now: JsonObject, then: JsonObject) -> list[str]:
    """What the episodes of one evaluation must share, where it is not the same."""
    shared = {**_CONDITIONS, "seed": "the seed", "policy": "the model", "shard": "the shard"}
    return [name for key, name in shared.items() if _at(now, key) != _at(then, key)]


def _run_of(setup: EpisodeSetup) -> tuple[RunFolder, Path] | None:
    """The run whose checkpoint was evaluated, and that checkpoint; None for any other model."""
    identity = setup.ready.identity
    if "weights_sha256" not in identity:
        return None
    checkpoint = Path(identity["path"])
    run = run_of(checkpoint)
    return None if run is None else (run, checkpoint)


def _keep_in_run(
    run: RunFolder, checkpoint: Path, result: EvalResult, trajectories: Sequence[Trajectory], console: Console
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
    played: Mapping[str, Trajectory] | None = None,
) -> DiskList[Trajectory]:
    """`samples` attempts at each task of the setup, or at `tasks`, with the seeds of an evaluation; those of
    `played`, by id, are not played again."""
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
            played=played,
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
    stored = DiskList(read_trajectories(records))
    facts = before.provenance if isinstance(before, EvalResult) else {}
    named = _at(facts, "dataset.path")
    dataset = data or (Path(str(named)) if named else None)
    if dataset is None or not dataset.is_file():
        missing = "are not known" if dataset is None else f"({dataset}) are gone"
        raise UserError(
            f"the tasks of these episodes {missing}", where=str(path), remedy="name them: --data FILE"
        )
    tasks = ById(read_tasks(dataset))
    strangers = sorted({t.task_id for t in stored} - tasks.keys())
    if strangers:
        raise UserError(
            f"has no task {strangers[0]} ({len(strangers)} such)",
            where=str(dataset),
            remedy=f"name the tasks that {records.name} was played on: --data FILE",
        )
    graded = DiskList(regraded(tasks[t.task_id], t, reward) for t in stored)
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


def compare_files(a: Path, b: Path, *, points: float = POINTS, console: Console | None = None) -> Comparison:
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
    return compare(left, right, points=points)


def read_evaluation(path: Path) -> EvalSummary:
    """A result of `eval --out`, or the summary of trajectories. Raises UserError."""
    if not path.exists():
        raise UserError("there is no such file", where=str(path), remedy=_EVALUATION)
    if path.name.endswith(RECORDS_SUFFIXES):
        summary = summarise(read_trajectories(path, with_tokens=False))
        if not summary.n_episodes:
            raise UserError("holds no episode", where=str(path), remedy=_EVALUATION)
        return summary
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        return EvalResult.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        raise UserError(
            f"is not an evaluation: {describe(first, root='the document')}",
            where=str(path),
            remedy=_EVALUATION,
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
