"""Collect trajectories: many episodes at once on one event loop; a waiting tool delays its own only."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Completion, FinishReason, StopReason, Trajectory, TrajectoryGroup, Turn
from mcpagent.env.episode import Episode, EpisodeLimits
from mcpagent.env.offer import Discovery
from mcpagent.env.user import UserSimulator
from mcpagent.errors import EpisodeError
from mcpagent.policy.contract import CompletionRequest, Policy, Sampling
from mcpagent.reward.judge import Judge
from mcpagent.reward.record import Reward
from mcpagent.reward.terms import DEFAULT_REWARD
from mcpagent.rollout.shots import Shot, messages_with_shots, prompt_ids_with_shots
from mcpagent.storage.datasets import DiskList
from mcpagent.tools.contract import ToolProvider

if TYPE_CHECKING:
    from mcpagent.models.tokens import Renderer  # and with it jinja2, which policies of text do without


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One attempt at one task. `seed` is the attempt's own; turns derive theirs from it. `sampling` None: as
    the collection samples."""

    task: Task
    attempt: int
    group_id: str
    seed: int
    sampling: Sampling | None = None

    @property
    def episode_id(self) -> str:
        """Unique in a collection: the id of the trajectory, and of the policy's cache."""
        return f"{self.group_id}#{self.attempt}"


@dataclass(frozen=True, kw_only=True)
class AgentSettings:
    """The settings that all episodes of a collection share. `max_context_tokens` None: no limit (text
    policies); `discovery` None: all tools of a task are offered at once."""

    sampling: Sampling
    limits: EpisodeLimits = field(default_factory=EpisodeLimits)
    max_context_tokens: int | None = None
    discovery: Discovery | None = None
    user: UserSimulator | None = None  # None: later user messages are those of the task
    reward: Reward = DEFAULT_REWARD
    judge: Judge | None = None  # None: what tasks leave to a judge is unscored
    shots: tuple[Shot, ...] = ()  # earlier turns in every context, and in no record


async def run_attempt(
    attempt: Attempt,
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: Renderer | None,
) -> Trajectory:
    """Play the episode to its end and grade it. `renderer` None: the policy works on text.

    An infrastructure failure gives a trajectory with stop reason FAILED and no reward. UserError (the task
    offers a tool that no server has) and bugs are raised.
    """
    episode = Episode(
        attempt.task,
        tools,
        limits=settings.limits,
        episode_id=attempt.episode_id,
        tool_format="auto" if renderer is None else renderer.tool_format,
        discovery=settings.discovery,
        user=settings.user,
        seed=derive_seed(attempt.seed, "user"),
        reward=settings.reward,
        judge=settings.judge,
    )
    turns: list[Turn] = []
    prompt: list[JsonObject] = []
    try:
        try:
            start = await episode.start()
            prompt = start.messages
            await _play(attempt, episode, start.tool_schemas, prompt, turns, policy, settings, renderer)
        except EpisodeError as error:
            await episode.finish(StopReason.FAILED, error=str(error))
        return await episode.trajectory(
            turns, prompt=prompt, group_id=attempt.group_id, attempt=attempt.attempt, seed=attempt.seed
        )
    finally:
        await policy.release(attempt.episode_id)
        await episode.close()


async def _play(
    attempt: Attempt,
    episode: Episode,
    schemas: tuple[JsonObject, ...],
    messages: list[JsonObject],
    turns: list[Turn],
    policy: Policy,
    settings: AgentSettings,
    renderer: Renderer | None,
) -> None:
    context: list[int] = []
    added = prompt_ids_with_shots(messages, schemas, settings.shots, renderer) if renderer else ()
    messages = messages_with_shots(messages, settings.shots)
    done = False
    while not done:
        started = time.perf_counter()
        context += added
        limit = settings.max_context_tokens
        if limit is not None and len(context) >= limit:
            await episode.finish(StopReason.CONTEXT_OVERFLOW)
            return
        request = CompletionRequest(
            episode_id=attempt.episode_id,
            sampling=attempt.sampling or settings.sampling,
            seed=derive_seed(attempt.seed, len(turns)),
            token_ids=tuple(context),
            messages=tuple(messages),
            tools=schemas,
        )
        completion = (await policy.complete([request]))[0]
        cut = completion.finish_reason is FinishReason.LENGTH
        if cut and limit is not None and len(context) + len(completion.token_ids) >= limit:
            completion = completion.model_copy(update={"finish_reason": FinishReason.OVERFLOW})
        out = await episode.step(completion.text, finish=completion.finish_reason)
        wall_s = time.perf_counter() - started
        turns.append(out.as_turn(len(turns), completion, added_token_ids=added, wall_s=wall_s))
        done = out.done
        if not done:
            context += completion.token_ids
            if renderer:
                added = renderer.suffix_ids(out.observations, ended_by=context[-1])
            schemas += out.tool_schemas
            messages += [{"role": "assistant", "content": completion.text}, *out.observations]


class TurnBarrier:
    """A policy in front of a policy. `enter` and `leave` count the open episodes; one event loop only."""

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._open = 0
        self._order: dict[str, int] = {}
        self._waiting: dict[str, tuple[CompletionRequest, asyncio.Future[Completion]]] = {}
        self._flush: asyncio.Task[None] | None = None

    def enter(self, episode_id: str, *, rank: int) -> None:
        """An episode has opened; `rank` is its place in every batch."""
        self._open += 1
        self._order[episode_id] = rank

    async def leave(self, episode_id: str) -> None:
        """The episode is over and asks nothing more."""
        self._open -= 1
        del self._order[episode_id]
        self._flush_if_complete()

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        """Wait until every open episode has asked, then answer all of them from one batch."""
        loop = asyncio.get_running_loop()
        futures: list[asyncio.Future[Completion]] = []
        for request in requests:
            futures.append(loop.create_future())
            self._waiting[request.episode_id] = (request, futures[-1])
        self._flush_if_complete()
        return list(await asyncio.gather(*futures))

    async def release(self, episode_id: str) -> None:
        """The policy may drop what it keeps for the episode."""
        await self._policy.release(episode_id)

    def _flush_if_complete(self) -> None:
        if self._waiting and len(self._waiting) == self._open:
            batch = sorted(self._waiting.values(), key=lambda item: self._order[item[0].episode_id])
            self._waiting = {}
            self._flush = asyncio.create_task(self._run(batch))

    async def _run(self, batch: list[tuple[CompletionRequest, asyncio.Future[Completion]]]) -> None:
        try:
            completions = await self._policy.complete([request for request, _ in batch])
        except BaseException as error:  # noqa: BLE001 - task boundary: each waiter gets the error
            for _, future in batch:
                if not future.done():
                    future.set_exception(error)
            return
        for (_, future), completion in zip(batch, completions, strict=True):
            if not future.done():
                future.set_result(completion)


def attempts(
    tasks: Iterable[Task], *, per_task: int | Sequence[Sampling], seed: int, label: str = ""
) -> Iterator[Attempt]:
    """`per_task` attempts at each task, or one with each sampling. `label` separates collections that meet
    the same task again (a training step, an `evaluation`): it enters the seeds, and the same label gives the
    same seeds."""
    samplings = [None] * per_task if isinstance(per_task, int) else per_task
    for task in tasks:
        for attempt, sampling in enumerate(samplings):
            yield Attempt(
                task=task,
                attempt=attempt,
                group_id=task.id,
                seed=derive_seed(seed, "rollout", label, task.id, attempt),
                sampling=sampling,
            )


async def collect(
    attempts: Iterable[Attempt],
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: Renderer | None = None,
    concurrency: int = 64,
    deterministic: bool = True,
    on_done: Callable[[Trajectory], None] | None = None,
    played: Mapping[str, Trajectory] | None = None,
) -> DiskList[Trajectory]:
    """Trajectories in the order of `attempts`, which are drawn as episodes end; all but the first thousand
    lie on disk. Those of `played`, by id, are taken as they are.

    `deterministic` asks the policy in turn barriers (`TurnBarrier`); otherwise each episode asks when it is
    ready. At most `concurrency` episodes are open at a time. Raises what `run_attempt` raises; the other
    episodes are cancelled then.
    """
    results: DiskList[Trajectory] = DiskList()

    def fresh() -> Iterator[tuple[int, Attempt]]:
        for index, attempt in enumerate(attempts):
            before = None if played is None else played.get(attempt.episode_id)
            if before is None:
                yield index, attempt
            else:
                results.put(index, before)

    barrier = TurnBarrier(policy) if deterministic else None
    queue = fresh()

    async def worker(first: tuple[int, Attempt]) -> None:
        item: tuple[int, Attempt] | None = first
        while item is not None:
            index, attempt = item
            trajectory = await run_attempt(
                attempt, policy=barrier or policy, tools=tools, settings=settings, renderer=renderer
            )
            results.put(index, trajectory)
            if on_done is not None:
                on_done(trajectory)
            item = next(queue, None)
            if barrier is not None:
                # The successor opens before this one leaves: the barrier never sees a gap between them.
                if item is not None:
                    barrier.enter(item[1].episode_id, rank=item[0])
                await barrier.leave(attempt.episode_id)

    opening = [item for _, item in zip(range(concurrency), queue, strict=False)]
    if barrier is not None:
        for index, attempt in opening:
            barrier.enter(attempt.episode_id, rank=index)
    try:
        async with asyncio.TaskGroup() as group:
            for item in opening:
                group.create_task(worker(item))
    except BaseExceptionGroup as failures:
        # One cause usually fails every episode alike: the first tells the user what the group would.
        raise failures.exceptions[0] from None
    return results


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[TrajectoryGroup]:
    """Attempts at the same task, in order of first appearance."""
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_group.setdefault(trajectory.group_id, []).append(trajectory)
    return [TrajectoryGroup(group_id=k, trajectories=tuple(v)) for k, v in by_group.items()]
