"""What else could have explained the gain: control experiments from the same warm start, each with the CPU
seconds that GRPO's steps took."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from mcpagent.config.schema import TrainConfig
from mcpagent.config.sections import BudgetConfig, HealthConfig
from mcpagent.core.records import JsonObject
from mcpagent.demo.job import QuickstartJob
from mcpagent.demo.quickstart import evaluate_checkpoint
from mcpagent.run.train import Watch, run_training
from mcpagent.storage.atomic import write_text
from mcpagent.storage.run_folder import RunFolder

_SAMPLED_ATTEMPTS = 4  # for each held-out task: a small loss or gain must show
_WHAT = {
    "random rewards": "the same GRPO, but rewards are drawn at random",
    "more demonstrations": "supervised training goes on, on the same demonstrations",
    "rejection sampling": "the policy trains on its own successes, without comparing attempts",
}


def run_controls(job: QuickstartJob, warm_checkpoint: Path) -> list[JsonObject]:
    """Run and evaluate what is not yet done; returns the rows of the report, which are also in
    `eval/controls.json`."""
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
    long = grpo.with_settings(training={"max_steps": 10_000})
    return {
        "random rewards": long.with_settings(reward={"control": "random"}),
        "more demonstrations": warm.with_settings(
            training={"max_steps": max(1, round(budget_s / _supervised_step_s(job)))},
            data={"max_tasks": grpo.data.max_tasks},
            model={"name": str(warm_checkpoint)},
            sft={"curriculum_steps": 0},
        ),
        "rejection sampling": long.with_settings(reward={"control": "rejection"}),
    }


def _supervised_step_s(job: QuickstartJob) -> float:
    """CPU seconds that a supervised step of the warm start took: the schedule must end with the budget."""
    steps = [
        r["cpu_s"]
        for r in RunFolder.open(job.out / "warm_start").metrics()
        if r.get("phase") == "demonstrations"
    ]
    return sum(steps) / len(steps)


def _train(job: QuickstartJob, key: str, title: str, folder: Path, config: TrainConfig) -> Path:
    finished = folder / "finished.json"
    if not finished.is_file():
        with job.stage(key, title, None, resumes=config.algorithm == "grpo") as advance:
            outcome = run_training(
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
