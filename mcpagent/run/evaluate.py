"""Evaluate a model on a dataset, and compare two evaluations."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.stored import read_document
from mcpagent.evaluate.summary import EvalResult, summarise
from mcpagent.interrupts import Interrupted
from mcpagent.reward.answer.verdict import GRADER
from mcpagent.reward.terms import grader_of, load_reward, regraded
from mcpagent.run.episodes import EpisodeSetup, open_episodes
from mcpagent.run.rollout import check_out, episode_progress
from mcpagent.storage.atomic import write_text
from mcpagent.storage.checkpoints import run_of, sha256_of
from mcpagent.storage.datasets import DiskList, read_tasks, record_reader, record_writer, write_jsonl
from mcpagent.storage.json_stream import reading
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import RECORDS_SUFFIXES, ById, read_trajectories, write_trajectories

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
    "judge.identity": "the judge",
    "policy.chat_template_sha256": "the chat template",
    "shots": "the shots",
}
# A limit that ended no episode of either side made no difference: that of the other would have ended none.
_ENDED_BY = {"max_new_tokens": StopReason.MAX_TOKENS, "max_turns": StopReason.MAX_TURNS}


@dataclass(frozen=True, kw_only=True)
class EvalOutcome:
    """An evaluation that was played, or graded again. `failure` is the first error if no episode could be
    scored; `in_run` is the file of the result in the run of the checkpoint, if it was stored there; `changed`
    are the episodes whose success or reward is another one after grading again, by id."""

    result: EvalResult
    path: Path | None
    trajectories: Path | None
    in_run: Path | None = None
    failure: str | None = None
    changed: Sequence[str] | None = None

    def as_json(self) -> JsonObject:
        """Return the document that the command prints."""
        again = {} if self.changed is None else {"changed": self.changed, "path": self.path}
        return {**self.result.model_dump(mode="json"), **again}


def evaluate_model(
    config: TrainConfig,
    *,
    model: str,
    data: Path | None = None,
    samples: int = 1,
    out: Path | None = None,
    shots: int = 0,
    shard: tuple[int, int] = (1, 1),
    resume: bool = False,
    console: Console | None = None,
) -> EvalOutcome:
    """Play `samples` attempts at each task by `model` (a checkpoint or run folder, a hub id, or
    `openai:NAME`), sampled as the `rollout` section of `config` says, with so many `shots` before every
    question. With `out`, a .json file, the result is
    written there and the trajectories next to it; the result of a checkpoint of a run is kept in the run too,
    for its report and model card. Episodes are written as they end: with `resume`, those that an earlier
    evaluation of the same `out` could score are not played again. Raises UserError; then nothing is
    written."""
    console = console or Console()
    if out is not None:
        check_out(out, ".json")
    elif resume:
        raise UserError("needs the evaluation to continue", where="--resume", remedy="add --out FILE.json")
    with open_episodes(
        config, policy=model, samples=samples, console=console, data=data, shard=shard, shots=shots
    ) as setup:
        if samples > 1 and setup.settings.sampling.temperature == 0.0:
            console.note(f"at temperature 0 all {samples} attempts at a task are the same")
        of_shard = {"shard": f"{shard[0]}/{shard[1]}"}
        conditions = {**setup.provenance(samples=samples), **of_shard}
        with (
            _stored_as_they_end(out, conditions, resume=resume) as (played, store),
            episode_progress(console, "Evaluation", total=len(setup.tasks) * samples) as on_done,
        ):

            def keep(trajectory: Trajectory) -> None:
                store(trajectory)
                on_done(trajectory)

            for trajectory in played.values():
                on_done(trajectory)
            trajectories = setup.play(samples=samples, on_done=keep, played=played)
        provenance = {**setup.provenance(samples=samples), **(of_shard if shard[1] > 1 else {})}
        run_checkpoint = _run_of(setup) if shard[1] == 1 else None  # a shard says nothing about the whole
        if run_checkpoint is not None:
            provenance["step"] = step_of(run_checkpoint[1])
        result = setup.result(trajectories, provenance, breakdown=break_down(setup.tasks, trajectories))
    stored = None
    if out is not None:
        stored = _write(out, result, trajectories)
        partial_file(out).unlink(missing_ok=True)
    in_run = None if run_checkpoint is None else _keep_in_run(*run_checkpoint, result, trajectories, console)
    failure = None
    if result.unscored == result.n_episodes:
        errors = (error for trajectory in trajectories for error in trajectory.errors)
        failure = next(errors, "no reward could be computed")
    return EvalOutcome(result=result, path=out, trajectories=stored, in_run=in_run, failure=failure)


def _write(out: Path, result: EvalResult, trajectories: Iterable[Trajectory]) -> Path:
    """Write a result and, next to it, its episodes; return the path of these."""
    records = write_trajectories(out.with_suffix(""), trajectories)
    write_text(out, result.model_dump_json(indent=1) + "\n")
    return records


def partial_file(out: Path) -> Path:
    """Return the file that holds the episodes of an evaluation until its result `out` is written."""
    return out.with_suffix(".partial.jsonl")


@contextmanager
def _stored_as_they_end(
    out: Path | None, conditions: JsonObject, *, resume: bool
) -> Iterator[tuple[Mapping[str, Trajectory], Callable[[Trajectory], None]]]:
    """Yield the episodes that need not be played, by id, and what writes another one to `partial_file(out)`,
    whose first line is the `conditions`. With `resume` the scored ones of the earlier evaluation are there
    already. Raises UserError if there is none, or it was made under other conditions; Interrupted with what
    is kept."""
    if out is None:
        yield {}, lambda _: None
        return
    conditions, path = json.loads(json.dumps(conditions)), partial_file(out)
    played = ById[Trajectory](_scored_before(out, conditions) if resume else ())
    ended = len(played)
    write_jsonl(path, chain([conditions], map(_with_tokens, played.values())))
    with path.open("ab") as file:

        def store(trajectory: Trajectory) -> None:
            nonlocal ended
            record_writer(file, flush=True).write(_with_tokens(trajectory))
            ended += 1

        try:
            yield played, store
        except KeyboardInterrupt as interrupt:
            if not ended:
                raise
            raise Interrupted(f"{path} keeps the episodes that ended", option="--resume") from interrupt
        finally:
            if not ended:
                path.unlink(missing_ok=True)


def _scored_before(out: Path, conditions: JsonObject) -> Iterator[Trajectory]:
    """Yield the scored episodes of an interrupted evaluation, else of a finished one. Raises UserError."""
    path = partial_file(out)
    if path.is_file():
        with path.open("rb") as stream, reading(path):
            rows = record_reader(stream).iter(type=dict)
            before, episodes = next(rows, {}), DiskList(map(Trajectory.model_validate, rows))
    elif out.is_file():
        before = {"shard": "1/1", **read_evaluation(out).provenance}
        before.setdefault("shots", {"count": 0, "tasks": []})  # results of older versions
        episodes = read_trajectories(_trajectories_of(out))
    else:
        nothing = "there is no evaluation to continue"
        raise UserError(nothing, where=str(out), remedy="begin one, without --resume")
    if (grader := grader_of(before)) != GRADER:
        raise UserError(
            f"was graded by grader {grader}, and this is grader {GRADER}, whose verdicts are others",
            where=str(out),
            remedy=f"begin anew with --overwrite, or grade what is finished: {_regrade_command(out)}",
        )
    shared = {**_CONDITIONS, "seed": "the seed", "policy": "the model", "shard": "the shard"}
    changed = [name for key, name in shared.items() if _at(conditions, key) != _at(before, key)]
    if changed:
        raise UserError(
            f"was started with different settings: {', '.join(changed)}",
            where=str(out),
            remedy="give the same options as then, or begin anew with --overwrite",
        )
    yield from (t for t in episodes if t.is_success is not None)


def _with_tokens(trajectory: Trajectory) -> JsonObject:
    """Return a record that holds the tokens too, which `Trajectory.model_validate` reads again."""
    record = trajectory.model_dump(mode="json")
    for row, turn in zip(record["turns"], trajectory.turns, strict=True):
        done = turn.completion
        row["added_token_ids"] = turn.added_token_ids
        row["completion"] |= {"token_ids": done.token_ids, "logprobs": done.logprobs}
    return record


def _run_of(setup: EpisodeSetup) -> tuple[RunFolder, Path] | None:
    """Return the run whose checkpoint was evaluated, and that checkpoint; None for any other model."""
    identity = setup.ready.identity
    checkpoint = Path(identity["path"]) if "weights_sha256" in identity else None
    run = checkpoint and run_of(checkpoint)
    return None if checkpoint is None or run is None else (run, checkpoint)


def _keep_in_run(
    run: RunFolder, checkpoint: Path, result: EvalResult, trajectories: Sequence[Trajectory], console: Console
) -> Path | None:
    """Return `eval/step-000040-heldout.json`, with attempts and temperature in the name if it was not greedy,
    the number of shots, and the hash of the data if that name has other data. None, with a note, if the run
    cannot be written to."""
    facts = result.provenance
    name = f"{checkpoint.name}-{Path(facts['dataset']['path']).name.partition('.')[0]}"
    if facts["samples"] > 1 or facts["temperature"] > 0:
        name += f"-{facts['samples']}x-t{facts['temperature']:g}"
    if facts["shots"]["count"]:
        name += f"-{facts['shots']['count']}-shots"
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
    try:
        return _at(json.loads(path.read_text(encoding="utf-8")), "provenance.dataset.sha256")
    except ValueError:
        return None


def regrade(
    path: Path, config: TrainConfig, *, data: Path | None = None, out: Path | None = None
) -> EvalOutcome:
    """Grade stored episodes anew, with the tasks as they are now and the reward of `config`; nothing is
    played. `path` is a result of `evaluate_model` or its trajectories. Raises UserError."""
    if out is not None:
        check_out(out, ".json")
    reward = load_reward(config.reward)
    facts = read_evaluation(path).provenance
    records = path if path.name.endswith(RECORDS_SUFFIXES) else _trajectories_of(path)
    stored = DiskList(read_trajectories(records))
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
    again = {"path": str(dataset), "sha256": sha256_of(dataset), "tasks": len(tasks)}
    facts = {**facts, "dataset": again, "reward": reward.as_json(), "regraded_from": str(path)}
    summary = summarise(graded, tasks=tasks.values())
    result = summary.with_provenance(facts, breakdown=break_down(tasks.values(), graded))
    written = None if out is None else _write(out, result, graded)
    return EvalOutcome(result=result, path=out, trajectories=written, changed=changed)


def _trajectories_of(result: Path) -> Path:
    """Return the file of a result's episodes: next to it, or in the run that it is kept in."""
    beside = result.with_suffix(".jsonl.zst")
    in_run = result.parent.parent / "trajectories" / f"eval_{result.stem}.jsonl.zst"
    for records in (beside, in_run):
        if records.is_file():
            return records
    raise UserError(
        "its episodes are missing",
        where=str(beside),
        remedy="name the .jsonl.zst file that mcpagent eval wrote next to the result",
    )


def compare_files(a: Path, b: Path, *, console: Console | None = None) -> Comparison:
    """Compare `b` with `a` task by task; each is a result of `evaluate_model` or a file of trajectories. Note
    what else differs between them. Raises UserError."""
    console = console or Console()
    left, right = read_evaluation(a), read_evaluation(b)
    graders = grader_of(left.provenance), grader_of(right.provenance)
    if graders[0] != graders[1]:
        raise UserError(
            f"is graded by grader {graders[0]}, and {b} by grader {graders[1]}, whose verdicts are others",
            where=str(a),
            remedy=f"grade the older one anew: {_regrade_command(a if graders[0] < graders[1] else b)}",
        )
    ended = {*left.stop_reasons, *right.stop_reasons}
    conditions = (
        (name, _at(left.provenance, key), _at(right.provenance, key))
        for key, name in _CONDITIONS.items()
        if key not in _ENDED_BY or _ENDED_BY[key] in ended
    )
    others = [name for name, x, y in conditions if None not in (x, y) and x != y]
    if others:
        console.note(
            f"{a} and {b} differ in {', '.join(others)} too, so the difference is not the model's alone"
        )
    return compare(left, right)


def _regrade_command(path: Path) -> str:
    """Return the command that grades an evaluation by this version's grader."""
    of_tasks = " --data TASKS.jsonl" if path.name.endswith(RECORDS_SUFFIXES) else ""
    return f"mcpagent eval regrade {shlex.quote(str(path))}{of_tasks} --out REGRADED.json"


def read_evaluation(path: Path) -> EvalResult:
    """Return a result of `eval --out`, or that of trajectories, of which nothing else is known. Raises
    UserError."""
    if not path.exists():
        raise UserError("there is no such file", where=str(path), remedy=_EVALUATION)
    if path.name.endswith(RECORDS_SUFFIXES):
        played = DiskList(read_trajectories(path, with_tokens=False))
        if not played:
            raise UserError("holds no episode", where=str(path), remedy=_EVALUATION)
        return summarise(played).with_provenance({"reward": {"grader": played[0].grader}})
    return read_document(path, EvalResult, wrong="is not an evaluation", remedy=_EVALUATION)


def _at(tree: JsonObject, dotted: str) -> object:
    value: object = tree
    for part in dotted.split("."):
        value = value.get(part) if isinstance(value, dict) else None
    return value
