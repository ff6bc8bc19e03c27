"""A certificate: what a run gained, with everything that it takes to derive each figure again.

    certificate.json   the figures, what they were measured with, and the SHA-256 of every other file
    page.html          the same for people
    tasks/             the training and the held-out tasks
    episodes/          every episode of both sides, of the controls, and of the attacks on the reward
    cassette/          what the tools answered
    judge.yaml         what the judge is asked, where the tasks name one
    run/               configuration, manifest, metrics, and what the run was trained on
    weights/           the two models, where they are small enough

Nothing here plays an episode: `run.certify` does, and `evaluate.certificate_check` derives all of it again.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any

from pydantic import Field, ValidationError

from mcpagent.core.records import JsonObject, Record, describe
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.offer import Discovery
from mcpagent.errors import UserError
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.intervals import rate_interval
from mcpagent.evaluate.summary import EvalSummary, success_of_all, summarise
from mcpagent.reward.judge import JudgePrompts, JudgeRules
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import DiskList, read_tasks
from mcpagent.storage.packages import provenance
from mcpagent.storage.trajectories import read_trajectories

CERTIFICATE, PAGE, JUDGE_PROMPTS = "certificate.json", "page.html", "judge.yaml"
BASELINE, TRAINED, ATTACKS = "baseline", "trained", "attacks"
CONTROL = "control-"  # begins the name of a side that is a control
EQUAL_COST = 0.95  # share of the run's cost that a control spends at least, to be one at equal cost
_SEED_BITS = 31

CANNOT_SHOW = (
    "How many runs were trained before this one was chosen. The seed of the evaluation follows from the "
    "weights, the tasks and the settings, so it was not chosen; the seed of the training may have been.",
    "That the held-out tasks are unknown to the base model, or that nobody looked at them while the data was "
    "made. It shows that no held-out task is a training task, by id, by question or by plan.",
    "What happened on another machine. Who makes up weights, episodes and tool results that fit each other "
    "has played these episodes with these weights; how the weights came about, the records of the run only "
    "say.",
    "That the tasks matter, or that a tool or a judge told the truth. Of a judge it shows what it was asked "
    "and answered, and that the verdicts follow from it.",
    "Without the weights in this folder: that these weights played these episodes.",
)


class Side(Record):
    """One model, as it was played."""

    weights_sha256: str | None
    base_sha256: str | None = None  # of what an adapter was trained on
    chat_template_sha256: str
    tool_format: str
    dtype: str


class Conditions(Record):
    """How every episode of every side was played; `seed` follows from the rest (`committed_seed`), but for
    `max_context_tokens`, which is what the model holds."""

    seed: int
    samples: int
    temperature: float
    max_new_tokens: int
    max_turns: int
    max_tool_calls: int
    message_limit_chars: int
    result_limit_chars: int
    max_context_tokens: int | None = None
    search: bool = False
    pinned: tuple[str, ...] = ()

    @property
    def discovery(self) -> Discovery | None:
        """How tools were searched for; None where all were offered."""
        return Discovery(pinned=self.pinned, result_chars=self.result_limit_chars) if self.search else None


class Certificate(Record):
    """`certificate.json`. `datasets` are the SHA-256 of the files in tasks/, `excluded` the held-out tasks
    that are no part of the figures, and why."""

    schema_version: int = Field(default=1, ge=1, le=1)
    run: JsonObject
    conditions: Conditions
    sides: dict[str, Side]
    datasets: dict[str, str]
    excluded: dict[str, str]
    catalog_hash: str
    reward: JsonObject
    grader: JsonObject
    code: JsonObject
    figures: JsonObject
    cannot_show: tuple[str, ...] = CANNOT_SHOW
    files: dict[str, str] = {}


@dataclass(frozen=True, kw_only=True)
class Evidence:
    """What the figures are derived from. `records` are the metrics of the run and, by the names of their
    sides, of the controls; `overlaps` are the held-out tasks that training has, and why."""

    episodes: Mapping[str, Sequence[Trajectory]]
    attacks: Sequence[Trajectory]
    records: Mapping[str, Sequence[JsonObject]]
    heldout: Sequence[Task]
    overlaps: Mapping[str, str] = field(default_factory=dict)


def committed_seed(datasets: Mapping[str, str], sides: Mapping[str, Side], conditions: Conditions) -> int:
    """The seed of all episodes: it follows from the tasks, both models and the settings, so that nobody can
    choose it."""
    facts = conditions.model_dump(exclude={"seed", "max_context_tokens"}, mode="json")
    models = {name: sides[name].weights_sha256 for name in (BASELINE, TRAINED)}
    text = json.dumps([dict(datasets), models, facts], sort_keys=True)
    return derive_seed("certificate", text) >> (63 - _SEED_BITS)


def question_key(task: Task) -> str:
    """All that the user says, without case, space and punctuation."""
    said = [task.prompt[-1].content, *task.truth.user_turns]
    return " ".join(re.findall(r"\w+", " ".join(said).casefold()))


def plan_key(task: Task) -> str | None:
    """What is to be done and answered; None where no call is."""
    truth = task.truth
    if not truth.tool_sequence:
        return None
    calls = [(step.user_turn, step.server, step.tool, step.params) for step in truth.tool_sequence]
    answer = None if truth.final_answer is None else truth.final_answer.model_dump(mode="json")
    state = {
        server: [check.model_dump(mode="json") for check in checks] for server, checks in truth.state.items()
    }
    return json.dumps([calls, answer, state], sort_keys=True, default=str)


def overlaps(
    train: Iterable[Task], heldout: Sequence[Task], trained_on: Mapping[str, Sequence[str]]
) -> dict[str, str]:
    """Held-out tasks that training has, and why, by id. `trained_on` are the questions of the episodes that
    the run was trained on, by task id."""
    ids: set[str] = set()
    questions: set[str] = set()
    plans: set[str | None] = set()
    for task in train:
        ids.add(task.id)
        questions.add(question_key(task))
        plans.add(plan_key(task))
    plans.discard(None)
    played = {question for of_task in trained_on.values() for question in of_task}
    overlapping: dict[str, str] = {}
    for task in heldout:
        if task.id in ids:
            overlapping[task.id] = "a training task has its id"
        elif question_key(task) in questions:
            overlapping[task.id] = "a training task asks the same"
        elif plan_key(task) in plans:
            overlapping[task.id] = "a training task has the same plan and answer"
        elif not task.truth.user_turns and question_key(task) in played:
            overlapping[task.id] = "the run was trained on an episode that asks the same"
    return overlapping


def figures(evidence: Evidence) -> JsonObject:
    """Every figure of a certificate."""
    summaries = {side: summarise(played) for side, played in evidence.episodes.items()}
    controls = sorted(side for side in summaries if side.startswith(CONTROL))
    return {
        "tasks": {
            "held_out": len(evidence.heldout),
            "excluded": len(evidence.overlaps),
            "counted": len(evidence.heldout) - len(evidence.overlaps),
        },
        "gain": _gain(summaries[BASELINE], summaries[TRAINED]),
        "budget": {side: _budget(summaries[side], evidence.episodes[side]) for side in summaries},
        "controls": {
            side.removeprefix(CONTROL): {
                "trained_against_it": _gain(summaries[side], summaries[TRAINED]),
                **_cost(evidence.records.get(side, ()), evidence.records["run"]),
            }
            for side in controls
        },
        "attacks": _attacks(evidence.attacks),
        "records": _records(evidence.records["run"]),
    }


def _gain(a: EvalSummary, b: EvalSummary) -> JsonObject:
    """`b` minus `a` in task success, unscored episodes counted as failed."""
    try:
        compared = compare(a, b)
    except UserError:  # not one task that both could score
        return {"difference": None, "verdict": "no verdict", "why_no_verdict": "no task has a score on both"}
    difference = compared.difference_all.model_dump(mode="json")
    kept = ("p_value", "wins", "losses", "ties", "unpaired", "verdict", "why_no_verdict")
    return {"difference": difference, **{name: getattr(compared, name) for name in kept}}


def _budget(summary: EvalSummary, played: Sequence[Trajectory]) -> JsonObject:
    tokens = [sum(len(turn.completion.token_ids) for turn in t.turns) for t in played]
    passes = {
        name: m.model_dump(mode="json") for name, m in summary.metrics.items() if name.startswith("pass")
    }
    return {
        "episodes": len(played),
        "unscored": summary.unscored,
        "sampled_tokens": sum(tokens),
        "tool_calls": sum(t.call_count for t in played),
        "pass@1": success_of_all(summary).model_dump(mode="json"),
        "task_success_scored": summary.metrics["task_success"].model_dump(mode="json"),
        **passes,
    }


def _cost(records: Sequence[JsonObject], of_run: Sequence[JsonObject]) -> JsonObject:
    spent, run = (sum(record.get("cpu_s", 0.0) for record in each) for each in (records, of_run))
    share = spent / run if run else None
    return {
        "cpu_s": round(spent, 3),
        "share_of_the_run": None if share is None else round(share, 4),
        "is_at_equal_cost": share is not None and share >= EQUAL_COST,
    }


def _attacks(played: Sequence[Trajectory]) -> JsonObject:
    """By kind of attack, how many episodes it had and how many of them were a success; `gold` is the plan
    itself, which must succeed."""
    kinds: dict[str, list[bool]] = {}
    for trajectory in played:
        kinds.setdefault(trajectory.id.rpartition("#")[2], []).append(trajectory.is_success is True)
    counts = {kind: {"episodes": len(each), "succeeded": sum(each)} for kind, each in sorted(kinds.items())}
    gold = counts.pop("gold", {"episodes": 0, "succeeded": 0})
    tried, paid = (sum(c[name] for c in counts.values()) for name in ("episodes", "succeeded"))
    return {
        "episodes": tried,
        "succeeded": paid,
        "share": rate_interval(paid, tried).model_dump(mode="json") if tried else None,
        "kinds": counts,
        "gold": gold,
    }


def _records(records: Sequence[JsonObject]) -> JsonObject:
    """Weight sync (nats a token between sampler and trainer on the canary) and drift (tokens that a full
    rendering would have given otherwise), over the steps of the run."""
    proofs = [record["canary_difference"] for record in records if "canary_difference" in record]
    apart = [record["logprob_drift_max"] for record in records if "logprob_drift_max" in record]
    drifted = [record["drift_share"] for record in records if "drift_share" in record]
    return {
        "steps": len(records),
        "cpu_s": round(sum(record.get("cpu_s", 0.0) for record in records), 3),
        "weight_sync_proofs": len(proofs),
        "weight_sync_largest_nats": max(proofs, default=None),
        "sampler_trainer_largest_nats": max(apart, default=None),
        "token_drift_mean_share": fmean(drifted) if drifted else None,
        "unscored_episodes": sum(record.get("unscored", 0) for record in records),
    }


def write_certificate(folder: Path, certificate: Certificate, *, page: str) -> Certificate:
    """Write the page, and last certificate.json with the hashes of all that lies in the folder."""
    write_text(folder / PAGE, page)
    sealed = certificate.model_copy(update={"files": file_hashes(folder)})
    write_text(folder / CERTIFICATE, sealed.model_dump_json(indent=1) + "\n")
    return sealed


def read_certificate(folder: Path) -> Certificate:
    """Raises UserError."""
    path = folder / CERTIFICATE
    if not path.is_file():
        raise UserError(
            f"is not a certificate: it lacks {CERTIFICATE}",
            where=str(folder),
            remedy="name the folder that mcpagent certify RUN --out FOLDER wrote",
        )
    try:
        return Certificate.model_validate_json(path.read_bytes())
    except ValidationError as error:
        raise UserError(
            f"is damaged: {describe(error.errors()[0], root='the document')}",
            where=str(path),
            remedy="make the certificate again, or get the whole folder",
        ) from None


def file_hashes(folder: Path) -> dict[str, str]:
    """SHA-256 of every file but certificate.json, by its path in the folder."""
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {
        path.relative_to(folder).as_posix(): sha256_of(path) for path in files if path != folder / CERTIFICATE
    }


def sha256_of(path: Path) -> str:
    """Of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def certified_judge(opened: Opened) -> JudgeRules | None:
    """The judge that the certificate names, with the prompts in its folder; None where it names none. Raises
    UserError where both do not fit."""
    named = opened.certificate.grader.get("judge")
    if named is None:
        return None
    rules = JudgeRules(
        prompts=JudgePrompts.load(opened.folder / JUDGE_PROMPTS),
        **{name: named.get(name) for name in ("model", "base_url", "votes", "max_output_tokens", "controls")},
    )
    if rules.as_json() != named:
        raise UserError("its prompts or settings are not those that it is named with", where=JUDGE_PROMPTS)
    return rules


def reward_code_sha256() -> str:
    """Of the source of the reward and of what it compares with: who grades."""
    import mcpagent

    root = Path(mcpagent.__file__).parent
    files = [
        *sorted((root / "reward").glob("*.py")),
        root / "core/matching.py",
        root / "core/placeholders.py",
    ]
    total = hashlib.sha256()
    for path in files:
        total.update(f"{path.name} {sha256_of(path)}\n".encode())
    return total.hexdigest()


def source_sha256() -> str:
    """Of the whole package as it is installed here: what derives the figures, and writes the page."""
    import mcpagent

    root = Path(mcpagent.__file__).parent
    total = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        total.update(f"{path.relative_to(root).as_posix()} {sha256_of(path)}\n".encode())
    return total.hexdigest()


def other_version(certificate: Certificate) -> str | None:
    """A sentence where the certificate says that another version of mcpagent made it; None where this one
    did. What differs then need not be a fraud."""
    if certificate.code.get("source_sha256") == source_sha256():
        return None
    return (
        f"It says that another version of mcpagent made it ({version_of(certificate.code)}; this is "
        f"{version_of(provenance())}), which may derive intervals, grade or write the page in another way: "
        "check it with that version before you call it forged."
    )


def version_of(code: JsonObject) -> str:
    """Version and commit of what `storage.packages.provenance` says."""
    version, git = code.get("versions", {}).get("mcpagent", ""), code.get("git") or {}
    changed = ", with changes of its own" if git.get("has_changes") else ""
    return " ".join(part for part in (f"mcpagent {version}", git.get("commit", "") + changed) if part)


def task_file(folder: Path, split: str) -> Path:
    """The tasks of a split, `train` or `heldout`, whatever their file's ending. Raises UserError."""
    files = sorted((folder / "tasks").glob(f"{split}.json*"))
    if not files:
        raise UserError(
            f"lacks tasks/{split}.jsonl", where=str(folder), remedy="get the whole folder of the certificate"
        )
    return files[0]


def read_json_lines(path: Path) -> list[Any]:
    """The lines of a small file. Raises UserError for one that is cut."""
    try:
        return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    except (ValueError, OSError) as error:
        raise UserError(f"cannot be read: {error}", where=str(path), remedy="get the whole folder") from None


@dataclass(frozen=True, kw_only=True)
class Opened:
    """A certificate with its evidence as it is stored."""

    folder: Path
    certificate: Certificate
    train: Sequence[Task]
    heldout: Sequence[Task]
    episodes: Mapping[str, Sequence[Trajectory]]
    attacks: Sequence[Trajectory]
    records: Mapping[str, Sequence[JsonObject]]
    manifest: JsonObject
    trained_on: Mapping[str, Sequence[str]]

    @cached_property
    def overlaps(self) -> dict[str, str]:
        """Held-out tasks that training has, derived again."""
        return overlaps(self.train, self.heldout, self.trained_on)


def open_certificate(folder: Path) -> Opened:
    """Read everything in the folder. Raises UserError for what is missing or cannot be read."""
    certificate = read_certificate(folder)
    if not (folder / "cassette" / "catalog.json").is_file():
        raise UserError(
            "lacks the cassette", where=str(folder), remedy="get the whole folder of the certificate"
        )
    for side in (BASELINE, TRAINED):
        if side not in certificate.sides:
            raise UserError(
                f"has no side {side}", where=str(folder / CERTIFICATE), remedy="make the certificate again"
            )
    sides = {side: _episodes(folder, side) for side in certificate.sides}
    records = {"run": read_json_lines(folder / "run" / "metrics.jsonl")}
    for side in certificate.sides:
        if side.startswith(CONTROL):
            records[side] = read_json_lines(folder / "run" / f"{side}.jsonl")
    return Opened(
        folder=folder,
        certificate=certificate,
        train=DiskList(read_tasks(task_file(folder, "train"))),
        heldout=DiskList(read_tasks(task_file(folder, "heldout"))),
        episodes=sides,
        attacks=_episodes(folder, ATTACKS),
        records=records,
        manifest=_json(folder / "run" / "manifest.json"),
        trained_on=_json(folder / "run" / "trained_on.json"),
    )


def _episodes(folder: Path, side: str) -> DiskList[Trajectory]:
    path = folder / "episodes" / f"{side}.jsonl.zst"
    if not path.is_file():
        raise UserError(f"lacks episodes/{side}.jsonl.zst", where=str(folder), remedy="get the whole folder")
    return DiskList(read_trajectories(path))


def _json(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"cannot be read: {error}", where=str(path), remedy="get the whole folder") from None
