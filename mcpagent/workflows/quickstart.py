"""The main job, end to end and offline: data, warm start, GRPO, evaluation, report.

Each stage leaves its result on disk whole or not at all, so a second call goes on where the first stopped.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcpagent.config.loader import load_train_config
from mcpagent.config.resources import resource_path
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.evaluator import evaluate
from mcpagent.evaluate.report import write_report
from mcpagent.evaluate.summary import summarise
from mcpagent.storage.atomic import write_text
from mcpagent.storage.jsonl import read_tasks
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from mcpagent.synth.output import write_splits
from mcpagent.synth.rules import generate_dataset
from mcpagent.synth.templates import load_templates
from mcpagent.train.actor import roll_back
from mcpagent.train.setup import agent_settings, build_policy, load, open_tools
from mcpagent.workflows.train import Watch, train

SPLITS = {"train": 1600, "validation": 64, "heldout": 240}
SAMPLED_ATTEMPTS = 4  # for each held-out task at temperature 1
_LEDGER = "ledger.jsonl"
# What stands in the folder before the GRPO run makes it its run folder.
_BESIDE = ("data", "warm_start", "eval", "trajectories", "quickstart.json", _LEDGER, f"{_LEDGER}.env")

ABOUT = (
    "A network of about half a million weights, built from scratch, learns to use four MCP servers. It first "
    "imitates demonstrations of mixed quality: most of those that need several calls stop early. GRPO then "
    "trains it on real episodes, with rewards computed from what the servers answered, and it learns to "
    "finish the chain. This shows that the whole loop works and learns; it does not show a general agent."
)


@dataclass(frozen=True, kw_only=True)
class Stages:
    """Told what goes on. `begin(title, total)` opens a stage and returns how to advance it."""

    begin: Callable[[str, int | None], Any]
    note: Callable[[str], None] = lambda _: None


@dataclass
class Progress:
    """What is finished, by stage: CPU seconds, and how long the ledger was when the stage began."""

    path: Path
    seed: int
    cpu_s: dict[str, float] = field(default_factory=dict)
    ledger_bytes: dict[str, int] = field(default_factory=dict)
    catalog_hash: str = ""

    def save(self) -> None:
        document = {k: v for k, v in vars(self).items() if k != "path"}
        write_text(self.path, json.dumps(document, indent=1) + "\n")

    @classmethod
    def at(cls, path: Path, *, seed: int) -> Progress:
        """That of an earlier call, or a new one. Raises UserError if that call had another seed."""
        if not path.is_file():
            return cls(path, seed)
        known = cls(path, **json.loads(path.read_text(encoding="utf-8")))
        if known.seed != seed:
            raise UserError(
                f"this quickstart was begun with seed {known.seed}, not {seed}",
                where=str(path.parent),
                remedy=f"use --seed {known.seed}, another --out, or delete it: rm -r {path.parent}",
            )
        return known


@dataclass(frozen=True)
class QuickstartJob:
    """One quickstart: where it is, its configurations, and who is told."""

    out: Path
    seed: int
    warm: TrainConfig
    grpo: TrainConfig
    ledger: Path
    progress: Progress
    stages: Stages

    @contextmanager
    def stage(self, name: str, title: str, total: int | None) -> Iterator[Any]:
        """Times a stage, rolls the ledger back to where the stage first began, shows a bar."""
        begun = self.progress.ledger_bytes.setdefault(name, _size(self.ledger))
        self.progress.save()
        roll_back(self.ledger, max(begun, 0))
        started = time.process_time()
        with self.stages.begin(title, total) as advance:
            yield advance
        self.progress.cpu_s[name] = self.progress.cpu_s.get(name, 0.0) + time.process_time() - started
        self.progress.save()


def quickstart(
    out: Path,
    *,
    seed: int,
    stages: Stages,
    controls: Callable[[QuickstartJob, Path], list[JsonObject]] | None = None,
) -> JsonObject:
    """Run what is not yet done in `out`; returns the document of `quickstart --json`. `controls` runs control
    experiments from the warm-started checkpoint before the report is written (`workflows.controls`)."""
    job = _open_job(out, seed=seed, stages=stages)
    _generate(job)
    warm_checkpoint = _warm_start(job)
    before = evaluate_checkpoint(job, "warm_start", warm_checkpoint, "evaluate the warm start")
    trained_checkpoint = _grpo(job, warm_checkpoint)
    after = evaluate_checkpoint(job, "trained", trained_checkpoint, "evaluate the trained model")
    rows = controls(job, warm_checkpoint) if controls is not None else []
    report = write_report(out)
    return {
        "run_dir": str(out),
        "seed": seed,
        "warm_start": {"metrics": before},
        "trained": {"metrics": after},
        "tool_calls": _count_calls(job),
        "cpu_s": {name: round(value, 1) for name, value in job.progress.cpu_s.items()},
        "checkpoint": str(trained_checkpoint),
        **({"controls": rows} if rows else {}),
        "report": str(report),
    }


def _open_job(out: Path, *, seed: int, stages: Stages) -> QuickstartJob:
    warm = load_train_config(
        [resource_path("configs/warm_start.yaml")],
        [f"seed={seed}", f"data.train={json.dumps(str(out / 'data' / 'train.jsonl'))}"],
    ).config
    grpo = load_train_config(
        [resource_path("configs/quickstart.yaml")],
        [
            f"seed={seed}",
            f"data.train={json.dumps(str(out / 'data' / 'train.jsonl'))}",
            f"model.name={json.dumps(str(out / 'warm_start' / 'checkpoints' / _last_step(warm)))}",
        ],
    ).config
    if out.exists() and any(out.iterdir()) and not (out / "quickstart.json").is_file():
        raise UserError(
            "the folder holds something that is no quickstart",
            where=str(out),
            remedy="name another folder with --out",
        )
    out.mkdir(parents=True, exist_ok=True)
    progress = Progress.at(out / "quickstart.json", seed=seed)
    named = os.environ.get("MCPAGENT_CALL_LEDGER")
    job = QuickstartJob(out, seed, warm, grpo, Path(named) if named else out / _LEDGER, progress, stages)
    with open_tools(grpo.tools) as tools:
        current = tools.pool.catalog_hash
    if progress.catalog_hash and progress.catalog_hash != current:
        stages.note("the tools have changed since the last call: data, tokenizer and model are made anew")
        shutil.rmtree(out)
        return _open_job(out, seed=seed, stages=stages)
    progress.catalog_hash = current
    progress.save()
    return job


def _last_step(warm: TrainConfig) -> str:
    return f"step-{warm.training.total_steps(n_tasks=SPLITS['train']) + warm.sft.copy_steps:06d}"


def _generate(job: QuickstartJob) -> None:
    folder = job.out / "data"
    if all((folder / f"{split}.jsonl").is_file() for split in SPLITS):
        return
    with (
        job.stage("data", "make tasks", sum(SPLITS.values())) as advance,
        open_tools(job.grpo.tools) as tools,
    ):
        data = tools.io.run(
            generate_dataset(
                tools.pool,
                load_templates(resource_path("templates/tasks")),
                counts=SPLITS,
                seed=job.seed,
                on_progress=lambda _split, _kept, _total: advance(),
            )
        )
        write_splits(data, folder, overwrite=True)


def _warm_start(job: QuickstartJob) -> Path:
    folder = job.out / "warm_start"
    steps = job.warm.training.total_steps(n_tasks=SPLITS["train"]) + job.warm.sft.copy_steps
    final = folder / "checkpoints" / _last_step(job.warm)
    if final.is_dir():
        return final
    with job.stage("warm_start", "warm start", steps) as advance:
        resumed = _steps_done(folder)
        if resumed:
            advance(resumed)
        train(
            job.warm,
            run_dir=folder,
            resume=(folder / "config.yaml").is_file(),
            ledger=job.ledger,
            manifest={"title": "Warm start of the embedded model"},
            watch=Watch(on_step=lambda r: advance(note=f"loss {r['loss']:.3f}"), note=job.stages.note),
        )
    return final


def _grpo(job: QuickstartJob, warm_checkpoint: Path) -> Path:
    steps = job.grpo.training.total_steps(n_tasks=SPLITS["train"])
    final = job.out / "checkpoints" / f"step-{steps:06d}"
    if final.is_dir():
        return final
    with job.stage("grpo", "GRPO on real episodes", steps) as advance:
        begun = job.progress.ledger_bytes["grpo"]
        resume = (job.out / "config.yaml").is_file()
        if resume:
            advance(_steps_done(job.out))
        train(
            job.grpo,
            run_dir=job.out,
            resume=resume,
            ledger=job.ledger,
            ledger_start=begun,
            beside=_BESIDE,
            manifest={"title": "mcpagent quickstart", "about": ABOUT, "warm_start": str(warm_checkpoint)},
            watch=Watch(
                on_step=lambda r: advance(
                    note=f"reward {r.get('reward_mean', 0):.2f}  success {r.get('success_rate', 0):.0%}"
                ),
                note=job.stages.note,
            ),
        )
    return final


def evaluate_checkpoint(job: QuickstartJob, name: str, checkpoint: Path, title: str) -> JsonObject:
    """Greedy and at temperature 1, on held-out tasks; metrics as `quickstart --json` shows them."""
    folder = job.out / "eval"
    files = {0.0: folder / f"{name}.json", 1.0: folder / f"{name}_sampled.json"}
    if not all(path.is_file() for path in files.values()):
        tasks = list(read_tasks(job.out / "data" / "heldout.jsonl"))
        total = len(tasks) * (1 + SAMPLED_ATTEMPTS)
        with job.stage(f"eval_{name}", title, total) as advance:
            for temperature, path in files.items():
                _evaluate_at(job, name, checkpoint, tasks, temperature, path, lambda _: advance())
    metrics = {t: json.loads(path.read_text(encoding="utf-8"))["metrics"] for t, path in files.items()}
    return {**metrics[0.0], "task_success_sampled": metrics[1.0]["task_success"]}


def _evaluate_at(
    job: QuickstartJob,
    name: str,
    checkpoint: Path,
    tasks: list[Any],
    temperature: float,
    path: Path,
    on_done: Callable[[Trajectory], None],
) -> None:
    config = job.grpo.model_copy(
        update={"model": job.grpo.model.model_copy(update={"name": str(checkpoint)})}
    )
    loaded = load(config)
    policy, _ = build_policy(loaded, model=loaded.model, threads=config.threads, slots=256)
    settings = agent_settings(config, max_context=loaded.max_context)
    settings = replace(settings, sampling=replace(settings.sampling, temperature=temperature))
    samples = 1 if temperature == 0 else SAMPLED_ATTEMPTS
    try:
        with open_tools(config.tools, ledger=job.ledger) as tools:
            trajectories = tools.io.run(
                evaluate(
                    tasks,
                    policy=policy,
                    tools=tools.pool,
                    settings=settings,
                    renderer=loaded.renderer,
                    samples=samples,
                    seed=job.seed,
                    on_done=on_done,
                )
            )
    finally:
        policy.close()
    suffix = "" if temperature == 0 else "_sampled"
    write_trajectories(job.out / "trajectories" / f"eval_{name}{suffix}", trajectories)
    result = summarise(trajectories, seed=job.seed).with_provenance(
        {
            "checkpoint": str(checkpoint),
            "data": str(job.out / "data" / "heldout.jsonl"),
            "split": "heldout",
            "temperature": temperature,
            "samples": samples,
            "seed": job.seed,
        }
    )
    write_text(path, result.model_dump_json(indent=1) + "\n")


def _count_calls(job: QuickstartJob) -> JsonObject:
    """Calls that trajectories say were made over MCP, and calls that the servers say they got."""
    stored = [
        *(job.out / "warm_start" / "trajectories").glob("*.jsonl.zst"),
        *(job.out / "trajectories").glob("*.jsonl.zst"),
        *(job.out / "controls").glob("*/trajectories/*.jsonl.zst"),
    ]
    made = sum(
        len(_nonces(trajectory))
        for path in stored
        for trajectory in read_trajectories(path, with_tokens=False)
    )
    received = sum(1 for _ in job.ledger.open("rb")) if job.ledger.exists() else 0
    return {"trajectories": made, "servers": received}


def _nonces(trajectory: Trajectory) -> list[str]:
    """A result without a nonce never reached a server: the environment refused the call."""
    return [r.meta["mcpagent/nonce"] for r in trajectory.tool_results if "mcpagent/nonce" in r.meta]


def _steps_done(folder: Path) -> int:
    if not (folder / "config.yaml").is_file():
        return 0
    checkpoint = RunFolder.open(folder).latest_checkpoint()
    return (step_of(checkpoint) or 0) if checkpoint else 0


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
