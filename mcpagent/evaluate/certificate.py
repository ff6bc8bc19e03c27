"""A certificate: what a run gained, with everything that it takes to derive each figure again.

    certificate.json   what was measured and how, the figures, and the SHA-256 of every other file
    tasks/             the training and the held-out tasks
    episodes/          every episode of both sides, of the controls, and of the attacks on the reward
    cassette/          what the tools answered
    judge.yaml         what the judge is asked, if the tasks name one
    run/               configuration, manifest, metrics, and what the run and its controls were trained on
    weights/           the two models, if they are small enough

`derived` is the one place that says what follows from a folder: `run.certify` writes it, and
`run.certify_check` compares it with what `certificate.json` states.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

import yaml
from pydantic import Field, ValidationError

from mcpagent.core.intervals import rate_interval
from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.registry import REWARD_METHODS
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.episode import EpisodeLimits
from mcpagent.env.offer import Discovery
from mcpagent.errors import UserError
from mcpagent.evaluate.attacks import GOLD
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.summary import EvalSummary, summarise
from mcpagent.policy.contract import Sampling
from mcpagent.reward.judge import JudgePrompts, JudgeRules
from mcpagent.rollout.agent import AgentSettings, Attempt
from mcpagent.rollout.collector import attempts
from mcpagent.storage.atomic import write_text
from mcpagent.storage.checkpoints import sha256_of, weights_sha256
from mcpagent.storage.datasets import DiskList, dataset_file, read_tasks
from mcpagent.storage.locks import LOCK_NAME
from mcpagent.storage.packages import provenance
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.cassettes.cassette import Cassette

CERTIFICATE, JUDGE_PROMPTS = "certificate.json", "judge.yaml"
BASELINE, TRAINED, ATTACKS = "baseline", "trained", "attacks"
CONTROL = "control-"  # begins the name of a side that is a control
SPLITS = ("train", "heldout")
EQUAL_COST = 0.95  # share of the run's cost that a control spends at least, to be one at equal cost
_SEED_BITS = 31


class Side(Record):
    """One model, and what it brought to the episodes that it played."""

    weights_sha256: str
    dtype: str
    max_context_tokens: int
    chat_template_sha256: str
    tool_format: str


class Conditions(Record):
    """How every episode of every side was played."""

    samples: int
    temperature: float
    max_new_tokens: int
    max_turns: int
    result_limit_chars: int
    search: bool
    pinned: tuple[str, ...]

    def settings(self, side: Side) -> AgentSettings:
        """Return how a side's episodes were played."""
        discovery = Discovery(pinned=self.pinned, result_chars=self.result_limit_chars)
        return AgentSettings(
            sampling=Sampling(max_new_tokens=self.max_new_tokens, temperature=self.temperature),
            limits=EpisodeLimits(max_turns=self.max_turns),
            max_context_tokens=side.max_context_tokens,
            discovery=discovery if self.search else None,
        )


class Certificate(Record):
    """`certificate.json`: first what its maker states, then what follows from the folder."""

    schema_version: int = Field(default=3, ge=3, le=3)
    name: str
    checkpoint_step: int
    conditions: Conditions
    sides: dict[str, Side]
    judge: JsonObject | None = None
    code: JsonObject

    seed: int = 0
    run: dict[str, bool | None] = {}
    datasets: dict[str, str] = {}
    excluded: dict[str, str] = {}
    catalog_hash: str = ""
    reward: JsonObject = {}
    grader: dict[str, str] = {}
    figures: JsonObject = {}
    files: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A certificate with its evidence as it is stored. `episodes` are by side, those of `ATTACKS` among them,
    `records` the step records of the run and of each control; `trained_on` are the questions of the episodes
    that the run was trained on, by task id."""

    folder: Path
    certificate: Certificate
    train: Sequence[Task]
    heldout: Sequence[Task]
    episodes: Mapping[str, Sequence[Trajectory]]
    records: Mapping[str, Sequence[JsonObject]]
    manifest: JsonObject
    config: JsonObject
    trained_on: Mapping[str, Sequence[str]]

    @cached_property
    def overlaps(self) -> dict[str, str]:
        """The held-out tasks that training has, by id, and why."""
        ids = {task.id for task in self.train}
        questions, plans = set(map(_said, self.train)), set(map(_plan, self.train))
        played = {question for of_task in self.trained_on.values() for question in of_task}
        overlapping: dict[str, str] = {}
        for task in self.heldout:
            if task.id in ids:
                overlapping[task.id] = "a training task has its id"
            elif _said(task) in questions:
                overlapping[task.id] = "a training task asks the same"
            elif task.truth.tool_sequence and _plan(task) in plans:
                overlapping[task.id] = "a training task has the same plan and answer"
            elif not task.truth.user_turns and _said(task) in played:
                overlapping[task.id] = "the run was trained on an episode that asks the same"
        return overlapping

    @cached_property
    def counted(self) -> Sequence[Task]:
        """The held-out tasks that training does not have."""
        return DiskList(task for task in self.heldout if task.id not in self.overlaps)

    @property
    def has_weights(self) -> bool:
        """Whether the folder has the models of both sides."""
        return all((self.folder / "weights" / side).is_dir() for side in (BASELINE, TRAINED))

    def attempts(self) -> Iterator[Attempt]:
        """Yield what each side has to have played."""
        samples, seed = self.certificate.conditions.samples, self.certificate.seed
        return attempts(self.counted, per_task=samples, seed=seed, label="evaluation")

    @property
    def cassette(self) -> Cassette:
        """The recorded tools. Raises UserError if they cannot be read."""
        limit = self.certificate.conditions.result_limit_chars
        return Cassette.alone(self.folder / "cassette", result_limit_chars=limit)

    @cached_property
    def judge(self) -> JudgeRules | None:
        """The judge with the stated settings and the prompts in the folder; None if none is stated. Raises
        UserError if the prompts cannot be read."""
        if (stated := self.certificate.judge) is None:
            return None
        names = ("model", "base_url", "votes", "max_output_tokens", "controls")
        settings: dict[str, Any] = {name: stated.get(name) for name in names}
        return JudgeRules(prompts=JudgePrompts.load(self.folder / JUDGE_PROMPTS), **settings)


def derived(opened: Opened) -> Certificate:
    """Return the certificate that follows from the folder, but for `files`. Raises UserError."""
    stated, folder = opened.certificate, opened.folder
    sides = {
        name: side.model_copy(update={"weights_sha256": weights_sha256(folder / "weights" / name)})
        if (folder / "weights" / name).is_dir()
        else side
        for name, side in stated.sides.items()
    }
    weights = {name: side.weights_sha256 for name, side in sides.items()}
    datasets = {split: sha256_of(dataset_file(folder / "tasks", split)) for split in SPLITS}
    with opened.cassette as tape:
        catalog_hash = tape.catalog_hash
    methods = sorted({task.reward_spec.method for task in opened.heldout})
    return stated.model_copy(
        update={
            "sides": sides,
            "judge": None if opened.judge is None else opened.judge.as_json(),
            "seed": committed_seed(datasets, weights, stated.conditions),
            "run": _run_facts(opened, datasets, weights, catalog_hash),
            "datasets": datasets,
            "excluded": opened.overlaps,
            "catalog_hash": catalog_hash,
            "reward": opened.manifest.get("reward", {}),
            "grader": {name: REWARD_METHODS[name].place for name in methods},
            "figures": figures(opened),
        }
    )


def committed_seed(datasets: Mapping[str, str], weights: Mapping[str, str], conditions: Conditions) -> int:
    """Return the seed of all episodes. It follows from the tasks, the weights of both models and the
    settings, so that it cannot be chosen."""
    models = {side: weights[side] for side in (BASELINE, TRAINED)}
    text = json.dumps([dict(datasets), models, conditions.model_dump(mode="json")], sort_keys=True)
    return derive_seed("certificate", text) >> (63 - _SEED_BITS)


def _run_facts(
    opened: Opened, datasets: Mapping[str, str], weights: Mapping[str, str], catalog_hash: str
) -> JsonObject:
    """Return whether the folder's parts are those that the run recorded; None if it did not record one."""
    manifest, strangers = opened.manifest, opened.trained_on.keys() - {task.id for task in opened.train}

    def is_recorded(actual: str, recorded: str | None) -> bool | None:
        return None if recorded is None else recorded == actual

    baseline, heldout, train = (manifest.get(name) or {} for name in ("model", "heldout", "data"))
    return {
        "baseline_is_the_runs": is_recorded(weights[BASELINE], baseline.get("weights_sha256")),
        "heldout_is_the_runs": is_recorded(datasets["heldout"], heldout.get("sha256")),
        "train_is_the_runs": not strangers and is_recorded(datasets["train"], train.get("sha256")),
        "tools_are_the_runs": is_recorded(catalog_hash, manifest.get("catalog_hash")),
    }


def question_key(text: str) -> str:
    """Return the words of a question, without case, space and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _said(task: Task) -> str:
    return question_key(" ".join([task.prompt[-1].content, *task.truth.user_turns]))


def _plan(task: Task) -> str:
    fields = {"tool_sequence": {"__all__": {"user_turn", "server", "tool", "params"}}}
    truth = task.truth.model_dump(mode="json", include={**fields, "final_answer": True, "state": True})
    return json.dumps(truth, sort_keys=True)


def figures(opened: Opened) -> JsonObject:
    """Return every figure of a certificate, from its stored episodes and records."""
    summaries = {side: summarise(opened.episodes[side]) for side in opened.certificate.sides}
    cpu_s = {name: sum(r.get("cpu_s", 0.0) for r in of) for name, of in opened.records.items()}
    shares = {name: spent / cpu_s["run"] if cpu_s["run"] else 0.0 for name, spent in cpu_s.items()}

    def gain_over(side: str) -> JsonObject:
        return compare(summaries[side], summaries[TRAINED]).model_dump(mode="json")

    return {
        "tasks": {
            "held_out": len(opened.heldout),
            "excluded": len(opened.overlaps),
            "counted": len(opened.counted),
        },
        "gain": gain_over(BASELINE),
        "budget": {side: _budget(summary, opened.episodes[side]) for side, summary in summaries.items()},
        "controls": {
            side.removeprefix(CONTROL): {
                "trained_against_it": gain_over(side),
                "share_of_the_cost": round(shares[side], 4),
                "is_at_equal_cost": shares[side] >= EQUAL_COST,
            }
            for side in sorted(summaries)
            if side.startswith(CONTROL)
        },
        "attacks": _attacks(opened.episodes[ATTACKS]),
        "records": _records(opened.records["run"]),
    }


def _budget(summary: EvalSummary, played: Sequence[Trajectory]) -> JsonObject:
    shown = {name: m for name, m in summary.metrics.items() if name.startswith(("task_success", "pass"))}
    return {
        "episodes": summary.n_episodes,
        "unscored": summary.unscored,
        "sampled_tokens": sum(len(turn.completion.token_ids) for t in played for turn in t.turns),
        "tool_calls": sum(t.call_count for t in played),
        "metrics": {name: metric.model_dump(mode="json") for name, metric in shown.items()},
    }


def _attacks(played: Sequence[Trajectory]) -> JsonObject:
    """Return, by kind of attack, how many episodes it had and how many of them were a success; `GOLD` is the
    plan itself, which must succeed, and no attack."""
    kinds: dict[str, list[bool]] = defaultdict(list)
    for trajectory in played:
        kinds[trajectory.id.rpartition("#")[2]].append(trajectory.is_success is True)
    paid = [is_paid for kind, each in kinds.items() if kind != GOLD for is_paid in each]
    return {
        "episodes": len(paid),
        "succeeded": sum(paid),
        "share": rate_interval(sum(paid), len(paid)).model_dump(mode="json"),
        "kinds": {k: {"episodes": len(each), "succeeded": sum(each)} for k, each in sorted(kinds.items())},
    }


def _records(records: Sequence[JsonObject]) -> JsonObject:
    """Return weight sync (nats a token between sampler and trainer on the canary) and drift (tokens that a
    full rendering would have given otherwise) over the steps of the run."""

    def reported(key: str) -> list[float]:
        return [record[key] for record in records if key in record]

    drifted = reported("drift_share")
    return {
        "steps": len(records),
        "cpu_s": round(sum(reported("cpu_s")), 3),
        "weight_sync_proofs": len(reported("canary_difference")),
        "weight_sync_largest_nats": max(reported("canary_difference"), default=None),
        "sampler_trainer_largest_nats": max(reported("logprob_drift_max"), default=None),
        "token_drift_mean_share": fmean(drifted) if drifted else None,
        "unscored_episodes": sum(reported("unscored")),
    }


def write_certificate(folder: Path, certificate: Certificate) -> None:
    """Write certificate.json with the hashes of all that lies in the folder."""
    sealed = certificate.model_copy(update={"files": file_hashes(folder)})
    write_text(folder / CERTIFICATE, sealed.model_dump_json(indent=1) + "\n")


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file but certificate.json, by its path in the folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK_NAME and path != folder / CERTIFICATE
    }


def code_facts() -> JsonObject:
    """Return the versions here, and the SHA-256 of the whole package as it is installed."""
    import mcpagent

    root, total = Path(mcpagent.__file__).parent, hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()} {sha256_of(path)}\n".encode())
    return {**provenance(), "source_sha256": total.hexdigest()}


def open_certificate(folder: Path) -> Opened:
    """Read `certificate.json` and everything else in the folder. Raises UserError, also for what is
    missing."""
    opened = open_evidence(folder, read_certificate(folder))
    missing = {*opened.certificate.sides, ATTACKS} - opened.episodes.keys()
    if missing:
        raise _lacking(folder, f"episodes/{min(missing)}")
    return opened


def _lacking(folder: Path, name: str) -> UserError:
    return UserError(f"lacks {name}", where=str(folder), remedy="get the whole folder of the certificate")


def read_certificate(folder: Path) -> Certificate:
    """Read `certificate.json`. Raises UserError."""
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(
            f"is not a certificate: it lacks {CERTIFICATE}",
            where=str(folder),
            remedy="name the folder that mcpagent certify RUN --out FOLDER wrote",
        )
    remedy = "make the certificate again, or get the whole folder"
    try:
        certificate = Certificate.model_validate_json(path.read_bytes())
    except ValidationError as error:
        problem = describe(error.errors()[0], root="the document")
        raise UserError(f"is damaged: {problem}", where=str(path), remedy=remedy) from None
    for side in (BASELINE, TRAINED):
        if side not in certificate.sides:
            raise UserError(f"is damaged: has no side {side}", where=str(path), remedy=remedy)
    return certificate


def open_evidence(folder: Path, certificate: Certificate) -> Opened:
    """Read what lies in the folder next to `certificate.json`, with the episodes that are there already.
    Raises UserError."""
    files = {side: folder / "episodes" / f"{side}.jsonl.zst" for side in (*certificate.sides, ATTACKS)}
    run, trained_on = RunFolder(folder / "run"), folder / "run" / "trained_on.json"
    controls = {side: RunFolder(run.path / side) for side in certificate.sides if side.startswith(CONTROL)}
    for path in (run.config_path, run.path / "manifest.json", trained_on):
        if not path.is_file():
            raise _lacking(folder, str(path.relative_to(folder)))
    try:
        manifest, asked = run.manifest, json.loads(trained_on.read_text(encoding="utf-8"))
        config = yaml.safe_load(run.config_path.read_text(encoding="utf-8"))
    except (ValueError, yaml.YAMLError) as error:
        raise UserError(
            f"cannot be read: {error}", where=str(run.path), remedy="get the whole folder"
        ) from None
    return Opened(
        folder=folder,
        certificate=certificate,
        train=DiskList(read_tasks(dataset_file(folder / "tasks", "train"))),
        heldout=DiskList(read_tasks(dataset_file(folder / "tasks", "heldout"))),
        episodes={s: DiskList(read_trajectories(path)) for s, path in files.items() if path.is_file()},
        records={name: each.metrics() for name, each in {"run": run, **controls}.items()},
        manifest=manifest,
        config=config,
        trained_on=asked,
    )
