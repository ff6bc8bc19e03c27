"""What else could have explained the gain: control experiments from the same warm start, each with the CPU
seconds that GRPO's steps took; and what comparing attempts is for, if what is right is wasteful."""

from __future__ import annotations

import json
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import BudgetConfig, HealthConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.demo.job import QuickstartJob
from mcpagent.demo.quickstart import evaluate_checkpoint, evaluate_sampled
from mcpagent.demo.warm_start import copy
from mcpagent.evaluate.intervals import paired_difference
from mcpagent.run.train import Watch, train
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories

_SAMPLED_ATTEMPTS = 4  # for each held-out task: a small loss or gain must show
_WHAT = {
    "random rewards": "the same GRPO, but rewards are drawn at random",
    "more demonstrations": "supervised training goes on, on the same demonstrations",
    "rejection sampling": "the policy trains on its own successes, without comparing attempts",
}
_LOOKS_UP_TWICE = 0.8  # of the lookups in the demonstrations that teach to waste
_WASTE_STEPS = 80  # of supervised training
_WASTE_GRPO_STEPS = 14
_WASTE = {
    "wasteful start": f"the warm start, after demonstrations that look {_LOOKS_UP_TWICE:.0%} up twice",
    "GRPO": "attempts are compared by the whole reward: a repeated call costs 0.04",
    "rejection sampling": "the policy trains on its own successes, wasteful or not",
    "best of each group": "the policy trains on the best attempt of each group, and on no other",
}


def run_controls(job: QuickstartJob, warm_checkpoint: Path) -> dict[str, list[JsonObject]]:
    """Run and evaluate what is not yet done; returns what it adds to the document of the quickstart. Servers
    of the user's own have no wasteful tasks: nothing says that their lookups may be repeated. Nor has a
    pretrained model, whose start nobody made wasteful."""
    rows = {"controls": _run_controls(job, warm_checkpoint)}
    if job.explored is None and job.pretrained is None:
        rows["wasteful"] = run_wasteful(job, warm_checkpoint)
    return rows


def _run_controls(job: QuickstartJob, warm_checkpoint: Path) -> list[JsonObject]:
    """`eval/controls.json` holds what the report shows."""
    budget_s = sum(record["cpu_s"] for record in RunFolder.open(job.out).metrics())
    rows: list[JsonObject] = []
    for name, config in _configs(job, warm_checkpoint, budget_s).items():
        key = name.replace(" ", "_")
        folder = job.out / "controls" / key
        checkpoint = _train(job, f"control_{key}", f"control: {name}", folder, config)
        metrics = evaluate_checkpoint(
            job, f"control_{key}", checkpoint, f"evaluate: {name}", sampled_attempts=_SAMPLED_ATTEMPTS
        )
        rows.append(
            {
                "name": name,
                "what": _WHAT[name],
                "cpu_s": round(sum(r["cpu_s"] for r in RunFolder.open(folder).metrics()), 1),
                "greedy": metrics["task_success"],
                "greedy_scored": metrics["task_success_scored"],
                "sampled": metrics["task_success_sampled"],
                "sampled_scored": metrics["task_success_sampled_scored"],
            }
        )
    write_text(job.out / "eval" / "controls.json", json.dumps(rows, indent=1) + "\n")
    return rows


def _configs(job: QuickstartJob, warm_checkpoint: Path, budget_s: float) -> dict[str, TrainConfig]:
    # A control spends its whole budget, healthy or not.
    capped: dict[str, Any] = {
        "budget": BudgetConfig(cpu_s=budget_s),
        "health": HealthConfig(enabled=False),
    }
    grpo, warm = job.grpo.model_copy(update=capped), job.warm.model_copy(update=capped)
    long = grpo.training.model_copy(update={"max_steps": 10_000})
    per_step_s = _supervised_step_s(job)
    more = warm.training.model_copy(update={"max_steps": max(1, round(budget_s / per_step_s))})
    return {
        "random rewards": grpo.model_copy(
            update={"training": long, "reward": grpo.reward.model_copy(update={"control": "random"})}
        ),
        "more demonstrations": warm.model_copy(
            update={
                "training": more,
                "data": warm.data.model_copy(update={"max_tasks": grpo.data.max_tasks}),
                "model": warm.model.model_copy(update={"name": str(warm_checkpoint)}),
                "sft": warm.sft.model_copy(update={"curriculum_steps": 0}),
            }
        ),
        "rejection sampling": grpo.model_copy(
            update={"training": long, "reward": grpo.reward.model_copy(update={"control": "rejection"})}
        ),
    }


def _supervised_step_s(job: QuickstartJob) -> float:
    """CPU seconds that a supervised step of the warm start took: the schedule must end with the budget."""
    steps = [
        r["cpu_s"]
        for r in RunFolder.open(job.out / "warm_start").metrics()
        if r.get("phase") == "demonstrations"
    ]
    return sum(steps) / len(steps)


class Wasteful:
    """Demonstrations that make most lookups twice (`train.sft.Augmentation`). The second call has the result
    of the first: a lookup changes nothing."""

    curriculum = staticmethod(copy)
    wording = None

    def __init__(self, lookups: Sequence[str]) -> None:
        self._lookups = frozenset(lookups)

    def rewritten(self, trajectory: Trajectory, /, *, seed: int) -> Trajectory:
        """Return the demonstration with repeated lookups."""
        rng = random.Random(seed)
        turns: list[Turn] = []
        for turn in trajectory.turns:
            made = [f"{result.server}.{result.tool}" for result in turn.tool_results]
            is_twice = made and self._lookups.issuperset(made) and rng.random() < _LOOKS_UP_TWICE
            turns += [turn] * (2 if is_twice else 1)
        again = [turn.model_copy(update={"index": index}) for index, turn in enumerate(turns)]
        return trajectory.model_copy(update={"turns": tuple(again)})


def wasteful(_demonstrations: Sequence[Trajectory], catalog: Mapping[str, ToolSpec]) -> Wasteful:
    """For `sft.augmentation`: demonstrations that look most things up twice."""
    return Wasteful([spec.dotted for spec in catalog.values() if spec.annotations.read_only])


def run_wasteful(job: QuickstartJob, warm_checkpoint: Path) -> list[JsonObject]:
    """From a warm start that succeeds and wastes calls: GRPO, and what keeps good attempts for as many CPU
    seconds; `eval/wasteful.json` holds what the report shows."""
    place = job.out / "wasteful"
    for split in ("train", "heldout"):
        one_call = (
            t for t in read_tasks(job.out / "data" / f"{split}.jsonl") if len(t.truth.tool_sequence) == 1
        )
        write_jsonl(place / f"{split}.jsonl", one_call)
    start = _train(
        job, "wasteful_start", "learn to waste", place / "start", _wasteful_start(job, warm_checkpoint)
    )
    folders, budget_s = [place / "start"], None
    rows = [_wasteful_row(job, "wasteful start", start, folders[0])]
    for name, config in _wasteful_configs(job, start).items():
        folder = place / name.replace(" ", "_").lower()
        if budget_s is not None:
            config = config.model_copy(update={"budget": BudgetConfig(cpu_s=budget_s)})
        checkpoint = _train(job, f"wasteful_{folder.name}", f"wasteful: {name}", folder, config)
        rows.append(_wasteful_row(job, name, checkpoint, folder))
        folders.append(folder)
        budget_s = budget_s or sum(record["cpu_s"] for record in RunFolder.open(folder).metrics())
    of_grpo = _as_planned(job, place / "grpo")
    for row, folder in zip(rows, folders, strict=True):
        paired = paired_difference(_as_planned(job, folder), of_grpo, seed=job.seed)
        row["as_planned_less_than_grpo"] = paired.difference.model_dump()
    write_text(job.out / "eval" / "wasteful.json", json.dumps(rows, indent=1) + "\n")
    return rows


def _wasteful_start(job: QuickstartJob, warm_checkpoint: Path) -> TrainConfig:
    warm = job.warm
    sft = {"curriculum_steps": 0, "wrong_tool": 0.0, "augmentation": f"{__name__}:wasteful"}
    return warm.model_copy(
        update={
            "training": warm.training.model_copy(update={"max_steps": _WASTE_STEPS}),
            "model": warm.model.model_copy(update={"name": str(warm_checkpoint)}),
            "data": warm.data.model_copy(update={"train": str(job.out / "wasteful" / "train.jsonl")}),
            "sft": warm.sft.model_copy(update=sft),
        }
    )


def _wasteful_configs(job: QuickstartJob, start: Path) -> dict[str, TrainConfig]:
    """The quickstart's GRPO from another start, then what differs from it in which attempts count."""
    model = job.grpo.model.model_copy(update={"name": str(start)})
    health, training = HealthConfig(enabled=False), job.grpo.training
    training = training.model_copy(update={"max_steps": min(_WASTE_GRPO_STEPS, training.max_steps or 1)})
    data = job.grpo.data.model_copy(update={"train": str(job.out / "wasteful" / "train.jsonl")})
    # Every token weighs the same: with the mean over each attempt, short ones that succeed pull harder than
    # long ones, so that training on successes alone becomes brief without comparing anything.
    algorithm = job.grpo.grpo.model_copy(update={"loss": "dapo"})
    grpo = job.grpo.model_copy(
        update={
            "model": model,
            "data": data,
            "health": health,
            "training": training,
            "grpo": algorithm,
        }
    )
    long = training.model_copy(update={"max_steps": 10_000})

    def control(name: str) -> TrainConfig:
        return grpo.model_copy(
            update={"training": long, "reward": grpo.reward.model_copy(update={"control": name})}
        )

    return {"GRPO": grpo, "rejection sampling": control("rejection"), "best of each group": control("best")}


def _wasteful_row(job: QuickstartJob, name: str, checkpoint: Path, folder: Path) -> JsonObject:
    """Success, calls as planned and reward, all sampled at temperature 1."""
    key = f"wasteful_{folder.name}"
    metrics = evaluate_sampled(
        job,
        key,
        checkpoint,
        f"evaluate: {name}",
        attempts=_SAMPLED_ATTEMPTS,
        data=folder.parent / "heldout.jsonl",
    )
    records = list(RunFolder.open(folder).metrics())
    return {
        "name": name,
        "what": _WASTE[name],
        "cpu_s": round(sum(record["cpu_s"] for record in records), 1),
        "episodes": sum(record.get("episodes", 0) for record in records),
        "success": metrics["task_success"],
        "as_planned": metrics["tool_sequence_accuracy"],
        "reward": metrics["mean_reward"],
        "calls": metrics["mean_tool_calls"],
    }


def _as_planned(job: QuickstartJob, folder: Path) -> dict[str, list[float]]:
    """By held-out task, 1 for each attempt whose calls are the plan, else 0."""
    path = job.out / "trajectories" / f"eval_wasteful_{folder.name}_sampled.jsonl.zst"
    values: dict[str, list[float]] = {}
    for trajectory in read_trajectories(path, with_tokens=False):
        values.setdefault(trajectory.task_id, []).append(trajectory.term("sequence_exact") or 0.0)
    return values


def _train(job: QuickstartJob, key: str, title: str, folder: Path, config: TrainConfig) -> Path:
    finished = folder / "finished.json"
    if not finished.is_file():
        with job.stage(key, title, None, resumes=config.algorithm == "grpo") as advance:
            outcome = train(
                config,
                run_dir=folder,
                resume=(folder / "config.yaml").is_file(),
                ledger=job.ledger,
                ledger_start=job.progress.ledger_bytes[key],
                manifest={"title": title[:1].upper() + title[1:]},
                watch=Watch(on_step=lambda _: advance(), note=job.stages.note),
            )
        write_text(
            finished, json.dumps({"checkpoint": str(outcome.last_checkpoint)}) + "\n", is_settings=True
        )
    return Path(json.loads(finished.read_text(encoding="utf-8"))["checkpoint"])
