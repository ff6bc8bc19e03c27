"""The main job, end to end and offline: data, warm start, GRPO, evaluation, report.

Each stage leaves its result on disk whole or not at all, so a second call continues the run.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

from mcpagent.config.dataset_servers import DatasetServers
from mcpagent.config.environment import resource_path
from mcpagent.console import Console
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.demo import explored as explored_servers
from mcpagent.demo import pretrained as of_pretrained
from mcpagent.demo.job import (
    BESIDE,
    SAMPLED_ATTEMPTS,
    QuickstartJob,
    Stages,
    open_job,
    parts,
)
from mcpagent.demo.pace import fitted
from mcpagent.demo.pretrained import Pretrained
from mcpagent.errors import RunError, UserError
from mcpagent.evaluate.baseline import BASELINE_SHOTS, gains
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.report.page import write_report
from mcpagent.evaluate.report.run_data import SAMPLED, read_evaluations
from mcpagent.evaluate.summary import summarise
from mcpagent.run.episodes import open_episodes
from mcpagent.run.policies import refuse_policy
from mcpagent.run.rollout import count_nonces
from mcpagent.run.train import Watch, run_training
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import read_tasks, spread
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.runs import run_session
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from mcpagent.synth.generate import DatasetOutput, make_dataset, write_splits
from mcpagent.synth.templates.rules import generate_dataset, short_note
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.setup import open_tools

# Runs experiments from the warm-started checkpoint; returns a row of the document for each.
Controls = Callable[[QuickstartJob, Path], list[JsonObject]]

_EPISODES_AT_ONCE = 256
# The stages of which it is said beforehand how long they take together.
_SAID = (
    *(f"eval_{name}" for name in BASELINE_SHOTS),
    "warm_start",
    "eval_warm_start",
    "grpo",
    "eval_trained",
)
_STORED = ("warm_start/trajectories", "trajectories", "controls/*/trajectories")

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
    pretrained: Pretrained | None = None,
    controls: Controls | None = None,
) -> JsonObject:
    """Run what is not yet done in `out`; returns the document of `quickstart --json`. `explored` servers are
    explored; None takes the built-in ones and their templates. A `pretrained` model is fitted to the machine
    first; None takes the embedded one. `controls` runs control experiments from the warm-started checkpoint
    before the report is written (`demo.controls`). Raises UserError before anything is made if there is no
    such model."""
    if pretrained is not None:
        refuse_policy(pretrained.model)
    with run_session(out, kind="quickstart") as session:
        job = open_job(out, seed=seed, stages=stages, explored=explored, pretrained=pretrained)
        session.begin(job.grpo.total_steps(n_tasks=job.counts["train"]))
        return run_stages(job, controls)


def run_stages(job: QuickstartJob, controls: Controls | None = None) -> JsonObject:
    """Run every stage of the job that is not yet done, then write the report."""
    make_tasks(job)
    job = fitted(job)
    sides: dict[str, JsonObject] = {}
    if job.pretrained is not None:
        model = job.pretrained.model
        for name, shots in BASELINE_SHOTS.items():
            title = f"evaluate the untrained model{f' with {shots} shots' if shots else ''}"
            most = job.progress.untrained_tasks
            sides[name] = evaluate_checkpoint(job, name, model, title, most_tasks=most, shots=shots)
    warm_checkpoint = warm_start(job)
    sides["warm_start"] = evaluate_checkpoint(job, "warm_start", warm_checkpoint, "evaluate the warm start")
    trained_checkpoint = warm_checkpoint
    if not job.progress.skips_grpo:
        trained_checkpoint = _grpo(job, warm_checkpoint)
        title = "evaluate the trained model"
        sides["trained"] = evaluate_checkpoint(job, "trained", trained_checkpoint, title)
    wall_s = sum(job.progress.wall_s.get(stage, 0.0) for stage in _SAID)
    rows = {"controls": controls(job, warm_checkpoint)} if controls and "trained" in sides else {}
    report = write_report(job.home)
    measured, how = read_evaluations(job.home / "eval"), {"greedy": "", "sampled": SAMPLED}
    after = [name for name in ("warm_start", "trained") if name in sides]
    gained = {name: gains(measured, name, suffixes=how) for name in after}
    return {
        "run_dir": str(job.out),
        "seed": job.seed,
        **({} if job.pretrained is None else {"model": job.pretrained.model}),
        **{name: {"metrics": metrics} for name, metrics in sides.items()},
        **({} if job.pretrained is None else {"gains": gained}),
        "comparison": {
            name: compare(measured[f"warm_start{end}"], measured[f"trained{end}"]).model_dump(mode="json")
            for name, end in how.items()
            if "trained" in sides
        },
        "tool_calls": _count_calls(job),
        "cpu_s": {name: round(value, 1) for name, value in job.progress.cpu_s.items()},
        **({} if job.progress.said_s is None else {"said_s": job.progress.said_s, "wall_s": wall_s}),
        "checkpoint": str(trained_checkpoint),
        **rows,
        "report": str(report),
    }


def make_tasks(job: QuickstartJob) -> None:
    """Write the tasks of every split, if they are not there yet."""
    folder = job.out / "data"
    if all(job.tasks_of(split).is_file() for split in job.counts):
        return
    if job.pretrained is not None:
        _make_answered_tasks(job, folder)
    else:
        _make_short_tasks(job, folder)
    made = {
        split: list(read_tasks(job.tasks_of(split))) for split in job.counts if job.tasks_of(split).is_file()
    }
    for line in (*explored_servers.task_lines(made), *explored_servers.examples(made["train"])):
        job.stages.note(line)


def _make_short_tasks(job: QuickstartJob, folder: Path) -> None:
    """Write tasks that a network of this size learns, from templates or by exploring. Raises UserError if
    they are too few."""
    with (
        job.stage("data", "make tasks", sum(job.counts.values())) as advance,
        open_tools(job.grpo.tools) as tools,
    ):

        def on_progress(split: str, more: int) -> None:
            advance(more, note=split)

        options = {"counts": job.counts, "seed": job.seed, "on_progress": on_progress}
        if job.explored is not None:
            data = tools.io.run(
                explored_servers.explore(tools.pool, job.explored, note=job.stages.note, **options)
            )
            told = (explored_servers.facts_line(data), explored_servers.LEFT_OUT)
            for line in (*told, *explored_servers.warnings(data.tasks)):
                job.stages.note(line)
        else:
            templates = load_templates(resource_path("templates/tasks"))
            data = tools.io.run(generate_dataset(tools.pool, templates, **options))
            if short := data.short_of(job.counts):
                raise RunError(
                    short_note(short, "the embedded data have too few entities for these templates")
                )
        write_splits(data.tasks, folder, servers=DatasetServers.of(folder, job.grpo.tools), overwrite=True)


def _make_answered_tasks(job: QuickstartJob, folder: Path) -> None:
    """Write what `gen-data` makes of the templates of the built-in servers, or by exploring the user's own: a
    pretrained model reads that a line of its own is to give the answer. Raises UserError if it is too
    little."""
    with job.stage("data", "make tasks", None, shows=False):
        make_dataset(
            "core",
            job.grpo.tools,
            DatasetOutput(
                folder=folder,
                counts=job.counts,
                servers=DatasetServers.of(folder, job.grpo.tools),
                overwrite=True,
                heldout_servers=() if job.explored is None else job.explored.heldout_servers,
            ),
            seed=job.seed,
            distractors=None,
            explore=job.explored is not None,
            seed_values={} if job.explored is None else job.explored.seed_values,
            console=Console(),
        )
    for split, least in of_pretrained.LEAST.items():
        path = job.tasks_of(split)
        made = sum(1 for _ in read_tasks(path)) if path.is_file() else 0
        if made < least:
            raise UserError(
                f"there are {made} tasks in {path.name}, and {least} are needed",
                where="--servers",
                remedy=None
                if job.explored is None
                else f"let a model write them: {job.explored.written_by_a_model}",
            )


def warm_start(job: QuickstartJob) -> Path:
    """Return the checkpoint of the warm start, which is made if it is not there yet."""
    folder, final = job.out / "warm_start", job.warm_checkpoint
    if final.is_dir():
        return final
    with job.stage("warm_start", "warm start", job.warm_steps) as advance:
        resumed = _steps_done(folder)
        if resumed:
            advance(resumed)
        run_training(
            job.warm,
            run_dir=folder,
            resume=(folder / "config.yaml").is_file(),
            ledger=job.ledger,
            beside=("eval", "trajectories"),
            manifest={"title": f"Warm start of {job.model_name}"},
            watch=Watch(
                on_step=lambda r: advance(note=f"loss {r['loss']:.3f}"),
                on_part=parts(advance),
                note=job.stages.note,
            ),
        )
    return final


def _grpo(job: QuickstartJob, warm_checkpoint: Path) -> Path:
    if job.progress.trained is not None:
        return Path(job.progress.trained)
    steps = job.grpo.total_steps(n_tasks=job.counts["train"])
    with job.stage("grpo", "GRPO on real episodes", steps, resumes=True) as advance:
        begun = job.progress.ledger_bytes["grpo"]
        resume = (job.out / "config.yaml").is_file()
        if resume:
            advance(_steps_done(job.out))
        outcome = run_training(
            job.grpo,
            run_dir=job.out,
            resume=resume,
            ledger=job.ledger,
            ledger_start=begun,
            beside=BESIDE,
            manifest={
                "title": f"Quickstart of {job.model_name}",
                "about": _about(job),
                "warm_start": str(warm_checkpoint),
            },
            watch=Watch(
                on_step=lambda r: advance(
                    note=f"reward {r.get('reward_mean', 0):.2f}  success {r.get('success_rate', 0):.0%}"
                ),
                on_part=parts(advance),
                note=job.stages.note,
            ),
        )
        job.progress.trained = str(outcome.best_checkpoint)
    return outcome.best_checkpoint


def _about(job: QuickstartJob) -> str:
    if job.pretrained is not None:
        return of_pretrained.ABOUT
    return explored_servers.ABOUT if job.explored is not None else ABOUT


def evaluate_checkpoint(
    job: QuickstartJob,
    name: str,
    checkpoint: Path | str,
    title: str,
    *,
    sampled_attempts: int = SAMPLED_ATTEMPTS,
    most_tasks: int | None = None,
    shots: int = 0,
) -> JsonObject:
    """Evaluate greedily and at temperature 1, on held-out tasks (`most_tasks` None: as many as the run
    evaluates on), with so many `shots`; return metrics as `quickstart --json` shows them."""
    folder = job.home / "eval"
    files = {0.0: folder / f"{name}.json", 1.0: folder / f"{name}_sampled.json"}
    samples = {0.0: 1, 1.0: sampled_attempts if job.pretrained is None else 1}
    if not all(path.is_file() for path in files.values()):
        tasks = spread(list(read_tasks(job.tasks_of("heldout"))), job.grpo.training.eval_tasks)
        _evaluate(job, name, checkpoint, title, files, samples, spread(tasks, most_tasks), shots)
    metrics = {t: json.loads(path.read_text(encoding="utf-8"))["metrics"] for t, path in files.items()}
    sampled = {f"task_success_sampled{end}": metrics[1.0][f"task_success{end}"] for end in ("", "_scored")}
    return {**metrics[0.0], **sampled}


def _evaluate(
    job: QuickstartJob,
    name: str,
    checkpoint: Path | str,
    title: str,
    files: Mapping[float, Path],
    samples: Mapping[float, int],
    tasks: Sequence[Task],
    shots: int,
) -> None:
    """Play the tasks at all temperatures at once, so that their prompts are computed once; write the results
    of each to its file."""
    at = [temperature for temperature in files for _ in range(samples[temperature])]
    at_once = _EPISODES_AT_ONCE if job.pretrained is None else job.grpo.rollout.num_envs
    with (
        job.stage(f"eval_{name}", title, len(tasks) * len(at)) as advance,
        open_episodes(
            job.grpo.with_settings(rollout={"num_envs": at_once}),
            policy=str(checkpoint),
            samples=len(at),
            console=Console(is_json=True),
            data=job.tasks_of("heldout"),
            ledger=job.ledger,
            shots=shots,
        ) as opened,
    ):
        sampling = opened.settings.sampling
        samplings = [replace(sampling, temperature=temperature) for temperature in at]
        played = opened.play(samples=samplings, on_done=lambda _: advance(), tasks=tasks)
        if shots:  # the servers have counted their calls
            shown = (shot.played for shot in opened.settings.shots)
            write_trajectories(job.home / "trajectories" / f"shots_{name}", shown)
        for temperature, path in files.items():
            there = [one for one, of in zip(played, cycle(at), strict=False) if of == temperature]
            write_trajectories(job.home / "trajectories" / f"eval_{path.stem}", there)
            settings = replace(opened.settings, sampling=replace(sampling, temperature=temperature))
            facts = replace(opened, settings=settings).provenance(samples=samples[temperature])
            result = summarise(there, seed=job.seed, tasks=tasks).with_provenance(
                {**facts, "split": "heldout"}, breakdown=break_down(tasks, there)
            )
            write_text(path, result.model_dump_json(indent=1) + "\n")


def _count_calls(job: QuickstartJob) -> JsonObject:
    """Calls that trajectories say were made over MCP, and calls that the servers say they got: None if
    they are the user's own, which count none."""
    stored = [
        path
        for pattern in _STORED
        for path in job.out.glob(f"{pattern}/*.jsonl.zst")
        if not path.name.startswith("eval_step-")  # of `mcpagent eval`, later and with servers of its own
    ]
    made = count_nonces(t for path in stored for t in read_trajectories(path, with_tokens=False))
    if job.explored is not None:
        return {"trajectories": made.results.total(), "servers": None}
    received = 0
    if job.ledger.exists():
        with job.ledger.open("rb") as lines:
            lines.seek(min(job.progress.ledger_bytes.values()))  # an older ledger may have been named
            received = sum(1 for _ in lines)
    return {"trajectories": made.stamped.total(), "servers": received}


def _steps_done(folder: Path) -> int:
    if not (folder / "config.yaml").is_file():
        return 0
    checkpoint = RunFolder.open(folder).latest_checkpoint()
    return (step_of(checkpoint) or 0) if checkpoint else 0
