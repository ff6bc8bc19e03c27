"""The supervised loop: the warm start on demonstrations, and `mcpagent train --algo sft`."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, overload

from mcpagent.config.sections import BudgetConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.offer import Discovery, first_schemas
from mcpagent.env.parsing import rewritten
from mcpagent.env.tool_format import opening_ids
from mcpagent.interrupts import Abandoned, stopping, uninterrupted
from mcpagent.models.tokens import Renderer
from mcpagent.policy.contract import Sampling
from mcpagent.policy.scripted import GoldPolicy
from mcpagent.rollout.collector import AgentSettings, attempts, collect
from mcpagent.rollout.shots import is_writable, observations_after, tools_of, turn_segments
from mcpagent.storage.checkpoints import rotate
from mcpagent.storage.datasets import DiskList
from mcpagent.storage.run_folder import RunFolder
from mcpagent.tools.contract import ToolProvider
from mcpagent.train.batch.samples import TrainSample, sample_from_segments
from mcpagent.train.budget import Meter, Spent, resident_mib
from mcpagent.train.health import HealthMonitor, StepReport, calls_not_learned
from mcpagent.train.learner.learner import Learner
from mcpagent.train.objective.value import turn_starts
from mcpagent.train.task_order import TaskOrder


class MakeSamples(Protocol):
    """A curriculum's function: `count` samples, the same for the same `seed` (`sft.curriculum`)."""

    __name__: str

    def __call__(self, renderer: Renderer, /, *, count: int, seed: int) -> list[TrainSample]:
        """`count` samples in the model's tokens."""
        ...


class Augmentation(Protocol):
    """Rewrites the demonstrations each time they are trained on; what `sft.augmentation` makes."""

    @property
    def curriculum(self) -> MakeSamples:
        """Return a stand-in for the function that `sft.curriculum` names."""
        ...

    @property
    def wording(self) -> Collection[str] | None:
        """Words that rewriting keeps, for the tokenizer of a model that is built."""
        ...

    def rewritten(self, trajectory: Trajectory, /, *, seed: int) -> Trajectory:
        """Return the same demonstration in other words, the same for the same `seed`."""
        ...


class RewrittenDemonstrations(Sequence[TrainSample]):
    """A sequence of each demonstration `times` times, rewritten anew when it is asked for: a function of its
    place."""

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        *,
        augmentation: Augmentation,
        encoded: Callable[[Sequence[Trajectory]], Iterable[TrainSample]],
        times: int,
        seed: int,
    ) -> None:
        self._trajectories, self._augmentation, self._encoded = trajectories, augmentation, encoded
        self._times, self._seed = times, seed

    def __len__(self) -> int:
        return len(self._trajectories) * self._times

    @overload
    def __getitem__(self, place: int) -> TrainSample: ...

    @overload
    def __getitem__(self, place: slice) -> list[TrainSample]: ...

    def __getitem__(self, place: int | slice) -> TrainSample | list[TrainSample]:
        if isinstance(place, slice):
            return [self[i] for i in range(*place.indices(len(self)))]
        if not 0 <= place < len(self):
            raise IndexError(place)
        trajectory = self._trajectories[place % len(self._trajectories)]
        again = self._augmentation.rewritten(trajectory, seed=derive_seed(self._seed, "rewritten", place))
        (sample,) = self._encoded([again])
        return sample


@dataclass(frozen=True)
class Curriculum:
    """Samples next to the demonstrations: `steps` steps at the beginning train on them alone, `mix` of them
    join each later batch. Records call those first steps by the name of the function."""

    make: MakeSamples
    steps: int
    mix: int


@dataclass(frozen=True, kw_only=True)
class SftSettings:
    """The length of a supervised run and what its steps are made of; `total_steps` includes those of the
    curriculum."""

    total_steps: int
    curriculum: Curriculum | None = None
    save_every: int
    batch_size: int
    micro_batch_tokens: int
    seed: int
    keep_checkpoints: int | None = None  # None keeps all
    budget: BudgetConfig = field(default_factory=BudgetConfig)


@dataclass
class SftState:
    """The state that a resumed run needs besides weights, moments and random state."""

    step: int = 0
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def from_json(cls, saved: JsonObject) -> SftState:
        """Return what `as_json` gave."""
        return cls(step=saved["step"], spent=Spent.from_json(saved["spent"]))

    def as_json(self) -> JsonObject:
        """Return the state as a checkpoint keeps it; `from_json` reads it."""
        return {"step": self.step, "spent": dict(vars(self.spent))}


def train_sft(
    learner: Learner,
    demonstrations: Sequence[TrainSample],
    *,
    kinds: Iterable[str] = (),
    renderer: Renderer,
    run: RunFolder,
    settings: SftSettings,
    state: SftState,
    of_tools: JsonObject,
    on_step: Callable[[JsonObject], None],
    note: Callable[[str], None] = lambda _: None,
    health: HealthMonitor | None = None,
) -> str:
    """Minimise the mean negative log-likelihood of the demonstrations' own tokens, a batch a step; returns
    what ended the run. Batches hold the `kinds` of the demonstrations in proportion. `of_tools` is what
    making the demonstrations came to: it joins the first record. `health` ends a run that unlearns calls, and
    `note` is told of one that never learns them.

    Everything a step uses is a function of its number, so a resumed run continues exactly. Ctrl-C finishes
    the step, leaves a checkpoint and is raised again.
    """
    meter, processes = Meter(settings.budget, state.spent), learner.processes
    batch_size, seed = settings.batch_size, settings.seed
    order = TaskOrder(len(demonstrations), batch_size=batch_size, seed=seed, kinds=kinds)
    opening, records, said = opening_ids(renderer), run.metrics(), False

    def save_if_missing() -> None:
        folder = run.checkpoint_dir(state.step)
        if processes.broadcast_from_rank0(lambda: not folder.exists()):
            meter.read()
            learner.save(folder, state=state.as_json())
            processes.broadcast_from_rank0(lambda: rotate(run, keep=settings.keep_checkpoints, spare=()))

    def watch_over(record: JsonObject) -> None:
        nonlocal said
        records.append(record)
        if health is None:
            return
        health.on_step(StepReport(step=record["step"], metrics=record, trajectories=()))
        finding = calls_not_learned(records, is_over=record["step"] == settings.total_steps)
        if finding is not None and (not said or record["step"] == settings.total_steps):
            note(f"health, step {record['step']}: {finding}")
            said = True

    def why_over() -> str | None:
        return meter.reached() or (health.should_stop() if health is not None else None)

    def one_step(step: int) -> None:
        samples = _samples(step, order, demonstrations, renderer, settings)
        record = _update(learner, samples, settings, step, opening) | (of_tools if step == first else {})
        if processes.is_first:
            watch_over(record)
            run.append_metrics(record)
        state.step = step
        if step % settings.save_every == 0:
            save_if_missing()
        on_step(record)

    first, reason = state.step + 1, None
    learner.model.train()
    try:
        while (
            state.step < settings.total_steps and (reason := processes.broadcast_from_rank0(why_over)) is None
        ):
            with uninterrupted(lambda: note("finishing the step before it stops; Ctrl-C again drops it")):
                one_step(state.step + 1)
    except Abandoned:
        raise
    except KeyboardInterrupt:
        stopping()
        save_if_missing()
        raise
    save_if_missing()
    learner.model.eval()
    return reason or "completed"


def _samples(
    step: int,
    order: TaskOrder,
    demonstrations: Sequence[TrainSample],
    renderer: Renderer,
    settings: SftSettings,
) -> list[TrainSample]:
    """Return the samples that a step trains on: demonstrations, samples of the curriculum, or both."""
    curriculum = settings.curriculum
    if curriculum is None:
        return [demonstrations[i] for i in order.batch(step)]
    seed = derive_seed(settings.seed, curriculum.make.__name__, step)
    if step <= curriculum.steps:
        # Their samples are short: twice as many cost about as much as a batch of demonstrations.
        return curriculum.make(renderer, count=2 * settings.batch_size, seed=seed)
    batch = [demonstrations[i] for i in order.batch(step - curriculum.steps)]
    return [*batch, *curriculum.make(renderer, count=curriculum.mix, seed=seed)]


def _update(
    learner: Learner,
    samples: Sequence[TrainSample],
    settings: SftSettings,
    step: int,
    opening: Sequence[int],
) -> JsonObject:
    """One optimiser step on the samples, shared out over the processes; its record."""
    started, processes = time.process_time(), learner.processes
    tokens = sum(s.loss_tokens for s in samples)
    total, begun = 0.0, list[float]()
    mine = processes.share(samples)
    processes.seed_torch(settings.seed, step)
    for batch in learner.batches(mine, max_tokens=settings.micro_batch_tokens):
        if not batch.rows:
            learner.idle(batch)
            continue
        logprobs, _ = learner.score(batch)
        loss = -logprobs.sum() / tokens
        learner.backward(loss)
        total += float(loss.detach())
        begun += _begun([mine[row] for row in batch.rows], logprobs.tolist(), opening)
    norm, factor = learner.step(step)
    loss, calls_begun, calls = processes.sum([total, math.fsum(begun), len(begun)])
    return {
        "step": step,
        "phase": _phase(settings.curriculum, step),
        "loss": loss,
        # The share of the demonstrations' calls that the model would begin itself, before this update.
        **({"calls_begun": calls_begun / calls} if calls else {}),
        **({"overflowed_steps": 1} if norm is None else {"grad_norm": norm}),
        "learning_rate_factor": factor,
        "tokens": tokens,
        "longest_turn": max((length for sample in samples for length in sample.turn_tokens_K), default=0),
        "sample_tokens": sum(len(sample.token_ids_T) for sample in samples) / len(samples),
        "cpu_s": time.process_time() - started,
        "rss_mb": resident_mib(),
    }


def _begun(
    samples: Sequence[TrainSample], logprobs_N: Sequence[float], opening: Sequence[int]
) -> list[float]:
    """Return, for each turn of the samples that begins with `opening`, how likely the model writes the least
    likely token of it: a call is begun no more often."""
    tokens = [t for s in samples for t, counts in zip(s.token_ids_T, s.loss_mask_T, strict=True) if counts]
    spans = [(start, start + len(opening)) for start in turn_starts(samples)]
    return [math.exp(min(logprobs_N[a:b])) for a, b in spans if opening and tokens[a:b] == list(opening)]


def _phase(curriculum: Curriculum | None, step: int) -> str:
    if curriculum is None or step > curriculum.steps:
        return "demonstrations"
    return curriculum.make.__name__


async def demonstrate(
    tasks: Sequence[Task],
    *,
    tools: ToolProvider,
    seed: int,
    stop_early: float = 0.0,
    wrong_tool: float = 0.0,
    discovery: Discovery | None = None,
    per_task: int = 1,
    on_done: Callable[[Trajectory], None] | None = None,
) -> DiskList[Trajectory]:
    """Play each task `per_task` times with the gold policy, through the real environment; real calls, real
    results.

    With `stop_early` and `wrong_tool` the demonstrations are of mixed quality (see `GoldPolicy`); with
    `discovery` they search for the tools first.
    """
    return await collect(
        attempts(tasks, per_task=per_task, seed=seed, label="demonstrations"),
        policy=GoldPolicy(tasks, stop_early=stop_early, wrong_tool=wrong_tool),
        tools=tools,
        settings=AgentSettings(sampling=Sampling(), discovery=discovery),
        deterministic=False,
        on_done=on_done,
    )


def writable(
    trajectories: Iterable[Trajectory],
    tasks: Mapping[str, Task],
    *,
    catalog: Mapping[str, ToolSpec],
    tool_format: str,
) -> Iterator[Trajectory]:
    """Yield the demonstrations whose turns `tool_format` reads as it writes them: it may have no way to write
    a value, such as a text with the tag that ends texts, and what it wrote would teach another call. Raises
    UserError as `env.offer.offer`."""
    for trajectory in trajectories:
        tools = tools_of(tasks[trajectory.task_id], catalog, tool_format)
        if is_writable(trajectory, tools, tool_format):
            yield trajectory


def demonstration_samples(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    *,
    catalog: Mapping[str, ToolSpec],
    renderer: Renderer,
    discovery: Discovery | None = None,
) -> Iterator[TrainSample]:
    """Yield the token sequences that a model would have seen and written: what the environment appended is
    masked out, what the policy wrote carries the loss. `discovery` as when they were played."""
    for trajectory in trajectories:
        task = tasks[trajectory.task_id]
        tool_format = renderer.tool_format
        schemas = first_schemas(
            catalog, task.offered_tools, discovery, task_id=task.id, tool_format=tool_format
        )
        prompt = renderer.prompt_ids(trajectory.prompt, schemas)
        turns = turn_segments(trajectory, renderer, tools_of(task, catalog, tool_format))
        yield sample_from_segments([(prompt, False), *turns])


def texts(
    trajectories: Sequence[Trajectory],
    tasks: Mapping[str, Task],
    *,
    catalog: Mapping[str, ToolSpec],
    renderer: Renderer,
) -> Iterator[str]:
    """Yield the same sequences as text, for training a tokenizer."""
    for trajectory in trajectories:
        task = tasks[trajectory.task_id]
        discovery = Discovery() if trajectory.searches else None
        schemas = first_schemas(
            catalog, task.offered_tools, discovery, task_id=task.id, tool_format=renderer.tool_format
        )
        text = renderer.render_text(trajectory.prompt, schemas)
        for turn in trajectory.turns:
            text += rewritten(turn.completion.text, renderer.tool_format)
            text += renderer.suffix_text(observations_after(turn)) if turn is not trajectory.turns[-1] else ""
        yield text
