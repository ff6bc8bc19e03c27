"""What a training run measures of itself: the untrained model first, its best weights at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.breakdown import break_down
from mcpagent.evaluate.report.numbers import rate
from mcpagent.evaluate.summary import BEST, UNTRAINED, EvalResult, EvalSummary, summarise
from mcpagent.reward.terms import load_reward
from mcpagent.run.episodes import measured_file, open_tasks
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import TaskFile, spread
from mcpagent.storage.packages import provenance
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.tools.setup import Tools
from mcpagent.train.actor import LocalActor
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes


@dataclass(frozen=True)
class MeasuredTasks:
    """The tasks that a run is judged on, which split they are, and how many of them it plays."""

    tasks: TaskFile
    split: str
    count: int


_LEAST_TASKS = 16
_EPISODES_OF_ONE = 8  # episodes of training for each of an evaluation: both are then a fifth of all


@contextmanager
def open_measured(
    config: TrainConfig, *, n_tasks: int, on_note: Callable[[str], None]
) -> Iterator[MeasuredTasks | None]:
    """Open the held-out tasks next to the training set of `n_tasks`, else the validation set; None if there
    is neither, or `training.eval_samples` is 0. Raises UserError for a set that cannot be read."""
    if config.training.eval_samples == 0:
        yield None
        return
    measured = measured_file(config, on_note=on_note)
    if measured is None:
        yield None
        return
    path, split = measured
    with open_tasks(config, path) as tasks:
        count = config.training.eval_tasks or _affordable(config, n_tasks=n_tasks)
        yield MeasuredTasks(tasks, split, min(count, len(tasks)))


def _affordable(config: TrainConfig, *, n_tasks: int) -> int:
    """Return how many tasks an evaluation plays by default. A demonstration counts as an episode: it is
    trained on as one is, and costs about as much."""
    attempts = config.rollout.group_size if config.algorithm == "grpo" else 1
    episodes = config.total_steps(n_tasks=n_tasks) * config.training.batch_size * attempts
    return max(_LEAST_TASKS, episodes // (_EPISODES_OF_ONE * config.training.eval_samples))


@dataclass(frozen=True, kw_only=True)
class SelfEvaluation:
    """Plays the measured tasks with the run's own sampler and stores the results in the run. Of several
    processes, each plays its share."""

    config: TrainConfig
    measured: MeasuredTasks
    run: RunFolder
    tools: Tools
    processes: Processes
    note: Callable[[str], None]

    @property
    def episodes_at_once(self) -> int:
        """Return how many of its episodes can run at the same time."""
        return min(self.config.rollout.num_envs, len(self._tasks) * self.config.training.eval_samples)

    @cached_property
    def _tasks(self) -> Sequence[Task]:
        """The measured tasks that are played: a resumed run plays those that it began with."""
        begun = self.processes.broadcast_from_rank0(lambda: self._stored(UNTRAINED))
        count = self.measured.count
        if begun is not None and begun["dataset"]["sha256"] == self.measured.tasks.sha256:
            count = begun["dataset"]["tasks"]
        return spread(self.measured.tasks, count)

    def before(self, actor: LocalActor, *, step: int) -> None:
        """Measure the untrained model if the run is still at its beginning and has not been measured."""
        if step == 0:
            self._measure(actor, UNTRAINED, step=0, what="the untrained model")

    def after(self, actor: LocalActor, learner: Learner, *, step: int, best_step: int | None) -> None:
        """Measure the best weights; those of the last step are in the sampler already. The learner holds the
        best ones afterwards, so this comes when training is over."""
        measured = step if best_step is None else best_step
        if self._is_done(BEST, measured):
            return
        if measured != step:
            learner.load_weights(self.run.checkpoint_dir(measured))
            actor.sync()
        kind = "last" if best_step is None else "best"
        self._measure(actor, BEST, step=measured, what=f"the {kind} checkpoint, of step {measured},")

    def _measure(self, actor: LocalActor, name: str, *, step: int, what: str) -> None:
        if self._is_done(name, step):
            return
        file, split, samples = self.measured.tasks, self.measured.split, self.config.training.eval_samples
        tasks = self._tasks
        of = f"{len(tasks)} of {len(file)}" if len(tasks) < len(file) else f"{len(tasks)}"
        self.note(f"evaluating {what} on {of} {split} tasks")
        # As `mcpagent eval`: greedy if each task is attempted once.
        temperature = 0.0 if samples == 1 else 1.0
        rollout = self.config.rollout
        facts: JsonObject = {
            **provenance(),
            "step": step,
            "split": split,
            "dataset": {"path": str(file.path), "sha256": file.sha256, "tasks": len(tasks)},
            "samples": samples,
            "temperature": temperature,
            "max_new_tokens": rollout.max_new_tokens,
            "max_turns": rollout.max_steps_per_episode,
            "catalog_hash": self.tools.pool.catalog_hash,
            "reward": load_reward(self.config.reward).as_json(),
        }
        episodes = actor.play(tasks, samples=samples, temperature=temperature)
        summary = summarise(episodes, tasks=tasks)
        if self.processes.is_first:
            write_trajectories(self.run.trajectories / f"eval_{name}", episodes)
            _store(self.run, name, summary.with_provenance(facts, breakdown=break_down(tasks, episodes)))
        self.note(f"{what.removesuffix(',')}: task success {_shown(summary)}")

    def _is_done(self, name: str, step: int) -> bool:
        """Return whether this very evaluation is stored; the first process looks."""
        stored = self.processes.broadcast_from_rank0(lambda: self._stored(name))
        sha256 = self.measured.tasks.sha256
        return stored is not None and (stored["step"], stored["dataset"]["sha256"]) == (step, sha256)

    def _stored(self, name: str) -> JsonObject | None:
        """Return what an evaluation of the run says of itself, if it is there."""
        path = self.run.evaluations / f"{name}.json"
        return json.loads(path.read_text(encoding="utf-8"))["provenance"] if path.is_file() else None


def store_validation(run: RunFolder, reward: JsonObject, step: int, episodes: Sequence[Trajectory]) -> None:
    """Keep the summary of an evaluation during training, under this `reward`, as `eval/step-N.json`."""
    provenance: JsonObject = {"step": step, "temperature": 0.0, "split": "validation", "reward": reward}
    _store(run, run.checkpoint_dir(step).name, summarise(episodes).with_provenance(provenance))


def _store(run: RunFolder, name: str, result: EvalResult) -> None:
    write_text(run.evaluations / f"{name}.json", result.model_dump_json(indent=1) + "\n")


def _shown(summary: EvalSummary) -> str:
    unscored = f", {summary.unscored} episodes unscored and counted as failed" if summary.unscored else ""
    return rate(summary.metrics["task_success"]) + unscored
