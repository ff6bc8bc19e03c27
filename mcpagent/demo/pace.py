"""What fits into the time there is, from how fast this machine is."""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from itertools import count, pairwise
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.console import Console, duration
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo.job import SAMPLED_ATTEMPTS, QuickstartJob, parts
from mcpagent.demo.pretrained import SHAPES, Pace, Pretrained, fit, width_of
from mcpagent.demo.rates import measure
from mcpagent.demo.warm_start import EmbeddedShape
from mcpagent.errors import UserError
from mcpagent.run.episodes import open_episodes
from mcpagent.run.train import Watch, run_training
from mcpagent.storage.datasets import read_tasks, spread

_EVALUATED = 12  # tasks
_WORDY = 2.0  # times as long as the demonstrations are the turns of a model that has seen none


def fitted(job: QuickstartJob) -> QuickstartJob:
    """Return the job with the settings that fit this machine and the minutes. It is measured once."""
    pretrained = job.pretrained
    if pretrained is None:
        _foretell(job)
        return job
    if job.progress.fitted is not None:
        return job
    with_settings, kept = list(pretrained.settings), job.progress.pace or {}
    if kept.get("with") != with_settings:
        with job.stage("pace", "measure this machine", None) as advance:
            pace = _pace(job, pretrained, on_part=parts(advance))
            kept = job.progress.pace = {"with": with_settings, **asdict(pace)}
    pace = Pace(**{name: value for name, value in kept.items() if name != "with"})
    tasks = {split: job.tasks_of(split) for split in ("heldout", "validation")}
    counts = {name: sum(1 for _ in read_tasks(file)) for name, file in tasks.items() if file.is_file()}
    plan = fit(
        pace,
        minutes=pretrained.minutes,
        warm_steps=job.warm_steps if pretrained.has_set("training.max_steps") else None,
        heldout=counts["heldout"],
        validation=counts.get("validation", 0),
    )
    job.stages.note(str(plan))
    job.progress.fitted = plan.settings(minutes=pretrained.minutes)
    job.progress.said_s = plan.total_s
    job.progress.untrained_tasks = plan.untrained_tasks
    job.progress.skips_grpo = not plan.steps
    job.progress.save()
    return job.refitted()


def _foretell(job: QuickstartJob) -> None:
    """Say how long the job will take with the embedded network, if it has not begun. Raises UserError if the
    demonstrations are longer than that network reads."""
    progress, warm = job.progress, job.warm
    if progress.said_s is not None or job.warm_checkpoint.is_dir():
        return
    with job.stage("pace", "measure one step of each kind", None) as advance:
        steps = _measured(job, on_part=parts(advance))
    if steps.supervised.sample_tokens > (most := EmbeddedShape().max_positions):
        raise UserError(
            f"a demonstration on these servers has {steps.supervised.sample_tokens:.0f} tokens, schemas and "
            f"results included, and the network that learns in minutes reads {most}",
            remedy=job.with_a_model,
        )
    counts = {split: sum(1 for _ in read_tasks(job.tasks_of(split))) for split in ("train", "heldout")}
    copying, grpo_steps = warm.sft.curriculum_steps, job.grpo.total_steps(n_tasks=counts["train"])
    demonstrations = counts["train"] * warm.sft.demonstrations_per_task
    episodes = (1 + SAMPLED_ATTEMPTS) * min(
        counts["heldout"], job.grpo.training.eval_tasks or counts["heldout"]
    )
    began, step = steps.supervised, steps.grpo
    seconds = {
        "warm start": began.load_s
        + demonstrations * began.demonstration_s
        + copying * began.steps_s[0]
        + (job.warm_steps - copying) * began.update_s,
        # A network that has learned nothing ends after a turn of text.
        "GRPO": step.load_s + grpo_steps * steps.turns * (step.rollout_s + step.update_s),
        "evaluations": 2 * (step.load_s + episodes * steps.turns * steps.eval_s),
    }
    progress.said_s = sum(seconds.values())
    progress.save()
    told = ", ".join(f"{name} {duration(s)}" for name, s in seconds.items())
    job.stages.note(
        f"this takes about {duration(progress.said_s)}: {told}; a pretrained model: {job.with_a_model}"
    )


def _pace(job: QuickstartJob, pretrained: Pretrained, *, on_part: Callable[[str, int, int], None]) -> Pace:
    """Return the pace of a pretrained model on the tasks of the job; of a step as large as the user chose, or
    of each shape."""
    set_shape = job.grpo.training.batch_size, job.grpo.rollout.group_size
    is_shaped = any(map(pretrained.has_set, ("training.batch_size", "rollout.group_size")))
    width = width_of(job.grpo)
    rates, work = measure(job.grpo.with_settings(model={"name": pretrained.model}), width, on_part=on_part)
    turns, most_turns = _turns(job)
    return Pace(
        supervised_s=work.supervised_s(rates, batch=job.warm.training.batch_size),
        steps_s=[
            (batch, group, work.grpo_s(rates, batch=batch, group=group))
            for batch, group in ((set_shape,) if is_shaped else SHAPES)
        ],
        load_s=rates.load_s,
        modest=width.modest,
        eval_s=work.evaluation_s(rates, tasks=width.at_once // 2),
        untrained_ratio=_WORDY * max(1.0, most_turns / round(turns)),
        longest_turn=work.longest_turn,
    )


def _turns(job: QuickstartJob) -> tuple[float, float]:
    """Return the turns of a demonstration on average, and how many an episode may have."""
    plans = [task.truth for task in read_tasks(job.tasks_of("train"))]
    turns = sum(len(plan.tool_sequence) + 1 for plan in plans) / len(plans)
    allowed = sum(plan.max_turns for plan in plans) / len(plans)
    return turns, min(allowed, job.grpo.rollout.max_steps_per_episode)


@dataclass(frozen=True, kw_only=True)
class _Measured:
    """One step of each kind, and the seconds of an episode of an evaluation. A demonstration has `turns` on
    average."""

    supervised: _Timed
    grpo: _Timed
    eval_s: float
    turns: float


def _measured(job: QuickstartJob, *, on_part: Callable[[str, int, int], None]) -> _Measured:
    """Take two supervised steps (the first is of the curriculum), one step of GRPO and a short evaluation, of
    a copy of the embedded network that is thrown away, and time them. Its episodes are as long as the
    demonstrations, which is what training will make of them, and its rewards are drawn at random, so that
    there is something to update on."""
    place = job.out / "pace"
    shutil.rmtree(place, ignore_errors=True)
    turns, _ = _turns(job)
    copying = int(job.warm.sft.curriculum is not None)
    warm = job.warm.with_settings(
        training={"max_steps": 1 + copying},
        data={"max_tasks": job.warm.training.batch_size},
        sft={"curriculum_steps": copying, "curriculum_mix": 0},
    )
    supervised = _timed(warm, place / "warm_start", on_part)
    grpo = job.grpo.with_settings(
        model={"name": str(supervised.checkpoint)},
        training={"max_steps": 1, "dynamic_sampling": 0},
        reward={"control": "random"},
        # All episodes of a batch wait for the longest turn.
        rollout={"max_steps_per_episode": round(turns), "max_new_tokens": supervised.longest_turn},
    )
    step = _timed(grpo, place / "grpo", on_part)
    eval_s = _timed_evaluation(grpo, supervised.checkpoint, job.tasks_of("heldout"), on_part)
    shutil.rmtree(place)
    return _Measured(supervised=supervised, grpo=step, eval_s=eval_s, turns=turns)


@dataclass(frozen=True, kw_only=True)
class _Timed:
    load_s: float
    demonstration_s: float  # of each; 0 of a step of GRPO, as what stands below
    rollout_s: float
    steps_s: tuple[float, ...]
    longest_turn: int  # tokens, of what the last supervised step trained on
    sample_tokens: float
    checkpoint: Path

    @property
    def update_s(self) -> float:
        """Return the seconds of the last step but its episodes."""
        return self.steps_s[-1] - self.rollout_s


def _timed(config: TrainConfig, folder: Path, on_part: Callable[[str, int, int], None]) -> _Timed:
    """Take the steps, and time their parts."""
    times: dict[str, float] = {"began": time.monotonic()}
    stepped, demonstrated = list[float](), list[float]()

    def at(name: str) -> None:
        times[name] = time.monotonic()

    def on_part_of_step(what: str, done: int, total: int) -> None:
        if what == "episodes":
            at("played")
        elif what == "demonstrating":
            demonstrated.append(time.monotonic())
        on_part(what, done, total)

    outcome = run_training(
        config,
        run_dir=folder,
        watch=Watch(
            on_start=lambda _done, _total: at("started"),
            on_part=on_part_of_step,
            on_step=lambda _: stepped.append(time.monotonic()),
        ),
    )
    at("ended")
    demonstrating_s = demonstrated[-1] - demonstrated[0] if demonstrated else 0.0
    return _Timed(
        load_s=times["ended"] - times["began"] - (stepped[-1] - times["started"]) - demonstrating_s,
        demonstration_s=demonstrating_s / max(1, len(demonstrated) - 1),
        rollout_s=max(times["started"], times.get("played", 0.0)) - times["started"],
        steps_s=tuple(after - before for before, after in pairwise([times["started"], *stepped])),
        longest_turn=outcome.metrics.get("longest_turn", 0),
        sample_tokens=outcome.metrics.get("sample_tokens", 0.0),
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
        tasks = spread(opened.tasks, _EVALUATED)
        samplings = [replace(opened.settings.sampling, temperature=t) for t in (0.0, 1.0)]
        played, began, episodes = count(), time.monotonic(), 2 * len(tasks)

        def advance(_: Trajectory | None = None) -> None:
            on_part("evaluating", next(played), episodes)

        advance()
        opened.play(samples=samplings, tasks=tasks, on_done=advance)
        return (time.monotonic() - began) / episodes
