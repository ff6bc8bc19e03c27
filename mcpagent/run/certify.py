"""Make a certificate: play both models, the controls and the attacks, and write the evidence."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.evaluate.attacks import play_attacks
from mcpagent.evaluate.certificate import (
    ATTACKS,
    BASELINE,
    CONTROL,
    JUDGE_PROMPTS,
    SPLITS,
    TRAINED,
    Certificate,
    Conditions,
    Opened,
    Side,
    code_facts,
    committed_seed,
    derived,
    open_evidence,
    question_key,
    write_certificate,
)
from mcpagent.models.probe import PROBE_FILE
from mcpagent.reward.judge import JUDGED_METHODS, PROMPTS_FILE, JudgeRules
from mcpagent.reward.terms import judge_rules
from mcpagent.run.episodes import EpisodeSetup, measured_file, open_episodes
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.atomic import atomic_dir, write_text
from mcpagent.storage.checkpoints import (
    choose_checkpoint,
    find_model,
    run_of,
    sha256_of,
    verified,
)
from mcpagent.storage.datasets import dataset_file, find_dataset, write_jsonl
from mcpagent.storage.lineage import ancestry, base_of, copy_model, model_identity, standing_on
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories, write_trajectories

WEIGHTS_LIMIT_MIB = 256  # of both sides together: larger weights stay where they are
_ALIKE = {"max_context_tokens", "chat_template_sha256", "tool_format"}  # of all sides
_AS_IS = ("config.yaml", "manifest.json", "metrics.jsonl")


@dataclass(frozen=True, kw_only=True)
class CertifyOutcome:
    """`figures` are those of the certificate in `folder`."""

    folder: Path
    figures: JsonObject
    has_weights: bool


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is certified: the models and the controls by side, the run, and its two splits."""

    run: RunFolder
    models: Mapping[str, Path]
    controls: Mapping[str, RunFolder]
    splits: Mapping[str, Path]


def certify(
    path: Path,
    config: TrainConfig,
    *,
    out: Path,
    data: Path | None = None,
    baseline: str | None = None,
    samples: int = 4,
    controls: Mapping[str, Path] | None = None,
    console: Console | None = None,
) -> CertifyOutcome:
    """Play both sides, the controls and the attacks, and write the folder `out` whole or not at all. `config`
    is that of the run with what a command changed of it. Raises UserError before anything is played if the
    run cannot be certified."""
    subject = _subject(path, data=data, baseline=baseline, controls=controls or {})
    with atomic_dir(out) as folder:
        outcome = _certify(subject, config, folder, samples=samples, console=console or Console())
    return replace(outcome, folder=out)


def _subject(
    path: Path, *, data: Path | None, baseline: str | None, controls: Mapping[str, Path]
) -> _Subject:
    checkpoint = verified(choose_checkpoint(path).path)
    run = run_of(checkpoint)
    if run is None:
        raise UserError(
            "is not a checkpoint of a run, and a certificate needs the run's records",
            where=str(path),
            remedy="name the run folder that mcpagent train printed, such as outputs/NAME",
        )
    began = load_train_config(inherited=run.config_path, for_training=False).config
    measured = measured_file(began)
    heldout = data or (measured and measured[0])
    if data is not None and not data.is_file():
        raise UserError(
            "there is no such dataset", where=str(data), remedy="name a file of tasks: --data FILE"
        )
    if heldout is None:
        raise UserError(
            "the run has no held-out tasks", where=str(run.path), remedy="name them: --data heldout.jsonl"
        )
    tried = {child.name: child for child in sorted((run.path / "controls").glob("*")) if child.is_dir()}
    sides = {CONTROL + re.sub(r"[\W_]+", "-", name): each for name, each in {**tried, **controls}.items()}
    return _Subject(
        run=run,
        models={
            BASELINE: _baseline(run, checkpoint, baseline or began.model.name),
            TRAINED: checkpoint,
            **{side: verified(choose_checkpoint(each).path) for side, each in sides.items()},
        },
        controls={side: RunFolder.open(each) for side, each in sides.items()},
        splits={"train": find_dataset(began.data.train, split="train"), "heldout": heldout},
    )


def _baseline(run: RunFolder, checkpoint: Path, name: str) -> Path:
    """Return the model that the trained one is compared with. Raises UserError if it is not on this machine,
    or the adapter was trained on another."""
    model = None if is_built(name) else find_model(name)
    if model is None:
        raise UserError(
            f"the run began with {name}, which is not a folder on this machine",
            where=str(run.config_path),
            remedy="name the model that it is to be compared with: --baseline FOLDER",
        )
    base = verified(model.path)
    under = base_of(checkpoint)
    # Both must come from one model: that one itself, or one that either was made from.
    if under is not None and under.folder is not None and not {*ancestry(checkpoint)} & {*ancestry(base)}:
        raise UserError(
            f"the adapter was trained on another model than {base}",
            where=str(checkpoint),
            remedy=f"compare it with the model that it was trained on: --baseline {under.place}",
        )
    return base


def _certify(
    subject: _Subject, config: TrainConfig, folder: Path, *, samples: int, console: Console
) -> CertifyOutcome:
    _copy_records(subject, folder)
    stated = Certificate(
        name=subject.run.path.name,
        checkpoint_step=step_of(subject.models[TRAINED]) or 0,
        conditions=Conditions(
            samples=samples,
            temperature=config.rollout.temperature,
            max_new_tokens=config.rollout.max_new_tokens,
            max_turns=config.rollout.max_steps_per_episode,
            result_limit_chars=config.tools.result_limit_chars,
            search=config.tools.discovery == "search",
            pinned=config.tools.pinned,
        ),
        sides={},
        code=code_facts(),
    )
    opened = open_evidence(folder, stated)
    tasks, left_out = opened.counted, len(opened.overlaps)
    if not tasks:
        raise UserError(
            "every held-out task is a training task too",
            where=str(subject.splits["heldout"]),
            remedy="name others: --data FILE",
        )
    if left_out:
        console.note(f"{left_out} of {len(opened.heldout)} held-out tasks are left out: training has them")
    judge = _judge(opened, config)
    datasets = {split: sha256_of(dataset_file(folder / "tasks", split)) for split in SPLITS}
    weights = {side: model_identity(path)["weights_sha256"] for side, path in subject.models.items()}
    config = _for_playing(config, committed_seed(datasets, weights, stated.conditions), folder)
    sides: dict[str, Side] = {}
    for side, model in subject.models.items():
        heldout = subject.splits["heldout"]
        with open_episodes(
            config, policy=str(model), samples=samples, console=console, data=heldout
        ) as setup:
            _refuse_other_tools(subject.run, setup.tools.pool.catalog_hash)
            sides[side] = _side(setup, weights[side])
            if sides[side].model_copy(update=sides[BASELINE].model_dump(include=_ALIKE)) != sides[side]:
                raise UserError(
                    "has another chat template, tool format or context length than the baseline, so a gain "
                    "would not be the weights' alone",
                    where=str(model),
                    remedy="compare it with a model of the same template: --baseline FOLDER",
                )
            with episode_progress(console, side, total=len(tasks) * samples) as on_done:
                played = setup.play(samples=samples, on_done=on_done, tasks=tasks)
            write_trajectories(folder / "episodes" / side, played)
            if side == BASELINE:
                attacks = setup.tools.io.run(
                    play_attacks(
                        tasks,
                        tools=setup.tools.pool,
                        settings=setup.settings,
                        judge_of=lambda _: setup.settings.judge,
                    )
                )
                write_trajectories(folder / "episodes" / ATTACKS, attacks)
    has_weights = _copy_weights(subject, folder)
    played_as = {"sides": sides, "judge": None if judge is None else judge.as_json()}
    certificate = derived(open_evidence(folder, stated.model_copy(update=played_as)))
    write_certificate(folder, certificate)
    return CertifyOutcome(folder=folder, figures=certificate.figures, has_weights=has_weights)


def _side(setup: EpisodeSetup, weights_sha256: str) -> Side:
    ready, identity = setup.ready, setup.ready.identity
    assert ready.renderer is not None and ready.max_context is not None  # it is a model
    return Side(
        weights_sha256=weights_sha256,
        dtype=identity["dtype"],
        max_context_tokens=ready.max_context,
        chat_template_sha256=identity["chat_template_sha256"],
        tool_format=ready.renderer.tool_format,
    )


def _judge(opened: Opened, config: TrainConfig) -> JudgeRules | None:
    """Return the judge that the held-out tasks ask, and copy its prompts into the folder; None if they ask
    none. Raises UserError if the run was trained with another."""
    rules = judge_rules(config.judge)
    methods = {task.reward_spec.method for task in opened.heldout}
    if rules is None or not methods & set(JUDGED_METHODS):
        return None
    of_run = opened.manifest.get("reward", {}).get("judge")
    if of_run is not None and of_run["identity"] != rules.identity:
        raise UserError(
            f"the run was trained with another judge ({of_run['model']}) than {rules.model} as it is set now",
            where="judge",
            remedy="leave the section judge as the run has it",
        )
    source = resource_path(PROMPTS_FILE) if config.judge.prompts is None else Path(config.judge.prompts)
    shutil.copyfile(source, opened.folder / JUDGE_PROMPTS)
    return rules


def _for_playing(config: TrainConfig, seed: int, folder: Path) -> TrainConfig:
    """Return the run's settings with that seed, the reward as documented, and a cassette in the folder."""
    tools = config.tools
    if tools.cassette is not None and Path(tools.cassette).is_dir():
        shutil.copytree(tools.cassette, folder / "cassette", ignore=shutil.ignore_patterns(".lock"))
    mode = "strict" if tools.cassette is not None and tools.cassette_mode == "strict" else "replay"
    return config.model_copy(
        update={
            "seed": seed,
            "reward": type(config.reward)(),
            "rollout": config.rollout.model_copy(update={"user_model": None, "top_p": 1.0}),
            "data": config.data.model_copy(update={"max_tasks": None}),
            "tools": tools.model_copy(update={"cassette": str(folder / "cassette"), "cassette_mode": mode}),
        }
    )


def _refuse_other_tools(run: RunFolder, catalog_hash: str) -> None:
    of_run = run.manifest.get("catalog_hash")
    if of_run not in (None, catalog_hash):
        raise UserError(
            f"the tools are not those that the run was trained with (catalog {of_run[:12]} then, "
            f"{catalog_hash[:12]} now), so a gain would not be the model's alone",
            where=str(run.path),
            remedy="start the servers that the run had (--servers), or train again with these",
        )


def _copy_records(subject: _Subject, folder: Path) -> None:
    """Copy the tasks byte by byte, and what the run and its controls recorded."""
    run, tasks = folder / "run", folder / "tasks"
    run.mkdir()
    tasks.mkdir()
    for split, source in subject.splits.items():
        shutil.copyfile(source, tasks / (split + source.name[source.name.index(".") :]))
    for name in _AS_IS:
        if (subject.run.path / name).is_file():
            shutil.copyfile(subject.run.path / name, run / name)
    for side, control in subject.controls.items():
        (run / side).mkdir()
        write_jsonl(run / side / "metrics.jsonl", control.metrics())
    trained_on = json.dumps(_trained_on(subject.run), indent=1, sort_keys=True)
    write_text(run / "trained_on.json", trained_on + "\n")


def _copy_weights(subject: _Subject, folder: Path) -> bool:
    """Copy both models as they were played, with what they stand on and without what only training needs;
    return False if they are too large."""
    models = {side: subject.models[side] for side in (BASELINE, TRAINED)}
    parts = {part for model in models.values() for part in standing_on(model)}
    size = sum(file.stat().st_size for part in parts for file in part.glob("*.safetensors"))
    if size > WEIGHTS_LIMIT_MIB * 2**20:
        return False
    for side, model in models.items():
        copy_model(model, folder / "weights" / side, bases=folder / "weights")
        # The check of a certificate scores the episodes themselves, and names what does not hold.
        (folder / "weights" / side / PROBE_FILE).unlink(missing_ok=True)
    return True


def _trained_on(run: RunFolder) -> dict[str, list[str]]:
    """Return the questions of the episodes that the run was trained on, by task id."""
    asked: dict[str, set[str]] = {}
    steps, shown = (sorted(run.trajectories.glob(f"{n}.jsonl.zst")) for n in ("step-*", "demonstrations"))
    for path in (*steps, *shown):
        for trajectory in read_trajectories(path, with_tokens=False):
            if trajectory.prompt:
                question = question_key(str(trajectory.prompt[-1]["content"]))
                asked.setdefault(trajectory.task_id, set()).add(question)
    return {task_id: sorted(questions) for task_id, questions in asked.items()}
