"""The actor of a local run: a policy with the learner's weights, episodes on the I/O thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.evaluator import evaluate
from mcpagent.evaluate.summary import EvalSummary, success_of_all, summarise
from mcpagent.models.tokens import Renderer
from mcpagent.policy.canary import Canary
from mcpagent.rollout.agent import AgentSettings, Attempt, run_attempt
from mcpagent.rollout.collector import attempts, collect
from mcpagent.rollout.pipeline import Pipeline
from mcpagent.storage.atomic import write_text
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.io_thread import IOThread
from mcpagent.train.grpo_run import Validation
from mcpagent.train.processes import Processes
from mcpagent.train.sampler import Sampler


class LocalActor:
    """Collects and evaluates with the current weights, in this process."""

    def __init__(
        self,
        sampler: Sampler,
        *,
        canary: Canary,
        renderer: Renderer,
        tools: ToolProvider,
        io: IOThread,
        settings: AgentSettings,
        group_size: int,
        concurrency: int,
        deterministic: bool,
        seed: int,
        run: RunFolder,
        processes: Processes | None = None,
        version: int = 0,
        ledger: Path | None = None,
        tool_metrics: Callable[[], JsonObject] = dict,
        on_episode: Callable[[Trajectory], None] = lambda _: None,
    ) -> None:
        self._sampler, self._canary, self._version = sampler, canary, version
        self._renderer, self._tools, self._io = renderer, tools, io
        self._settings, self._group_size, self._concurrency = settings, group_size, concurrency
        self._deterministic, self._seed, self._run = deterministic, seed, run
        self._ledger, self._on_episode = ledger, on_episode
        self._tool_metrics, self._processes = tool_metrics, processes or Processes()

    def collect(
        self, tasks: Sequence[Task], *, step: int, round_: int = 0, on_episode: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """`group_size` attempts at each task, in order."""
        label = f"step {step} round {round_}" if round_ else f"step {step}"
        wanted = list(attempts(tasks, per_task=self._group_size, seed=self._seed, label=label))

        def on_done(trajectory: Trajectory) -> None:
            self._on_episode(trajectory)
            on_episode(trajectory)

        trajectories = self._io.run(
            collect(
                wanted,
                policy=self._sampler.policy,
                tools=self._tools,
                settings=self._settings,
                renderer=self._renderer,
                concurrency=self._concurrency,
                deterministic=self._deterministic,
                on_done=on_done,
            )
        )
        self._sampler.rest()
        return trajectories

    def pipeline(self, groups: Iterable[Sequence[Attempt]], *, batch: int, max_staleness: int) -> Pipeline:
        """Episodes of `groups` with this actor's policy and tools, for `PipelinedActor`."""

        async def play(attempt: Attempt) -> Trajectory:
            trajectory = await run_attempt(
                attempt,
                policy=self._sampler.policy,
                tools=self._tools,
                settings=self._settings,
                renderer=self._renderer,
            )
            self._on_episode(trajectory)
            return trajectory

        return Pipeline(
            groups, play=play, batch=batch, max_staleness=max_staleness, concurrency=self._concurrency
        )

    @property
    def ledger_bytes(self) -> int:
        """How much the servers have written to their ledger so far."""
        return _size(self._ledger) if self._ledger is not None else 0

    def roll_back(self, ledger_bytes: int) -> None:
        """Forget the calls of a step that was cut."""
        if self._ledger is not None:
            roll_back(self._ledger, ledger_bytes)

    def tool_metrics(self) -> JsonObject:
        """What the tools have counted since this was last asked."""
        return self._tool_metrics()

    def sync(self) -> JsonObject:
        """Bring the learner's weights to the policy, and prove it; what the proof measured."""
        self._sampler.push()
        self._version += 1
        return self.prove()

    def prove(self) -> JsonObject:
        """Raises RunError where the policy does not serve the learner's weights."""
        if not self._canary.is_due(self._version):
            return {}
        proof = self._io.run(self._canary.prove(self._sampler.policy, version=self._version))
        return proof.as_metrics()

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        """Greedy success on `tasks`, of which each process plays its share; the summary goes to
        `eval/step-N.json`."""
        summary, _ = self._play(tasks, samples=1, temperature=0.0)
        self._store(
            summary,
            name=self._run.checkpoint_dir(step).name,
            provenance={"step": step, "temperature": 0.0, "split": "validation"},
        )
        return Validation(
            success=success_of_all(summary).value or 0.0,
            scored_success=summary.metrics["task_success"].value,
            episodes=summary.n_episodes,
            unscored=summary.unscored,
        )

    def evaluate_as(
        self, name: str, tasks: Sequence[Task], *, samples: int, temperature: float, provenance: JsonObject
    ) -> EvalSummary:
        """The same for the report: `samples` attempts at each task, stored as `eval/NAME.json` with the
        episodes beside the run's others."""
        summary, episodes = self._play(tasks, samples=samples, temperature=temperature)
        if self._processes.is_first:
            write_trajectories(self._run.trajectories / f"eval_{name}", episodes)
        self._store(summary, name=name, provenance=provenance)
        return summary

    def _play(
        self, tasks: Sequence[Task], *, samples: int, temperature: float
    ) -> tuple[EvalSummary, list[Trajectory]]:
        sampling = replace(self._settings.sampling, temperature=temperature)
        own = self._io.run(
            evaluate(
                self._processes.share(tasks),
                policy=self._sampler.policy,
                tools=self._tools,
                settings=replace(self._settings, sampling=sampling),
                renderer=self._renderer,
                samples=samples,
                concurrency=self._concurrency,
                deterministic=self._deterministic,
            )
        )
        episodes = self._processes.gather(own)
        return summarise(episodes), episodes

    def _store(self, summary: EvalSummary, *, name: str, provenance: JsonObject) -> None:
        if self._processes.is_first:
            document = summary.with_provenance(provenance).model_dump_json(indent=1)
            write_text(self._run.evaluations / f"{name}.json", document + "\n")


def roll_back(ledger: Path, size: int) -> None:
    """Forget what the servers counted after `size` bytes: those calls belong to work that is done again."""
    if _size(ledger) > size:
        os.truncate(ledger, size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
