"""How fast this machine is with a pretrained model, measured on one step, and what follows from that."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo.job import QuickstartJob, parts
from mcpagent.demo.pretrained import SHAPES, Pace, fit, width_of
from mcpagent.run.episodes import open_episodes
from mcpagent.run.train import Watch, run_training
from mcpagent.storage.datasets import read_tasks, spread

_WORDY = 2.0  # times as long as the demonstrations are the turns of a model that has seen none


def fitted(job: QuickstartJob) -> QuickstartJob:
    """Return the job with the settings that fit this machine and the minutes. It is measured once: minutes
    that were too few leave what was measured for a second call."""
    pretrained = job.pretrained
    if pretrained is None or job.progress.fitted is not None:
        return job
    is_shaped = any(map(pretrained.has_set, ("training.batch_size", "rollout.group_size")))
    with_settings, kept = list(pretrained.settings), job.progress.pace or {}
    if kept.get("with") != with_settings:
        with job.stage("pace", "measure one step", None) as advance:
            pace = measure(job, is_shaped=is_shaped, on_part=parts(advance))
            kept = job.progress.pace = {"with": with_settings, **asdict(pace)}
    pace = Pace(**{name: value for name, value in kept.items() if name != "with"})
    tasks = {split: job.out / "data" / f"{split}.jsonl" for split in ("heldout", "validation")}
    counts = {name: sum(1 for _ in read_tasks(file)) for name, file in tasks.items() if file.is_file()}
    shape = (job.grpo.training.batch_size, job.grpo.rollout.group_size)
    plan = fit(
        pace,
        minutes=pretrained.minutes,
        warm_steps=job.warm_steps if pretrained.has_set("training.max_steps") else None,
        heldout=counts["heldout"],
        validation=counts.get("validation", 0),
        shapes=(shape,) if is_shaped else SHAPES,
    )
    job.stages.note(str(plan))
    job.progress.fitted = plan.settings(minutes=pretrained.minutes)
    job.progress.said_s = plan.total_s
    job.progress.untrained_tasks = plan.untrained_tasks
    job.progress.save()
    return job.refitted()


def measure(job: QuickstartJob, *, is_shaped: bool, on_part: Callable[[str, int, int], None]) -> Pace:
    """Take one supervised step, one step of GRPO and a short evaluation, of a copy that is thrown away, and
    time them. Its episodes are as long as the demonstrations, which is what training will make of them, and
    its rewards are drawn at random, so that there is something to update on. `is_shaped` says that the user
    chose the size of a step."""
    place = job.out / "pace"
    shutil.rmtree(place, ignore_errors=True)
    plans = [task.truth for task in read_tasks(job.out / "data" / "train.jsonl")]
    turns = sum(len(plan.tool_sequence) + 1 for plan in plans) / len(plans)
    limit = min(sum(plan.max_turns for plan in plans) / len(plans), job.grpo.rollout.max_steps_per_episode)
    demonstrations, played = job.warm.training.batch_size, round(turns)
    warm = job.warm.with_settings(training={"max_steps": 1}, data={"max_tasks": demonstrations})
    supervised = _timed(warm, place / "warm_start", on_part)
    grpo = job.grpo.with_settings(
        model={"name": str(supervised.checkpoint)},
        training={"max_steps": 1},
        reward={"control": "random"},
        # All episodes of a batch wait for the longest turn.
        rollout={"max_steps_per_episode": played, "max_new_tokens": supervised.longest_turn},
    )
    if not is_shaped:
        batch, group = width_of(grpo).shape
        grpo = grpo.with_settings(training={"batch_size": batch}, rollout={"group_size": group})
    step = _timed(grpo, place / "grpo", on_part)
    eval_s = _timed_evaluation(grpo, supervised.checkpoint, job.out / "data" / "heldout.jsonl", on_part)
    shutil.rmtree(place)
    return Pace(
        supervised_s=supervised.update_s,
        rollout_s=step.rollout_s,
        update_s=step.update_s,
        load_s=step.load_s,
        episodes=grpo.training.batch_size * grpo.rollout.group_size,
        eval_s=eval_s,
        untrained_ratio=_WORDY * max(1.0, limit / played),
        longest_turn=supervised.longest_turn,
    )


@dataclass(frozen=True, kw_only=True)
class _Timed:
    load_s: float
    rollout_s: float
    update_s: float
    longest_turn: int  # tokens, of what a supervised step trained on; 0 of a step of GRPO
    checkpoint: Path


def _timed(config: TrainConfig, folder: Path, on_part: Callable[[str, int, int], None]) -> _Timed:
    """One step, and the seconds of its parts."""
    times: dict[str, float] = {"began": time.monotonic()}

    def at(name: str) -> None:
        times[name] = time.monotonic()

    def on_part_of_step(what: str, done: int, total: int) -> None:
        if what == "episodes":
            at("played")
        on_part(what, done, total)

    outcome = run_training(
        config,
        run_dir=folder,
        watch=Watch(
            on_start=lambda _done, _total: at("started"),
            on_part=on_part_of_step,
            on_step=lambda _: at("stepped"),
        ),
    )
    at("ended")
    sampled = max(times["started"], times.get("played", 0.0))
    return _Timed(
        load_s=times["ended"] - times["began"] - (times["stepped"] - times["started"]),
        rollout_s=sampled - times["started"],
        update_s=times["stepped"] - sampled,
        longest_turn=outcome.metrics.get("longest_turn", 0),
        checkpoint=outcome.last_checkpoint,
    )


def _timed_evaluation(
    config: TrainConfig, checkpoint: Path, data: Path, on_part: Callable[[str, int, int], None]
) -> float:
    """Seconds of an episode, of tasks that are played greedily and sampled at once, as they will be. Each
    task computes the schemas of its own tools, which the attempts of a group share: behind many tools that is
    most of the time."""
    with open_episodes(
        config, policy=str(checkpoint), samples=2, console=Console(is_json=True), data=data
    ) as opened:
        tasks = spread(opened.tasks, width_of(config).evaluated)
        samplings = [replace(opened.settings.sampling, temperature=t) for t in (0.0, 1.0)]
        played, began, episodes = count(), time.monotonic(), 2 * len(tasks)

        def advance(_: Trajectory | None = None) -> None:
            on_part("evaluating", next(played), episodes)

        advance()
        opened.play(samples=samplings, tasks=tasks, on_done=advance)
        return (time.monotonic() - began) / episodes
