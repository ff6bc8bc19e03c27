"""A certificate: what a run gained, with everything that it takes to derive each figure again.

    certificate.json   what was measured and how, the figures, and the SHA-256 of every other file
    tasks/             the training and the held-out tasks
    episodes/          every episode of both sides, and of the attacks on the reward
    cassette/          what the tools answered
    run/               configuration, manifest, metrics, and which questions the run was trained on
    weights/           the two models

`derived` is the one place that says what follows from a folder: `run.certify` writes it, and
`run.certify_check` compares it with what `certificate.json` states.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from pydantic import Field

from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject, Record
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.attacks import GOLD
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.stored import read_document
from mcpagent.evaluate.summary import EvalSummary, summarise
from mcpagent.models.probe import TOLERANCE
from mcpagent.rollout.collector import Attempt, attempts
from mcpagent.storage.checkpoints import sha256_of
from mcpagent.storage.datasets import DiskList, dataset_file, read_tasks
from mcpagent.storage.locks import LOCK_NAME
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories

CERTIFICATE = "certificate.json"
BASELINE, TRAINED, ATTACKS = "baseline", "trained", "attacks"
SIDES = (BASELINE, TRAINED)
SCHEMA_VERSION = 6
_ASKS = "asks the same"
_SEED_BITS = 31
# The keys of the configuration that decide how an episode goes; all others are as documented.
CONDITIONS = (
    "rollout.temperature",
    "rollout.max_new_tokens",
    "rollout.max_steps_per_episode",
    "tools.result_limit_chars",
    "tools.discovery",
    "tools.pinned",
)


class Side(Record):
    """One model, and what it brought to the episodes that it played."""

    weights_sha256: str
    dtype: str
    max_context_tokens: int
    chat_template_sha256: str
    tool_format: str

    @property
    def tolerance(self) -> float:
        """How far apart (nats a token, in the mean) two correct engines are in this precision."""
        return TOLERANCE.get(self.dtype, max(TOLERANCE.values()))


class Certificate(Record):
    """`certificate.json`: first what its maker states, then what follows from the folder. `conditions` are
    the values of `CONDITIONS`."""

    schema_version: int = Field(default=SCHEMA_VERSION, ge=SCHEMA_VERSION, le=SCHEMA_VERSION)
    name: str
    checkpoint_step: int
    samples: int
    conditions: JsonObject
    sides: dict[str, Side]
    code: JsonObject

    seed: int = 0
    run: dict[str, bool | None] = {}
    excluded: dict[str, str] = {}
    reward: JsonObject = {}
    figures: JsonObject = {}
    files: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A certificate with its evidence as it is stored. `episodes` are by side, those of `ATTACKS` among them,
    `records` the run's step records; `trained_on` are the questions of the episodes that the run was trained
    on, by task id."""

    folder: Path
    certificate: Certificate
    train: Sequence[Task]
    heldout: Sequence[Task]
    episodes: Mapping[str, Sequence[Trajectory]]
    records: Sequence[JsonObject]
    manifest: JsonObject
    config: JsonObject
    trained_on: Mapping[str, Sequence[str]]

    @cached_property
    def overlaps(self) -> dict[str, str]:
        """The held-out tasks that training has, by id, and why."""
        taken = {key for task in self.train for key in _keys(task)}
        taken |= {(_ASKS, question) for of_task in self.trained_on.values() for question in of_task}
        shared = {task.id: [how for how, key in _keys(task) if (how, key) in taken] for task in self.heldout}
        return {name: f"a training task {how[0]}" for name, how in shared.items() if how}

    @cached_property
    def counted(self) -> Sequence[Task]:
        """The held-out tasks that training does not have."""
        return DiskList(task for task in self.heldout if task.id not in self.overlaps)

    def attempts(self) -> Iterator[Attempt]:
        """Yield what each side has to have played."""
        samples, seed = self.certificate.samples, self.certificate.seed
        return attempts(self.counted, per_task=samples, seed=seed, label="evaluation")

    def settings(self, side: str = TRAINED) -> TrainConfig:
        """Return the configuration by which the episodes of a side go: as stated, with the folder's own
        weights, and else as documented. Raises UserError."""
        stated = {
            **{key: self.certificate.conditions[key] for key in CONDITIONS},
            "model.dtype": self.certificate.sides[side].dtype,
            "rollout.tool_format": self.certificate.sides[side].tool_format,
            "model.name": str(self.folder / "weights" / side),
            "rollout.backend": "hf",
        }
        overrides = [f"{key}={json.dumps(value)}" for key, value in stated.items()]
        return load_train_config([], overrides, for_training=False).config


def derived(opened: Opened, sides: Mapping[str, Side]) -> Certificate:
    """Return the certificate that follows from the folder and from what its weights are. Raises UserError."""
    stated, folder, manifest = opened.certificate, opened.folder, opened.manifest
    weights = {side: sides[side].weights_sha256 for side in SIDES}
    model, heldout = (manifest.get(name) or {} for name in ("model", "heldout"))
    return stated.model_copy(
        update={
            "sides": dict(sides),
            "seed": committed_seed(folder, weights, stated),
            "run": {
                "baseline_is_the_runs": _is(weights[BASELINE], model.get("weights_sha256")),
                "heldout_is_the_runs": _is(split_sha256(folder, "heldout"), heldout.get("sha256")),
            },
            "excluded": opened.overlaps,
            "reward": manifest.get("reward", {}),
            "figures": figures(opened),
            "files": file_hashes(folder),
        }
    )


def _is(actual: str, recorded: str | None) -> bool | None:
    return None if recorded is None else recorded == actual


def committed_seed(folder: Path, weights: Mapping[str, str], stated: Certificate) -> int:
    """Return the seed of all episodes. It follows from the tasks in the folder, the weights of both sides and
    the settings, so that it cannot be chosen."""
    tasks = [split_sha256(folder, split) for split in ("train", "heldout")]
    text = json.dumps([tasks, dict(weights), stated.samples, stated.conditions], sort_keys=True)
    return derive_seed("certificate", text) >> (63 - _SEED_BITS)


def split_sha256(folder: Path, split: str) -> str:
    """Return the hash of the tasks of a split in the folder of a certificate."""
    return sha256_of(dataset_file(folder / "tasks", split))


def contradictions(opened: Opened, baseline: Side, catalog_hash: str) -> Iterator[str]:
    """Yield what the run's own records say against the evidence."""
    manifest, records = opened.manifest, opened.records
    tasks = (manifest.get("data") or {}).get("sha256")
    strangers = opened.trained_on.keys() - {task.id for task in opened.train}
    if strangers or _is(split_sha256(opened.folder, "train"), tasks) is False:
        yield "the run was trained with other tasks than those in the folder"
    if _is(catalog_hash, manifest.get("catalog_hash")) is False:
        yield "the run was trained with other tools: the catalog of its servers was another"
    steps = [record.get("step") for record in records]
    if steps != list(range(1, len(steps) + 1)) or len(steps) < opened.certificate.checkpoint_step:
        yield "metrics.jsonl does not have every step of the run"
    for record in records:
        proof, step = record.get("canary_difference"), record.get("step")
        if proof is None and opened.config.get("algorithm") == "grpo":
            yield f"step {step} has no proof of weight sync"
        elif proof is not None and not 0.0 <= proof <= baseline.tolerance:
            yield f"step {step}: weights {proof} nats apart, and {baseline.tolerance} is allowed"


def question_key(text: str) -> str:
    """Return the words of a question, without case, space and punctuation."""
    return " ".join(re.findall(r"\w+", text.casefold()))


def _keys(task: Task) -> Iterator[tuple[str, str]]:
    """Yield what a held-out task must not share with a training task, each with what that then does."""
    yield "has its id", task.id
    yield _ASKS, question_key(" ".join([task.prompt[-1].content, *task.truth.user_turns]))
    if task.truth.tool_sequence:
        fields = {"tool_sequence": {"__all__": {"user_turn", "server", "tool", "params"}}}
        truth = task.truth.model_dump(mode="json", include={**fields, "final_answer": True, "state": True})
        yield "has the same plan and answer", json.dumps(truth, sort_keys=True)


def figures(opened: Opened) -> JsonObject:
    """Return every figure of a certificate, from its stored episodes."""
    summaries = {side: summarise(opened.episodes[side]) for side in SIDES}
    return {
        "tasks": {
            "held_out": len(opened.heldout),
            "excluded": len(opened.overlaps),
            "counted": len(opened.counted),
        },
        "gain": compare(summaries[BASELINE], summaries[TRAINED]).model_dump(mode="json"),
        "budget": {side: _budget(summary, opened.episodes[side]) for side, summary in summaries.items()},
        "attacks": _attacks(opened.episodes[ATTACKS]),
    }


def _budget(summary: EvalSummary, played: Sequence[Trajectory]) -> JsonObject:
    return {
        "episodes": summary.n_episodes,
        "unscored": summary.unscored,
        "sampled_tokens": sum(len(turn.completion.token_ids) for t in played for turn in t.turns),
        "tool_calls": sum(t.call_count for t in played),
        "metrics": summary.model_dump(mode="json")["metrics"],
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
        "kinds": {k: {"episodes": len(each), "succeeded": sum(each)} for k, each in sorted(kinds.items())},
    }


def file_hashes(folder: Path) -> dict[str, str]:
    """Return the SHA-256 of every file but certificate.json, by its path in the folder."""
    return {
        path.relative_to(folder).as_posix(): sha256_of(path)
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != LOCK_NAME and path != folder / CERTIFICATE
    }


def read_certificate(folder: Path) -> Certificate:
    """Read `certificate.json`. Raises UserError, also if a file that it names is missing."""
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(
            f"is not a certificate: it lacks {CERTIFICATE}",
            where=str(folder),
            remedy="name the folder that mcpagent certify RUN --out FOLDER wrote",
        )
    certificate = read_document(
        path,
        Certificate,
        wrong="is damaged, or of another version of mcpagent",
        remedy="check it with the version that made it, or certify the run again",
    )
    missing = [name for name in certificate.files if not (folder / name).is_file()]
    missing += {*SIDES, *CONDITIONS} - certificate.sides.keys() - certificate.conditions.keys()
    if missing:
        remedy = "get the whole folder of the certificate again"
        raise UserError(f"lacks {min(missing)}", where=str(folder), remedy=remedy)
    return certificate


def open_evidence(folder: Path, certificate: Certificate) -> Opened:
    """Read what lies in the folder next to `certificate.json`, with the episodes that are there already.
    Raises UserError."""
    files = {side: folder / "episodes" / f"{side}.jsonl.zst" for side in (*SIDES, ATTACKS)}
    run, trained_on = RunFolder(folder / "run"), folder / "run" / "trained_on.json"
    try:
        manifest, asked = run.manifest, json.loads(trained_on.read_text(encoding="utf-8"))
        config = run.settings
    except (OSError, ValueError) as error:
        raise UserError(
            f"cannot be read: {error}", where=str(run.path), remedy="get the whole folder"
        ) from None
    return Opened(
        folder=folder,
        certificate=certificate,
        train=DiskList(read_tasks(dataset_file(folder / "tasks", "train"))),
        heldout=DiskList(read_tasks(dataset_file(folder / "tasks", "heldout"))),
        episodes={s: DiskList(read_trajectories(p)) if p.is_file() else () for s, p in files.items()},
        records=run.metrics(),
        manifest=manifest,
        config=config,
        trained_on=asked,
    )
