"""The main job, end to end and offline: data, warm start, GRPO, evaluation, report.

Each stage leaves its result on disk whole or not at all, so a second call goes on where the first stopped.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.config.environment import resource_path
from mcpagent.config.loader import load_train_config
from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import RunError, UserError
from mcpagent.evaluate.report.page import write_report
from mcpagent.evaluate.summary import summarise
from mcpagent.rollout.setup import open_tools
from mcpagent.run.evaluate import evaluate_on
from mcpagent.run.stage import open_stage
from mcpagent.run.train import Watch, train
from mcpagent.storage.atomic import write_text
from mcpagent.storage.locks import LOCK_NAME
from mcpagent.storage.run_folder import RunFolder, step_name, step_of
from mcpagent.storage.runs import run_session
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from mcpagent.synth.generate import short_note, write_splits
from mcpagent.synth.templates.rules import generate_dataset
from mcpagent.synth.templates.template import load_templates

SPLITS = {"train": 1600, "validation": 64, "heldout": 240}
LEDGER_NAME = "ledger.jsonl"
_PROGRESS_NAME = "quickstart.json"
# What stands in the folder before the GRPO run makes it its run folder.
BESIDE = ("data", "warm_start", "eval", "trajectories", _PROGRESS_NAME, LEDGER_NAME, f"{LEDGER_NAME}.env")


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
        write_text(self.path, json.dumps(document, indent=1) + "\n", is_settings=True)

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
                remedy=f"use --seed {known.seed}, or another --out",
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

    @property
    def warm_steps(self) -> int:
        return self.warm.total_steps(n_tasks=SPLITS["train"])

    @property
    def warm_checkpoint(self) -> Path:
        """Where the warm start leaves its result."""
        return self.out / "warm_start" / "checkpoints" / step_name(self.warm_steps)

    @contextmanager
    def stage(self, name: str, title: str, total: int | None, *, resumes: bool = False) -> Iterator[Any]:
        """Times a stage and shows a bar. A stage that was cut off is done again as a whole, so the servers'
        ledger is rolled back to where it began; one that `resumes` does that itself, to its checkpoint."""
        begun = self.progress.ledger_bytes.setdefault(name, _size(self.ledger))
        self.progress.save()
        if not resumes:
            from mcpagent.train.actor import roll_back  # and with it torch, which a check does without

            roll_back(self.ledger, begun)
        started = time.process_time()
        with self.stages.begin(title, total) as advance:
            yield advance
        self.progress.cpu_s[name] = self.progress.cpu_s.get(name, 0.0) + time.process_time() - started
        self.progress.save()


def check_folder(out: Path, *, seed: int) -> Progress:
    """How far the quickstart in `out` has come; a new one where there is nothing yet. Raises UserError where
    `out` is something else, or was begun with another seed."""
    if out.exists() and not out.is_dir():
        raise UserError("is a file, not a folder", where=f"--out {out}", remedy="name another one with --out")
    progress_file = out / _PROGRESS_NAME
    is_foreign = out.is_dir() and any(path.name != LOCK_NAME for path in out.iterdir())
    if is_foreign and not progress_file.is_file():
        raise UserError(
            "there is something here that is not a quickstart",
            where=str(out),
            remedy="name another folder with --out",
        )
    return Progress.at(progress_file, seed=seed)


def open_job(out: Path, *, seed: int, stages: Stages) -> QuickstartJob:
    """A new quickstart in the folder `out`, or the one that is there. Raises UserError where `out` holds
    something else or was begun with another seed. If the tools have changed since, what is there is moved
    aside."""
    progress = check_folder(out, seed=seed)
    data = f"data.train={json.dumps(str(out / 'data' / 'train.jsonl'))}"
    # It evaluates by itself, before and after GRPO, greedily and not.
    settings = [f"seed={seed}", data, "training.eval_samples=0"]
    warm = load_train_config([resource_path("configs/warm_start.yaml")], settings).config
    grpo = load_train_config([resource_path("configs/quickstart.yaml")], settings).config
    with open_tools(grpo.tools) as tools:
        current = tools.pool.catalog_hash
    if progress.catalog_hash not in ("", current):
        aside = out.with_name(f"{out.name}-{progress.catalog_hash[:8]}")
        stages.note(
            "the tools have changed since the last call, so data, tokenizer and model are made anew; what "
            f"was there is in {aside}"
        )
        _move_aside(out, aside)
        progress = Progress(progress.path, seed)
    progress.catalog_hash = current
    progress.save()
    named = os.environ.get("MCPAGENT_CALL_LEDGER")
    job = QuickstartJob(out, seed, warm, grpo, Path(named or out / LEDGER_NAME), progress, stages)
    model = grpo.model.model_copy(update={"name": str(job.warm_checkpoint)})
    return replace(job, grpo=grpo.model_copy(update={"model": model}))


def _move_aside(out: Path, aside: Path) -> None:
    """Everything but the lock; the file that says what the folder is goes last, so that a killed move is
    taken up again."""
    aside.mkdir(exist_ok=True)
    paths = [path for path in out.iterdir() if path.name not in (LOCK_NAME, _PROGRESS_NAME)]
    for path in [*paths, out / _PROGRESS_NAME]:
        path.replace(aside / path.name)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


SAMPLED_ATTEMPTS = 2  # for each held-out task at temperature 1
_EPISODES_AT_ONCE = 256

ABOUT = (
    "A network of about half a million weights, built from scratch, learns to use four MCP servers. It first "
    "imitates demonstrations of mixed quality: most of those that need several calls stop early. GRPO then "
    "trains it on real episodes, with rewards computed from what the servers answered, and it learns to "
    "finish the chain. This shows that the whole loop works and learns; it does not show a general agent."
)


def quickstart(
    out: Path,
    *,
    seed: int,
    stages: Stages,
    controls: Callable[[QuickstartJob, Path], list[JsonObject]] | None = None,
) -> JsonObject:
    """Run what is not yet done in `out`; returns the document of `quickstart --json`. `controls` runs control
    experiments from the warm-started checkpoint before the report is written (`workflows.controls`)."""
    with run_session(out, kind="quickstart") as session:
        job = open_job(out, seed=seed, stages=stages)
        session.begin(job.grpo.total_steps(n_tasks=SPLITS["train"]))
        return _run(job, controls)


def _run(
    job: QuickstartJob, controls: Callable[[QuickstartJob, Path], list[JsonObject]] | None
) -> JsonObject:
    make_tasks(job)
    warm_checkpoint = warm_start(job)
    before = evaluate_checkpoint(job, "warm_start", warm_checkpoint, "evaluate the warm start")
    trained_checkpoint = _grpo(job, warm_checkpoint)
    after = evaluate_checkpoint(job, "trained", trained_checkpoint, "evaluate the trained model")
    rows = controls(job, warm_checkpoint) if controls is not None else []
    report = write_report(job.out)
    return {
        "run_dir": str(job.out),
        "seed": job.seed,
        "warm_start": {"metrics": before},
        "trained": {"metrics": after},
        "tool_calls": _count_calls(job),
        "cpu_s": {name: round(value, 1) for name, value in job.progress.cpu_s.items()},
        "checkpoint": str(trained_checkpoint),
        **({"controls": rows} if rows else {}),
        "report": str(report),
    }


def make_tasks(job: QuickstartJob) -> None:
    """Write the tasks of every split, where they are not there yet."""
    folder = job.out / "data"
    if all((folder / f"{split}.jsonl").is_file() for split in SPLITS):
        return
    with (
        job.stage("data", "make tasks", sum(SPLITS.values())) as advance,
        open_tools(job.grpo.tools) as tools,
    ):
        done: dict[str, int] = {}

        def on_progress(split: str, kept: int, _total: int) -> None:
            advance(kept - done.get(split, 0), note=split)
            done[split] = kept

        data = tools.io.run(
            generate_dataset(
                tools.pool,
                load_templates(resource_path("templates/tasks")),
                counts=SPLITS,
                seed=job.seed,
                on_progress=on_progress,
            )
        )
        if short := data.short_of(SPLITS):
            raise RunError(short_note(short, "the embedded data have too few entities for these templates"))
        write_splits(data.tasks, folder, servers=DatasetServers.of(folder, job.grpo.tools), overwrite=True)


def warm_start(job: QuickstartJob) -> Path:
    """The checkpoint of the warm start, which is made where it is not there yet."""
    folder, final = job.out / "warm_start", job.warm_checkpoint
    if final.is_dir():
        return final
    with job.stage("warm_start", "warm start", job.warm_steps) as advance:
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
    steps = job.grpo.total_steps(n_tasks=SPLITS["train"])
    final = job.out / "checkpoints" / f"step-{steps:06d}"
    if final.is_dir():
        return final
    with job.stage("grpo", "GRPO on real episodes", steps, resumes=True) as advance:
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
            beside=BESIDE,
            manifest={"title": "mcpagent quickstart", "about": ABOUT, "warm_start": str(warm_checkpoint)},
            watch=Watch(
                on_step=lambda r: advance(
                    note=f"reward {r.get('reward_mean', 0):.2f}  success {r.get('success_rate', 0):.0%}"
                ),
                note=job.stages.note,
            ),
        )
    return final


def evaluate_checkpoint(
    job: QuickstartJob,
    name: str,
    checkpoint: Path,
    title: str,
    *,
    sampled_attempts: int = SAMPLED_ATTEMPTS,
) -> JsonObject:
    """Greedy and at temperature 1, on held-out tasks; metrics as `quickstart --json` shows them."""
    folder = job.out / "eval"
    files = {0.0: folder / f"{name}.json", 1.0: folder / f"{name}_sampled.json"}
    if not all(path.is_file() for path in files.values()):
        total = SPLITS["heldout"] * (1 + sampled_attempts)
        with job.stage(f"eval_{name}", title, total) as advance:
            for temperature, path in files.items():
                samples = sampled_attempts if temperature else 1
                _evaluate_at(job, checkpoint, temperature, samples, path, lambda _: advance())
    metrics = {t: json.loads(path.read_text(encoding="utf-8"))["metrics"] for t, path in files.items()}
    sampled = {f"task_success_sampled{end}": metrics[1.0][f"task_success{end}"] for end in ("", "_all")}
    return {**metrics[0.0], **sampled}


def _evaluate_at(
    job: QuickstartJob,
    checkpoint: Path,
    temperature: float,
    samples: int,
    path: Path,
    on_done: Callable[[Trajectory], None],
) -> None:
    rollout = job.grpo.rollout.model_copy(update={"temperature": temperature, "num_envs": _EPISODES_AT_ONCE})
    with open_stage(
        job.grpo.model_copy(update={"rollout": rollout}),
        policy=str(checkpoint),
        samples=samples,
        console=Console(is_json=True),
        data=job.out / "data" / "heldout.jsonl",
        ledger=job.ledger,
    ) as stage:
        trajectories = evaluate_on(stage, samples=samples, on_done=on_done)
        provenance = stage.provenance(samples=samples)
    write_trajectories(job.out / "trajectories" / f"eval_{path.stem}", trajectories)
    result = summarise(trajectories, seed=job.seed).with_provenance({**provenance, "split": "heldout"})
    write_text(path, result.model_dump_json(indent=1) + "\n")


def _count_calls(job: QuickstartJob) -> JsonObject:
    """Calls that trajectories say were made over MCP, and calls that the servers say they got."""
    stored = [
        path
        for pattern in ("warm_start/trajectories", "trajectories", "controls/*/trajectories")
        for path in job.out.glob(f"{pattern}/*.jsonl.zst")
        if not path.name.startswith("eval_step-")  # of `mcpagent eval`, later and with servers of its own
    ]
    made = sum(
        len(_nonces(trajectory))
        for path in stored
        for trajectory in read_trajectories(path, with_tokens=False)
    )
    received = 0
    if job.ledger.exists():
        with job.ledger.open("rb") as lines:
            lines.seek(min(job.progress.ledger_bytes.values()))  # an older ledger may have been named
            received = sum(1 for _ in lines)
    return {"trajectories": made, "servers": received}


def _nonces(trajectory: Trajectory) -> list[str]:
    """A result without a nonce never reached a server: the environment refused the call."""
    return [r.meta["mcpagent/nonce"] for r in trajectory.tool_results if "mcpagent/nonce" in r.meta]


def _steps_done(folder: Path) -> int:
    if not (folder / "config.yaml").is_file():
        return 0
    checkpoint = RunFolder.open(folder).latest_checkpoint()
    return (step_of(checkpoint) or 0) if checkpoint else 0
