"""The actor of a local run: a policy with the learner's weights, episodes on the I/O thread."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.env.parsing import DIALECT_OF, observations, parse_action
from mcpagent.errors import UserError
from mcpagent.evaluate.breakdown import Breakdown, break_down
from mcpagent.evaluate.summary import EvalSummary, evaluate, success_of_all, summarise
from mcpagent.models.conversation import UNNAMED, calling_message, thought, tool_message
from mcpagent.models.load import resolve_dtype
from mcpagent.models.tokens import Renderer, TokenDrift, measure_drift
from mcpagent.policy.canary import Canary
from mcpagent.policy.contract import choose_backend
from mcpagent.rollout.agent import AgentSettings, Attempt, run_attempt
from mcpagent.rollout.collector import Pipeline, attempts, collect, staleness
from mcpagent.storage.atomic import write_text
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.trajectories import read_trajectories, write_trajectories
from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.setup import Tools
from mcpagent.train.build import is_deterministic
from mcpagent.train.health import StepReport
from mcpagent.train.learner.processes import Processes
from mcpagent.train.run_state import Validation
from mcpagent.train.sampler import RolloutEngine


@dataclass(frozen=True, kw_only=True)
class ActorSettings:
    """How an actor plays: `group_size` attempts at each task, `concurrency` episodes at once, in turn
    barriers where it is `deterministic`."""

    agent: AgentSettings
    group_size: int
    concurrency: int
    deterministic: bool
    seed: int


@dataclass(frozen=True, kw_only=True)
class ActorRecords:
    """Where the episodes of an actor are counted and kept: `ledger` is that of the servers' calls,
    `tool_metrics` gives what the tools have counted since it was last asked."""

    run: RunFolder
    processes: Processes = field(default_factory=Processes)
    ledger: Path | None = None
    tool_metrics: Callable[[], JsonObject] = dict
    on_episode: Callable[[Trajectory], None] = lambda _: None


class LocalActor:
    """Collects and evaluates with the current weights, in this process. `version` counts the updates that
    the weights have seen."""

    def __init__(
        self,
        engine: RolloutEngine,
        *,
        canary: Canary,
        renderer: Renderer,
        tools: Tools,
        settings: ActorSettings,
        records: ActorRecords,
        version: int = 0,
    ) -> None:
        self._engine, self._canary, self._version = engine, canary, version
        self._renderer, self._tools, self._io = renderer, tools.pool, tools.io
        self._settings, self._records, self._processes = settings, records, records.processes

    def collect(
        self, tasks: Sequence[Task], *, step: int, round_: int = 0, on_episode: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """`group_size` attempts at each task, in order."""
        label = f"step {step} round {round_}" if round_ else f"step {step}"
        settings = self._settings
        planned = list(attempts(tasks, per_task=settings.group_size, seed=settings.seed, label=label))

        def on_done(trajectory: Trajectory) -> None:
            self._records.on_episode(trajectory)
            on_episode(trajectory)

        return self._io.run(
            collect(
                planned,
                policy=self._engine.policy,
                tools=self._tools,
                settings=settings.agent,
                renderer=self._renderer,
                concurrency=settings.concurrency,
                deterministic=settings.deterministic,
                on_done=on_done,
            )
        )

    def pipeline(self, groups: Iterable[Sequence[Attempt]], *, batch: int, max_staleness: int) -> Pipeline:
        """Episodes of `groups` with this actor's policy and tools, for `PipelinedActor`."""

        async def play(attempt: Attempt) -> Trajectory:
            trajectory = await run_attempt(
                attempt,
                policy=self._engine.policy,
                tools=self._tools,
                settings=self._settings.agent,
                renderer=self._renderer,
            )
            self._records.on_episode(trajectory)
            return trajectory

        return Pipeline(
            groups,
            play=play,
            batch=batch,
            max_staleness=max_staleness,
            concurrency=self._settings.concurrency,
        )

    @property
    def ledger_bytes(self) -> int:
        """How much the servers have written to their ledger so far."""
        ledger = self._records.ledger
        return _size(ledger) if ledger is not None else 0

    def roll_back(self, ledger_bytes: int) -> None:
        """Forget the calls of a step that was cut."""
        if self._records.ledger is not None:
            roll_back(self._records.ledger, ledger_bytes)

    def tool_metrics(self) -> JsonObject:
        """What the tools have counted since this was last asked."""
        return self._records.tool_metrics()

    def rest(self) -> None:
        """Give the sampling engine's memory to the update. Nothing may be sampled until `sync`."""
        self._engine.rest()

    def sync(self) -> JsonObject:
        """Bring the learner's weights to the policy, and prove it; what the proof measured."""
        self._engine.push()
        self._version += 1
        return self.prove()

    def prove(self) -> JsonObject:
        """Raises RunError where the policy does not serve the learner's weights."""
        if not self._canary.is_due(self._version):
            return {}
        engine = self._engine
        proof = self._io.run(
            self._canary.prove(engine.policy, version=self._version, read_back=engine.read_back)
        )
        return proof.as_metrics()

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        """Greedy success on `tasks`, of which each process plays its share; the summary goes to
        `eval/step-N.json`."""
        summary, _ = self._play(tasks, samples=1, temperature=0.0)
        self._store(
            summary,
            name=self._records.run.checkpoint_dir(step).name,
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
            write_trajectories(self._records.run.trajectories / f"eval_{name}", episodes)
        self._store(summary, name=name, provenance=provenance, breakdown=break_down(tasks, episodes))
        return summary

    def _play(
        self, tasks: Sequence[Task], *, samples: int, temperature: float
    ) -> tuple[EvalSummary, Sequence[Trajectory]]:
        settings = self._settings
        sampling = replace(settings.agent.sampling, temperature=temperature)
        share = self._io.run(
            evaluate(
                self._processes.share(tasks),
                policy=self._engine.policy,
                tools=self._tools,
                settings=replace(settings.agent, sampling=sampling),
                renderer=self._renderer,
                samples=samples,
                concurrency=settings.concurrency,
                deterministic=settings.deterministic,
            )
        )
        self._processes.meet()
        episodes = self._processes.gather(share)
        return summarise(episodes), episodes

    def _store(
        self, summary: EvalSummary, *, name: str, provenance: JsonObject, breakdown: Breakdown | None = None
    ) -> None:
        if self._processes.is_first:
            result = summary.with_provenance(provenance, breakdown=breakdown)
            path = self._records.run.evaluations / f"{name}.json"
            write_text(path, result.model_dump_json(indent=1) + "\n")


def roll_back(ledger: Path, size: int) -> None:
    """Forget what the servers counted after `size` bytes: those calls belong to work that is done again."""
    if _size(ledger) > size:
        os.truncate(ledger, size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


class DriftCallback:
    """Adds the drift of one episode a step to its record: the first with a history, since one is enough to
    see what a template does, and its cost stays far below that of a step."""

    def __init__(self, renderer: Renderer) -> None:
        self._renderer = renderer

    def on_step(self, report: StepReport) -> None:
        """Add the token drift of the first episode with a tool call to the metrics of the step."""
        played = (t for t in report.trajectories if t.stop_reason is not StopReason.FAILED)
        episode = next((t for t in played if len(t.turns) > 1), None)
        if episode is None:
            return
        try:
            drift = episode_drift(self._renderer, episode)
        except UserError:
            return  # a history that this template cannot render at all, such as an unreadable call's answer
        report.metrics["drift_tokens"] = drift.changed
        report.metrics["drift_share"] = drift.share

    def should_stop(self) -> str | None:
        """Never: drift is a measurement, and no reason to end a run."""
        return None


def episode_drift(renderer: Renderer, episode: Trajectory) -> TokenDrift:
    """Of the context in which the last turn was sampled. Raises UserError where the template does not render
    that conversation."""
    # The tools are left out on both sides: a trajectory does not hold them, and they stand still.
    kept = list(renderer.prompt_ids(episode.prompt, ()))
    messages = list(episode.prompt)
    calls = any(turn.tool_calls for turn in episode.turns) and _knows_calls(renderer)
    for turn, following in zip(episode.turns, episode.turns[1:], strict=False):
        kept += [*turn.completion.token_ids, *following.added_token_ids]
        messages.append(_said(turn.completion.text, renderer.tool_format, calls=calls))
        seen = observations(turn.tool_results, turn.parse_failures, turn.user_message, calls=turn.tool_calls)
        for number, message in enumerate(seen):
            if message["role"] == "tool":
                message = tool_message(message["content"], name=message.get("name", UNNAMED), call=number)
            messages.append(message)
    return measure_drift(renderer, kept, messages, ())


def _knows_calls(renderer: Renderer) -> bool:
    """Whether a chat API with this template takes calls as such; otherwise, also where the dialect was taught
    in the system message, they are text."""
    return renderer.instruction is None and renderer.call_text("look", {}, ()) is not None


def _said(text: str, tool_format: str, *, calls: bool) -> JsonObject:
    """A sampled turn as a chat API holds it, with calls apart from text where `calls`."""
    parsed = parse_action(text, tool_format=tool_format)
    said: JsonObject = {"role": "assistant", "content": text.rpartition("</think>")[2].strip()}
    if calls and (parsed.calls or DIALECT_OF[tool_format].read_turn is not None):
        said["content"] = parsed.text
        if parsed.calls:
            made = calling_message(*((call.tool, call.arguments) for call in parsed.calls))
            said["tool_calls"] = made["tool_calls"]
    return said if parsed.thinking is None else {**said, **thought(parsed.thinking)}


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
        """How long the record of tool calls is, in bytes."""
        return self._actor.ledger_bytes

    def roll_back(self, ledger_bytes: int) -> None:
        """Nothing: what was played beside the update is cut at the end of any run, and counted in no step."""

    def tool_metrics(self) -> JsonObject:
        """The metrics of the tools since the last step."""
        return self._actor.tool_metrics()

    def rest(self) -> None:
        """Nothing: episodes are sampled beside the update."""

    def sync(self) -> JsonObject:
        """Bring the weights to the policy, whose turns go on with them; what was measured in this step."""
        self._version += 1
        return {**self._measured, **self._actor.sync()}

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        """What the actor measures on `tasks` with the weights of now."""
        return self._actor.evaluate(tasks, step=step)

    def close(self) -> None:
        """End the episodes that no step takes any more."""
        self._io.run(self._pipeline.close())


def refuse_pipeline(
    config: TrainConfig, device: torch.device, processes: Processes, *, is_here: bool = True
) -> None:
    """Raises UserError where episodes cannot run beside the update. With `is_here` off, the device is that of
    another machine."""
    stale = f"rollout.max_staleness is {config.rollout.max_staleness}"
    if is_deterministic(config, device):
        raise UserError(
            f"{stale}, but the deterministic mode plays a batch to its end before it is trained on: when "
            "episodes and updates overlap, time decides which weights sample a token",
            where="rollout.max_staleness",
            remedy="set it to 0, or rollout.deterministic to false",
        )
    mode, dtype = config.finetune.mode, resolve_dtype(config.model.dtype, device)
    has_copy = mode == "lora" and dtype == torch.float32  # see `train.sampler.hf_sampler`
    choice = choose_backend(
        config.rollout.backend,
        is_lora=mode == "lora",
        has_gpu=device.type == "cuda",
        has_servers=bool(config.vllm.servers),
        is_here=is_here,
    )
    if choice.backend == "hf" and not has_copy:
        held = "" if mode != "lora" else f" and weights in {str(dtype).removeprefix('torch.')}"
        raise UserError(
            f"{stale}, but with finetune.mode {mode}{held} the hf backend samples from the very weights that "
            "the update is writing",
            where="rollout.max_staleness",
            remedy="set it to 0, use --backend vllm, or finetune.mode lora with model.dtype=float32",
        )
    if processes.count > 1:
        raise UserError(
            f"{stale}, but {processes.count} processes collect each step together",
            where="rollout.max_staleness",
            remedy="set it to 0, or train in one process",
        )


def trained_groups(run: RunFolder) -> set[str]:
    """The groups of the steps that a resumed run keeps."""
    group_ids: set[str] = set()
    for step in {step for path in run.trajectories.iterdir() if (step := step_of(path)) is not None}:
        records = read_trajectories(run.trajectory_stem(step), with_tokens=False)
        group_ids |= {trajectory.group_id for trajectory in records}
    return group_ids


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
                group = attempts([task], per_task=group_size, seed=seed, label=f"step {step}")
                yield [replace(attempt, group_id=name) for attempt in group]
