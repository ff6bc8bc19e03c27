"""What a training run measures of itself: the untrained model first, its best weights at the end."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject, Metric
from mcpagent.evaluate.summary import (
    BEST,
    UNTRAINED,
    EvalSummary,
    success_of_all,
)
from mcpagent.run.episodes import measured_file, open_tasks
from mcpagent.storage.datasets import TaskFile
from mcpagent.storage.packages import provenance
from mcpagent.storage.run_folder import RunFolder
from mcpagent.tools.setup import Tools
from mcpagent.train.actor import LocalActor
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes


@dataclass(frozen=True)
class MeasuredTasks:
    """The tasks that a run is judged on, and which split they are."""

    tasks: TaskFile
    split: str


@contextmanager
def open_measured(config: TrainConfig, *, on_note: Callable[[str], None]) -> Iterator[MeasuredTasks | None]:
    """The held-out tasks beside the training set, else the validation set; None where there is neither, or
    `training.eval_samples` is 0. Raises UserError for a set that cannot be read."""
    if config.training.eval_samples == 0:
        yield None
        return
    measured = measured_file(config, on_note=on_note)
    if measured is None:
        yield None
        return
    path, split = measured
    with open_tasks(config, path) as tasks:
        yield MeasuredTasks(tasks, split)


class SelfEvaluation:
    """Plays the measured tasks with the run's own sampler and stores the results in the run. Of several
    processes, each plays its share."""

    def __init__(
        self,
        config: TrainConfig,
        measured: MeasuredTasks,
        *,
        run: RunFolder,
        tools: Tools,
        processes: Processes,
        note: Callable[[str], None],
    ) -> None:
        self._config, self._measured, self._run = config, measured, run
        self._tools, self._processes, self._note = tools, processes, note

    @property
    def episodes_at_once(self) -> int:
        """How many of its episodes can run at the same time."""
        return min(
            self._config.rollout.num_envs, len(self._measured.tasks) * self._config.training.eval_samples
        )

    def before(self, actor: LocalActor, *, step: int) -> None:
        """Measure the untrained model, where the run is still at its beginning and has not been measured."""
        if step == 0:
            self._measure(actor, UNTRAINED, step=0, what="the untrained model")

    def after(self, actor: LocalActor, learner: Learner, *, step: int, best_step: int | None) -> None:
        """Measure the best weights; those of the last step are in the sampler already. The learner holds the
        best ones afterwards, so this comes when training is over."""
        measured = step if best_step is None else best_step
        if self._is_done(BEST, measured):
            return
        if measured != step:
            learner.load_weights(self._run.checkpoint_dir(measured))
            actor.sync()
        kind = "last" if best_step is None else "best"
        self._measure(actor, BEST, step=measured, what=f"the {kind} checkpoint, of step {measured},")

    def _measure(self, actor: LocalActor, name: str, *, step: int, what: str) -> None:
        if self._is_done(name, step):
            return
        tasks, split, samples = self._measured.tasks, self._measured.split, self._config.training.eval_samples
        self._note(f"evaluating {what} on {len(tasks)} {split} tasks")
        # As `mcpagent eval`: greedy where each task is attempted once.
        temperature = 0.0 if samples == 1 else 1.0
        rollout = self._config.rollout
        facts: JsonObject = {
            **provenance(),
            "step": step,
            "split": split,
            "dataset": {"path": str(tasks.path), "sha256": tasks.sha256, "tasks": len(tasks)},
            "samples": samples,
            "temperature": temperature,
            "max_new_tokens": rollout.max_new_tokens,
            "max_turns": rollout.max_steps_per_episode,
            "catalog_hash": self._tools.pool.catalog_hash,
        }
        summary = actor.evaluate_as(name, tasks, samples=samples, temperature=temperature, provenance=facts)
        self._note(f"{what.removesuffix(',')}: task success {_shown(summary)}")

    def _is_done(self, name: str, step: int) -> bool:
        """Whether this very evaluation is stored; the first process looks."""
        return self._processes.broadcast_from_rank0(
            lambda: self._stored(name) == (step, self._measured.tasks.sha256)
        )

    def _stored(self, name: str) -> tuple[int, str] | None:
        path: Path = self._run.evaluations / f"{name}.json"
        if not path.is_file():
            return None
        facts = json.loads(path.read_text(encoding="utf-8"))["provenance"]
        return facts["step"], facts["dataset"]["sha256"]


def _shown(summary: EvalSummary) -> str:
    success: Metric = success_of_all(summary)
    interval = "" if success.ci_low is None else f" [{success.ci_low:.1%}, {success.ci_high:.1%}]"
    unscored = f", {summary.unscored} episodes unscored and counted as failed" if summary.unscored else ""
    return f"{success.value or 0.0:.1%}{interval}{unscored}"
