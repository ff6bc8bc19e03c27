"""Makes certificates, and checks them: what both need a model or servers for."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.registry import REWARD_METHODS
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.episode import EpisodeLimits
from mcpagent.errors import UserError
from mcpagent.evaluate.attacks import GOLD, attack_scripts, spoken
from mcpagent.evaluate.certificate import (
    ATTACKS,
    BASELINE,
    CONTROL,
    JUDGE_PROMPTS,
    TRAINED,
    Certificate,
    Conditions,
    Evidence,
    Side,
    committed_seed,
    figures,
    overlaps,
    reward_code_sha256,
    source_sha256,
    write_certificate,
)
from mcpagent.evaluate.certificate_page import certificate_page
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy, ScriptedPolicy
from mcpagent.reward.judge import JUDGED_METHODS, PROMPTS_FILE, JudgeRules
from mcpagent.reward.terms import judge_rules
from mcpagent.rollout.agent import Attempt, run_attempt
from mcpagent.run.episodes import EpisodeSetup, measured_file, open_episodes
from mcpagent.run.evaluate import evaluate_on
from mcpagent.run.rollout import episode_progress
from mcpagent.storage.atomic import atomic_dir, write_text
from mcpagent.storage.checkpoints import (
    ADAPTER_FILE,
    SEAL_FILE,
    STATE_FOLDER,
    choose_checkpoint,
    find_model,
    model_identity,
    run_of,
    verified,
)
from mcpagent.storage.datasets import DiskList, TaskFile, find_dataset, read_tasks
from mcpagent.storage.packages import provenance
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories, write_trajectories

WEIGHTS_LIMIT_MIB = 256  # of both sides together: larger weights stay where they are
_MOST_TURNS = 500  # of an attack
_AS_IS = ("config.yaml", "manifest.json", "metrics.jsonl")


@dataclass(frozen=True, kw_only=True)
class CertifyOutcome:
    """`figures` are those of the certificate in `folder`."""

    folder: Path
    figures: JsonObject
    excluded: int
    has_weights: bool

    def as_json(self) -> JsonObject:
        """The document of `certify --json`."""
        return {
            "folder": str(self.folder),
            "figures": self.figures,
            "excluded": self.excluded,
            "has_weights": self.has_weights,
        }


@dataclass(frozen=True, kw_only=True)
class _Subject:
    """What is certified: the models by side, the run, and its two splits."""

    run: RunFolder
    models: Mapping[str, Path]
    controls: Mapping[str, RunFolder]
    train: Path
    heldout: Path
    baseline_is_the_runs: bool
    heldout_is_the_runs: bool | None  # None: the run did not record which tasks it had


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
    is that of the run with what a command changed of it. Raises UserError before anything is played where
    the run cannot be certified."""
    console = console or Console()
    subject = _subject(path, config, data=data, baseline=baseline, controls=controls or {})
    with atomic_dir(out) as folder:
        return replace(_certify(subject, config, folder, samples=samples, console=console), folder=out)


def _subject(
    path: Path,
    config: TrainConfig,
    *,
    data: Path | None,
    baseline: str | None,
    controls: Mapping[str, Path],
) -> _Subject:
    checkpoint = verified(choose_checkpoint(path).path)
    run = run_of(checkpoint)
    if run is None:
        raise UserError(
            "is a model, but no checkpoint of a run, and a certificate needs the run's records",
            where=str(path),
            remedy="name the run folder that mcpagent train printed, such as outputs/NAME",
        )
    began = load_train_config([run.config_path], [], for_training=False).config
    name = baseline or began.model.name
    found_base = None if is_built(name) else find_model(name)
    if found_base is None:
        raise UserError(
            f"the run began with {name}, which is no folder on this machine to hash and play",
            where=str(run.config_path),
            remedy="name the model that it is to be compared with: --baseline FOLDER",
        )
    base = verified(found_base.path)
    _refuse_other_base(checkpoint, base)
    train = find_dataset(began.data.train, split="train")
    measured = measured_file(began)
    heldout = data if data is not None else None if measured is None else measured[0]
    if heldout is None:
        raise UserError(
            "the run has no held-out tasks", where=str(run.path), remedy="name them: --data heldout.jsonl"
        )
    found_controls = {
        child.name: child for child in sorted((run.path / "controls").glob("*")) if child.is_dir()
    }
    every = {
        name.replace("_", " "): RunFolder.open(each) for name, each in {**found_controls, **controls}.items()
    }
    models = {BASELINE: base, TRAINED: checkpoint}
    for control, each in every.items():
        models[CONTROL + re.sub(r"\W+", "-", control)] = verified(choose_checkpoint(each.path).path)
    registered = run.manifest.get("heldout")
    with TaskFile(heldout) as tasks:
        is_the_runs = None if registered is None else registered["sha256"] == tasks.sha256
    return _Subject(
        run=run,
        models=models,
        controls={CONTROL + re.sub(r"\W+", "-", control): each for control, each in every.items()},
        train=train,
        heldout=heldout,
        baseline_is_the_runs=baseline is None,
        heldout_is_the_runs=is_the_runs,
    )


def _refuse_other_base(checkpoint: Path, base: Path) -> None:
    identity, of_base = model_identity(checkpoint), model_identity(base)
    trained_on = identity.get("base", {}).get("weights_sha256")
    if trained_on is not None and "base" not in of_base and trained_on != of_base["weights_sha256"]:
        raise UserError(
            f"the adapter was trained on another model than {base}",
            where=str(checkpoint),
            remedy=f"compare it with the model that it was trained on: --baseline {identity['base']['path']}",
        )


def _certify(
    subject: _Subject, config: TrainConfig, folder: Path, *, samples: int, console: Console
) -> CertifyOutcome:
    datasets = _copy_tasks(subject, folder)
    heldout = DiskList(read_tasks(subject.heldout))
    trained_on = _trained_on(subject.run)
    left_out = overlaps(read_tasks(subject.train), heldout, trained_on)
    tasks = DiskList(task for task in heldout if task.id not in left_out)
    if not tasks:
        raise UserError(
            "every held-out task is a training task too",
            where=str(subject.heldout),
            remedy="name others: --data FILE",
        )
    if left_out:
        console.note(f"{len(left_out)} of {len(heldout)} held-out tasks are left out: training has them")
    judge = _judge(subject, config, folder, heldout)
    conditions = _conditions(config, samples)
    hashes = {side: model_identity(path) for side, path in subject.models.items()}
    plain = {
        side: Side(
            weights_sha256=identity["weights_sha256"],
            base_sha256=identity.get("base", {}).get("weights_sha256"),
            chat_template_sha256="",
            tool_format="",
            dtype="",
        )
        for side, identity in hashes.items()
    }
    conditions = conditions.model_copy(update={"seed": committed_seed(datasets, plain, conditions)})
    config = _for_playing(config, conditions, folder)
    sides: dict[str, Side] = {}
    episodes: dict[str, Sequence[Trajectory]] = {}
    attacks: Sequence[Trajectory] = ()
    catalog_hash = ""
    for side, model in subject.models.items():
        with open_episodes(
            config, policy=str(model), samples=samples, console=console, data=subject.heldout
        ) as setup:
            catalog_hash = setup.tools.pool.catalog_hash
            _refuse_other_tools(subject.run, catalog_hash)
            sides[side] = _side(setup, plain[side])
            conditions = conditions.model_copy(
                update={"max_context_tokens": setup.settings.max_context_tokens}
            )
            with episode_progress(console, side, total=len(tasks) * samples) as on_done:
                episodes[side] = evaluate_on(setup, samples=samples, on_done=on_done, tasks=tasks)
            if side == BASELINE:
                attacks = setup.tools.io.run(_play_attacks(setup, tasks))
    for side, played in {**episodes, ATTACKS: attacks}.items():
        write_trajectories(folder / "episodes" / side, played)
    _copy_records(subject, folder, trained_on)
    has_weights = _copy_weights(subject, folder)
    records = {"run": subject.run.metrics(), **{s: r.metrics() for s, r in subject.controls.items()}}
    began = load_train_config([subject.run.config_path], [], for_training=False).config
    certificate = Certificate(
        run={
            "name": subject.run.path.name,
            "checkpoint_step": step_of(subject.models[TRAINED]) or 0,
            "algorithm": began.algorithm,
            "mode": began.finetune.mode,
            "canary_every": began.rollout.canary_every if began.algorithm == "grpo" else 0,
            "dtype": sides[TRAINED].dtype,
            "baseline_is_the_runs": subject.baseline_is_the_runs,
            "heldout_is_the_runs": subject.heldout_is_the_runs,
            "train_is_the_runs": True,
        },
        conditions=conditions,
        sides=sides,
        datasets=datasets,
        excluded=left_out,
        catalog_hash=catalog_hash,
        reward=subject.run.manifest.get("reward", {}),
        grader=_grader(heldout, judge),
        code={**provenance(), "source_sha256": source_sha256()},
        figures=figures(
            Evidence(episodes=episodes, attacks=attacks, records=records, heldout=heldout, overlaps=left_out)
        ),
    )
    write_certificate(folder, certificate, page=certificate_page(certificate))
    return CertifyOutcome(
        folder=folder, figures=certificate.figures, excluded=len(left_out), has_weights=has_weights
    )


def _judge(subject: _Subject, config: TrainConfig, folder: Path, tasks: Sequence[Task]) -> JudgeRules | None:
    """The judge that these tasks ask, its prompts copied into the folder; None where they ask none. Raises
    UserError where the run was trained with another."""
    rules = judge_rules(config.judge)
    if rules is None or not any(task.reward_spec.method in JUDGED_METHODS for task in tasks):
        return None
    of_run = subject.run.manifest.get("reward", {}).get("judge")
    if of_run is not None and of_run["identity"] != rules.identity:
        raise UserError(
            f"the run was trained with another judge ({of_run['model']}) than {rules.model} as it is set now",
            where="judge",
            remedy="leave the section judge as the run has it",
        )
    source = resource_path(PROMPTS_FILE) if config.judge.prompts is None else Path(config.judge.prompts)
    shutil.copyfile(source, folder / JUDGE_PROMPTS)
    return rules


def _grader(tasks: Sequence[Task], judge: JudgeRules | None) -> JsonObject:
    methods = sorted({task.reward_spec.method for task in tasks})
    return {
        **({} if judge is None else {"judge": judge.as_json()}),
        "methods": methods,
        "places": {name: REWARD_METHODS[name].place for name in methods},
        "code_sha256": reward_code_sha256(),
    }


def _conditions(config: TrainConfig, samples: int) -> Conditions:
    limits, rollout, tools = EpisodeLimits(), config.rollout, config.tools
    return Conditions(
        seed=0,
        samples=samples,
        temperature=rollout.temperature,
        max_new_tokens=rollout.max_new_tokens,
        max_turns=rollout.max_steps_per_episode,
        max_tool_calls=limits.max_tool_calls,
        message_limit_chars=config.data.message_limit_chars,
        result_limit_chars=tools.result_limit_chars,
        search=tools.discovery == "search",
        pinned=tools.pinned,
    )


def _for_playing(config: TrainConfig, conditions: Conditions, folder: Path) -> TrainConfig:
    """The run's settings with the seed that follows, the reward as documented, and a cassette of its own."""
    tools = config.tools
    if tools.cassette is not None and Path(tools.cassette).is_dir():
        shutil.copytree(tools.cassette, folder / "cassette", ignore=shutil.ignore_patterns(".lock"))
    mode = "strict" if tools.cassette is not None and tools.cassette_mode == "strict" else "replay"
    return config.model_copy(
        update={
            "seed": conditions.seed,
            "reward": type(config.reward)(),
            "rollout": config.rollout.model_copy(update={"user": "scripted", "top_p": 1.0, "top_k": 0}),
            "data": config.data.model_copy(update={"max_tasks": None}),
            "tools": tools.model_copy(update={"cassette": str(folder / "cassette"), "cassette_mode": mode}),
        }
    )


def _side(setup: EpisodeSetup, plain: Side) -> Side:
    identity, renderer = setup.ready.identity, setup.ready.renderer
    return plain.model_copy(
        update={
            "chat_template_sha256": identity["chat_template_sha256"],
            "tool_format": "auto" if renderer is None else renderer.tool_format,
            "dtype": identity["dtype"],
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


async def _play_attacks(setup: EpisodeSetup, tasks: Sequence[Task]) -> DiskList[Trajectory]:
    """The gold episode of each task, and the attacks that are made from it."""
    settings = replace(setup.settings, sampling=Sampling(), max_context_tokens=None)
    settings = replace(settings, limits=replace(settings.limits, max_turns=None))
    gold_policy = GoldPolicy(tasks)
    played: DiskList[Trajectory] = DiskList()

    async def play(task: Task, kind: str, policy: Any) -> Trajectory:
        # The gold policy knows its task by the episode's id, which ends in a number there.
        attempt = Attempt(task=task, attempt=0, group_id=task.id, seed=0)
        trajectory = await run_attempt(
            attempt, policy=policy, tools=setup.tools.pool, settings=settings, renderer=None
        )
        return trajectory.model_copy(update={"id": f"{task.id}#{kind}"})

    for task in tasks:
        gold = await play(task, GOLD, gold_policy)
        played.append(gold)
        for kind, texts in attack_scripts(task, gold).items():
            played.append(await play(task, kind, ScriptedPolicy(spoken(texts, _MOST_TURNS))))
    return played


def _copy_tasks(subject: _Subject, folder: Path) -> dict[str, str]:
    (folder / "tasks").mkdir()
    hashes: dict[str, str] = {}
    for split, source in (("train", subject.train), ("heldout", subject.heldout)):
        copy = folder / "tasks" / (split + source.name[source.name.index(".") :])
        shutil.copyfile(source, copy)
        with TaskFile(copy) as tasks:
            hashes[split] = tasks.sha256
    return hashes


def _copy_records(subject: _Subject, folder: Path, trained_on: Mapping[str, Sequence[str]]) -> None:
    (folder / "run").mkdir()
    for name in _AS_IS:
        if (subject.run.path / name).is_file():
            shutil.copyfile(subject.run.path / name, folder / "run" / name)
    for side, control in subject.controls.items():
        lines = "".join(json.dumps(record) + "\n" for record in control.metrics())
        write_text(folder / "run" / f"{side}.jsonl", lines)
    write_text(folder / "run" / "trained_on.json", json.dumps(trained_on, indent=1, sort_keys=True) + "\n")


def _copy_weights(subject: _Subject, folder: Path) -> bool:
    """Both models as they were played, without what only training needs; whether they were small enough."""
    models = {side: subject.models[side] for side in (BASELINE, TRAINED)}
    size = sum(file.stat().st_size for model in models.values() for file in model.glob("*.safetensors"))
    if size > WEIGHTS_LIMIT_MIB * 2**20:
        return False
    for side, model in models.items():
        left_out = shutil.ignore_patterns(STATE_FOLDER, SEAL_FILE, "README.md", ".*")
        shutil.copytree(model, folder / "weights" / side, ignore=left_out)
        adapter = folder / "weights" / side / ADAPTER_FILE
        if side == TRAINED and adapter.is_file():
            document = json.loads(adapter.read_text(encoding="utf-8"))
            write_text(
                adapter, json.dumps({**document, "base_model_name_or_path": BASELINE}, indent=2) + "\n"
            )
    return True


def _trained_on(run: RunFolder) -> dict[str, list[str]]:
    """The questions of the episodes that the run was trained on, by task id."""
    asked: dict[str, set[str]] = {}
    for path in sorted(
        [*run.trajectories.glob("step-*.jsonl.zst"), *run.trajectories.glob("demonstrations.jsonl.zst")]
    ):
        for trajectory in read_trajectories(path, with_tokens=False):
            if trajectory.prompt:
                words = re.findall(r"\w+", str(trajectory.prompt[-1]["content"]).casefold())
                asked.setdefault(trajectory.task_id, set()).add(" ".join(words))
    return {task_id: sorted(questions) for task_id, questions in sorted(asked.items())}
