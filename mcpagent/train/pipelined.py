"""The actor whose episodes run while the learner works: `rollout.max_staleness` above 0."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import replace

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.rollout.agent import Attempt
from mcpagent.rollout.collector import attempts
from mcpagent.rollout.pipeline import Pipeline, staleness
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.tools.io_thread import IOThread
from mcpagent.train.actor import LocalActor
from mcpagent.train.grpo_run import Validation
from mcpagent.train.processes import Processes
from mcpagent.train.setup import is_deterministic


class PipelinedActor:
    """Takes each step's batch from `pipeline`; everything else is `actor`'s, with the same policy."""

    def __init__(self, actor: LocalActor, pipeline: Pipeline, *, io: IOThread) -> None:
        self._actor, self._pipeline, self._io = actor, pipeline, io
        self._version = 0  # of the policy, which counts the updates of this process
        self._measured: JsonObject = {}

    def collect(
        self, tasks: Sequence[Task], *, step: int, round_: int = 0, on_episode: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """The groups that have finished, as many as the step has tasks; which ones is the pipeline's."""
        trajectories = self._io.run(self._pipeline.take(version=self._version))
        age = staleness(trajectories, version=self._version)
        self._measured = {"groups_in_flight": self._pipeline.in_flight}
        if age is not None:
            self._measured |= {"staleness_mean": age.mean, "staleness_max": age.largest}
        for trajectory in trajectories:
            on_episode(trajectory)
        return trajectories

    @property
    def ledger_bytes(self) -> int:
        return self._actor.ledger_bytes

    def roll_back(self, ledger_bytes: int) -> None:
        """Nothing: what was played beside the update is cut at the end of any run, and counted in no step."""

    def tool_metrics(self) -> JsonObject:
        return self._actor.tool_metrics()

    def sync(self) -> JsonObject:
        """Bring the weights to the policy, whose turns go on with them; what was measured in this step."""
        self._version += 1
        return {**self._measured, **self._actor.sync()}

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        return self._actor.evaluate(tasks, step=step)

    def close(self) -> None:
        """End the episodes that no step takes any more."""
        self._io.run(self._pipeline.close())


def refuse_pipeline(config: TrainConfig, device: torch.device, processes: Processes) -> None:
    """Raises UserError where episodes cannot run beside the update."""
    stale = f"rollout.max_staleness is {config.rollout.max_staleness}"
    if is_deterministic(config, device):
        raise UserError(
            f"{stale}, but the deterministic mode plays a batch to its end before it is trained on: when "
            "episodes and updates overlap, time decides which weights sample a token",
            where="rollout.max_staleness",
            remedy="set it to 0, or rollout.deterministic to false",
        )
    if config.finetune.mode == "full" and config.rollout.backend != "vllm":
        raise UserError(
            f"{stale}, but with finetune.mode full the hf backend samples from the very weights that the "
            "update is writing",
            where="rollout.max_staleness",
            remedy="set it to 0, use finetune.mode lora, or --backend vllm",
        )
    if processes.count > 1:
        raise UserError(
            f"{stale}, but {processes.count} processes collect each step together",
            where="rollout.max_staleness",
            remedy="set it to 0, or train in one process",
        )


def trained_groups(run: RunFolder) -> set[str]:
    """The groups of the steps that a resumed run keeps."""
    found: set[str] = set()
    for step in {step for path in run.trajectories.iterdir() if (step := step_of(path)) is not None}:
        records = read_trajectories(run.trajectory_stem(step), with_tokens=False)
        found |= {trajectory.group_id for trajectory in records}
    return found


def scheduled(
    batches: Iterable[tuple[int, Sequence[Task]]],
    *,
    group_size: int,
    seed: int,
    trained: Collection[str] = (),
) -> Iterator[list[Attempt]]:
    """The groups of each step (its number and tasks), in order, but for those that were `trained` on before a
    resume. The step is part of a group's name: a task may come again while its last group is in flight."""
    for step, tasks in batches:
        for task in tasks:
            name = f"{task.id}@{step}"
            if name not in trained:
                wanted = attempts([task], per_task=group_size, seed=seed, label=f"step {step}")
                yield [replace(attempt, group_id=name) for attempt in wanted]
