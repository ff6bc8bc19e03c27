"""Make a certificate: play both models and the attacks, and write the evidence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from operator import attrgetter
from pathlib import Path

from mcpagent.config.loader import load_train_config
from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.errors import UserError
from mcpagent.evaluate.attacks import play_attacks
from mcpagent.evaluate.certificate import (
    ATTACKS,
    BASELINE,
    CERTIFICATE,
    CONDITIONS,
    SIDES,
    TRAINED,
    Certificate,
    Opened,
    Side,
    committed_seed,
    contradictions,
    derived,
    open_evidence,
    question_key,
)
from mcpagent.models.probe import PROBE_FILE
from mcpagent.reward.judge import JUDGED_METHODS
from mcpagent.run.certify_check import side_of
from mcpagent.run.episodes import EpisodeSetup, measured_file, open_episodes
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.atomic import atomic_dir, write_text
from mcpagent.storage.checkpoints import (
    choose_checkpoint,
    find_model,
    run_of,
    verified,
    weights_sha256,
)
from mcpagent.storage.datasets import find_dataset
from mcpagent.storage.lineage import copy_model
from mcpagent.storage.packages import provenance
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories, write_trajectories

_ALIKE = {"max_context_tokens", "chat_template_sha256", "tool_format"}  # of all sides


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is certified: the run, the models by side, and the run's two splits."""

    run: RunFolder
    models: Mapping[str, Path]
    splits: Mapping[str, Path]


def certify(
    path: Path,
    config: TrainConfig,
    *,
    out: Path,
    data: Path | None = None,
    baseline: str | None = None,
    samples: int = 4,
    console: Console | None = None,
) -> Certificate:
    """Play both sides and the attacks, and write the folder `out` whole or not at all. `config` is that of
    the run with what a command changed of it. Raises UserError before anything is played if the run cannot be
    certified."""
    subject, console = _subject(path, data=data, baseline=baseline), console or Console()
    with atomic_dir(out) as folder:
        _copy_records(subject, folder)
        stated = Certificate(
            name=subject.run.path.name,
            checkpoint_step=step_of(subject.models[TRAINED]) or 0,
            samples=samples,
            conditions={key: attrgetter(key)(config) for key in CONDITIONS},
            sides={},
            code=provenance(),
        )
        opened = open_evidence(folder, stated)
        _refuse_tasks(opened, where=str(subject.splits["heldout"]))
        weights = {side: weights_sha256(subject.models[side]) or "" for side in SIDES}
        config = _for_playing(config, committed_seed(folder, weights, stated), folder)
        sides: dict[str, Side] = {}
        for side, model in subject.models.items():
            with open_episodes(
                config, policy=str(model), samples=samples, console=console, data=subject.splits["heldout"]
            ) as setup:
                sides[side] = side_of(setup.ready)
                if side == BASELINE:
                    _refuse_run(subject.run, opened, setup, sides[BASELINE])
                    attacks = play_attacks(opened.counted, tools=setup.tools.pool, settings=setup.settings)
                    write_trajectories(folder / "episodes" / ATTACKS, setup.tools.io.run(attacks))
                _refuse_unlike(model, sides[side], sides[BASELINE])
                with episode_progress(console, side, total=len(opened.counted) * samples) as on_done:
                    played = setup.play(samples=samples, on_done=on_done, tasks=opened.counted)
                write_trajectories(folder / "episodes" / side, played)
        for side in SIDES:
            copy_model(subject.models[side], folder / "weights" / side, bases=folder / "weights")
            # The check of a certificate scores the episodes themselves, and names what does not hold.
            (folder / "weights" / side / PROBE_FILE).unlink(missing_ok=True)
        certificate = derived(open_evidence(folder, stated.model_copy(update={"sides": sides})), sides)
        write_text(folder / CERTIFICATE, certificate.model_dump_json(indent=1) + "\n")
    return certificate


def _subject(path: Path, *, data: Path | None, baseline: str | None) -> _Subject:
    checkpoint = verified(choose_checkpoint(path).path)
    run = run_of(checkpoint)
    if run is None:
        raise UserError(
            "is not a checkpoint of a run, and a certificate needs the run's records",
            where=str(path),
            remedy="name the run folder that mcpagent train printed, such as outputs/NAME",
        )
    began = load_train_config(inherited=run.config_path, for_training=False).config
    measured = measured_file(began) if data is None else (find_dataset(str(data), split="validation"), "")
    if measured is None:
        raise UserError(
            "the run has no held-out tasks", where=str(run.path), remedy="name them: --data heldout.jsonl"
        )
    name = baseline or began.model.name
    base = None if is_built(name) else find_model(name)
    if base is None:
        raise UserError(
            f"the run began with {name}, which is not a folder on this machine",
            where=str(run.config_path),
            remedy="name the model that it is to be compared with: --baseline FOLDER",
        )
    return _Subject(
        run=run,
        models={BASELINE: verified(base.path), TRAINED: checkpoint},
        splits={"train": find_dataset(began.data.train, split="train"), "heldout": measured[0]},
    )


def _refuse_tasks(opened: Opened, *, where: str) -> None:
    """Raise UserError if the held-out tasks cannot be counted."""
    if not opened.counted:
        raise UserError(
            "every held-out task is a training task too", where=where, remedy="name others: --data FILE"
        )
    if any(task.reward_spec.method in JUDGED_METHODS for task in opened.counted):
        raise UserError(
            "has tasks that a model judges, and what it said cannot be derived again",
            where=where,
            remedy="name tasks that rules grade: --data FILE",
        )


def _refuse_run(run: RunFolder, opened: Opened, setup: EpisodeSetup, baseline: Side) -> None:
    for problem in contradictions(opened, baseline, setup.tools.pool.catalog_hash):
        remedy = "certify a run that has all its records, with its own servers"
        raise UserError(problem, where=str(run.path), remedy=remedy)


def _refuse_unlike(model: Path, side: Side, baseline: Side) -> None:
    if side.model_dump(include=_ALIKE) != baseline.model_dump(include=_ALIKE):
        raise UserError(
            "has another chat template, tool format or context length than the baseline, so a gain would not "
            "be the weights' alone",
            where=str(model),
            remedy="compare it with a model of the same template: --baseline FOLDER",
        )


def _for_playing(config: TrainConfig, seed: int, folder: Path) -> TrainConfig:
    """Return the run's settings with that seed, the reward as documented, without models that judge or play
    the user, and with a cassette in the folder."""
    tools = config.tools
    if tools.cassette is not None and Path(tools.cassette).is_dir():
        shutil.copytree(tools.cassette, folder / "cassette", ignore=shutil.ignore_patterns(".lock"))
    mode = "strict" if tools.cassette is not None and tools.cassette_mode == "strict" else "replay"
    changed = config.with_settings(
        rollout={"user_model": None, "top_p": 1.0},
        data={"max_tasks": None},
        tools={"cassette": str(folder / "cassette"), "cassette_mode": mode},
    )
    return changed.model_copy(
        update={"seed": seed, "reward": type(config.reward)(), "judge": type(config.judge)()}
    )


def _copy_records(subject: _Subject, folder: Path) -> None:
    """Copy the tasks byte by byte, and what the run recorded."""
    run, tasks = folder / "run", folder / "tasks"
    run.mkdir()
    tasks.mkdir()
    for split, source in subject.splits.items():
        shutil.copyfile(source, tasks / (split + source.name[source.name.index(".") :]))
    for name in ("config.yaml", "manifest.json", "metrics.jsonl"):
        if (subject.run.path / name).is_file():
            shutil.copyfile(subject.run.path / name, run / name)
    trained_on = json.dumps(_trained_on(subject.run), indent=1, sort_keys=True)
    write_text(run / "trained_on.json", trained_on + "\n")


def _trained_on(run: RunFolder) -> dict[str, Sequence[str]]:
    """Return the questions of the episodes that the run was trained on, by task id."""
    asked: dict[str, set[str]] = {}
    steps, shown = (sorted(run.trajectories.glob(f"{n}.jsonl.zst")) for n in ("step-*", "demonstrations"))
    for path in (*steps, *shown):
        for trajectory in read_trajectories(path, with_tokens=False):
            if trajectory.prompt:
                question = question_key(str(trajectory.prompt[-1]["content"]))
                asked.setdefault(trajectory.task_id, set()).add(question)
    return {task_id: sorted(questions) for task_id, questions in asked.items()}
