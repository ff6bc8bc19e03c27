"""The main job, end to end and offline: data, warm start, GRPO, evaluation, report.

Each stage leaves its result on disk whole or not at all, so a second call goes on where the first stopped.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path

from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.config.environment import resource_path
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo import explored as explored_servers
from mcpagent.demo.job import BESIDE, QuickstartJob, Stages, open_job
from mcpagent.errors import RunError
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.report.page import write_report
from mcpagent.evaluate.summary import summarise
from mcpagent.run.episodes import open_episodes
from mcpagent.run.evaluate import evaluate_on
from mcpagent.run.train import Watch, train
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.runs import run_session
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from mcpagent.synth.generate import write_splits
from mcpagent.synth.templates.rules import generate_dataset, short_note
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.setup import open_tools

# Runs experiments from the warm-started checkpoint; returns what they add to the document.
Controls = Callable[[QuickstartJob, Path], Mapping[str, list[JsonObject]]]

SAMPLED_ATTEMPTS = 2  # for each held-out task at temperature 1
_EPISODES_AT_ONCE = 256
_STORED = ("warm_start/trajectories", "trajectories", "controls/*/trajectories", "wasteful/*/trajectories")

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
    explored: explored_servers.ExploredServers | None = None,
    controls: Controls | None = None,
) -> JsonObject:
    """Run what is not yet done in `out`; returns the document of `quickstart --json`. `explored` servers are
    explored; None takes the built-in ones and their templates. `controls` runs control experiments from the
    warm-started checkpoint before the report is written (`demo.controls`)."""
    with run_session(out, kind="quickstart") as session:
        job = open_job(out, seed=seed, stages=stages, explored=explored)
        session.begin(job.grpo.total_steps(n_tasks=job.counts["train"]))
        return run_stages(job, controls)


def run_stages(job: QuickstartJob, controls: Controls | None = None) -> JsonObject:
    """Every stage of the job that is not yet done, then the report."""
    make_tasks(job)
    warm_checkpoint = warm_start(job)
    before = evaluate_checkpoint(job, "warm_start", warm_checkpoint, "evaluate the warm start")
    trained_checkpoint = _grpo(job, warm_checkpoint)
    after = evaluate_checkpoint(job, "trained", trained_checkpoint, "evaluate the trained model")
    rows = controls(job, warm_checkpoint) if controls is not None else {}
    report = write_report(job.out)
    return {
        "run_dir": str(job.out),
        "seed": job.seed,
        "warm_start": {"metrics": before},
        "trained": {"metrics": after},
        "tool_calls": _count_calls(job),
        "cpu_s": {name: round(value, 1) for name, value in job.progress.cpu_s.items()},
        "checkpoint": str(trained_checkpoint),
        **rows,
        "report": str(report),
    }


def make_tasks(job: QuickstartJob) -> None:
    """Write the tasks of every split, where they are not there yet."""
    folder = job.out / "data"
    if all((folder / f"{split}.jsonl").is_file() for split in job.counts):
        return
    with (
        job.stage("data", "make tasks", sum(job.counts.values())) as advance,
        open_tools(job.grpo.tools) as tools,
    ):
        done: dict[str, int] = {}

        def on_progress(split: str, kept: int, _total: int) -> None:
            advance(kept - done.get(split, 0), note=split)
            done[split] = kept

        options = {"counts": job.counts, "seed": job.seed, "on_progress": on_progress}
        if job.explored is not None:
            data = tools.io.run(
                explored_servers.explore(tools.pool, job.explored, note=job.stages.note, **options)
            )
            told = explored_servers.warnings(data.tasks)
            for line in (*explored_servers.found_lines(data), explored_servers.LEFT_OUT, *told):
                job.stages.note(line)
        else:
            templates = load_templates(resource_path("templates/tasks"))
            data = tools.io.run(generate_dataset(tools.pool, templates, **options))
            if short := data.short_of(job.counts):
                raise RunError(
                    short_note(short, "the embedded data have too few entities for these templates")
                )
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
    steps = job.grpo.total_steps(n_tasks=job.counts["train"])
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
            manifest={
                "title": "mcpagent quickstart",
                "about": explored_servers.ABOUT if job.explored is not None else ABOUT,
                "warm_start": str(warm_checkpoint),
            },
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
        total = sum(1 for _ in read_tasks(job.out / "data" / "heldout.jsonl")) * (1 + sampled_attempts)
        with job.stage(f"eval_{name}", title, total) as advance:
            for temperature, path in files.items():
                samples = sampled_attempts if temperature else 1
                _evaluate_at(job, checkpoint, temperature, samples, path, lambda _: advance())
    metrics = {t: json.loads(path.read_text(encoding="utf-8"))["metrics"] for t, path in files.items()}
    sampled = {f"task_success_sampled{end}": metrics[1.0][f"task_success{end}"] for end in ("", "_all")}
    return {**metrics[0.0], **sampled}


def evaluate_sampled(
    job: QuickstartJob, name: str, checkpoint: Path, title: str, *, attempts: int, data: Path
) -> JsonObject:
    """All metrics on the tasks of `data` at temperature 1; those of the greedy policy are not asked for."""
    path = job.out / "eval" / f"{name}_sampled.json"
    if not path.is_file():
        total = sum(1 for _ in read_tasks(data)) * attempts
        with job.stage(f"eval_{name}", title, total) as advance:
            _evaluate_at(job, checkpoint, 1.0, attempts, path, lambda _: advance(), data=data)
    return json.loads(path.read_text(encoding="utf-8"))["metrics"]


def _evaluate_at(
    job: QuickstartJob,
    checkpoint: Path,
    temperature: float,
    samples: int,
    path: Path,
    on_done: Callable[[Trajectory], None],
    *,
    data: Path | None = None,
) -> None:
    rollout = job.grpo.rollout.model_copy(update={"temperature": temperature, "num_envs": _EPISODES_AT_ONCE})
    with open_episodes(
        job.grpo.model_copy(update={"rollout": rollout}),
        policy=str(checkpoint),
        samples=samples,
        console=Console(is_json=True),
        data=data or job.out / "data" / "heldout.jsonl",
        ledger=job.ledger,
    ) as setup:
        trajectories = evaluate_on(setup, samples=samples, on_done=on_done)
        provenance = setup.provenance(samples=samples)
        breakdown = break_down(setup.tasks, trajectories)
    write_trajectories(job.out / "trajectories" / f"eval_{path.stem}", trajectories)
    result = summarise(trajectories, seed=job.seed).with_provenance(
        {**provenance, "split": "heldout"}, breakdown=breakdown
    )
    write_text(path, result.model_dump_json(indent=1) + "\n")


def _count_calls(job: QuickstartJob) -> JsonObject:
    """Calls that trajectories say were made over MCP, and calls that the servers say they got: None where
    they are the user's own, which count none."""
    stored = [
        path
        for pattern in _STORED
        for path in job.out.glob(f"{pattern}/*.jsonl.zst")
        if not path.name.startswith("eval_step-")  # of `mcpagent eval`, later and with servers of its own
    ]
    made = sum(
        _calls(trajectory) if job.explored is not None else len(_nonces(trajectory))
        for path in stored
        for trajectory in read_trajectories(path, with_tokens=False)
    )
    if job.explored is not None:
        return {"trajectories": made, "servers": None}
    received = 0
    if job.ledger.exists():
        with job.ledger.open("rb") as lines:
            lines.seek(min(job.progress.ledger_bytes.values()))  # an older ledger may have been named
            received = sum(1 for _ in lines)
    return {"trajectories": made, "servers": received}


def _nonces(trajectory: Trajectory) -> list[str]:
    """A result without a nonce never reached a server: the environment refused the call."""
    return [r.meta["mcpagent/nonce"] for r in trajectory.tool_results if "mcpagent/nonce" in r.meta]


def _calls(trajectory: Trajectory) -> int:
    return sum(result.failure is None for result in trajectory.tool_results)


def _steps_done(folder: Path) -> int:
    if not (folder / "config.yaml").is_file():
        return 0
    checkpoint = RunFolder.open(folder).latest_checkpoint()
    return (step_of(checkpoint) or 0) if checkpoint else 0
