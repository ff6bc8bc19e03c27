"""Collect trajectories: many episodes at once on one event loop, so that a waiting tool stalls nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Protocol, Required, TypedDict, Unpack

from mcpagent.core.records import CheckResult
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Completion, Trajectory, TrajectoryGroup
from mcpagent.policy.contract import CompletionRequest, Policy
from mcpagent.rollout.agent import AgentSettings, Attempt, ContextRenderer, run_attempt
from mcpagent.storage.datasets import DiskList
from mcpagent.tools.contract import ToolProvider
from mcpagent.tools.setup import Tools


class Player(Protocol):
    """Another way to play tasks than `collect`: that of an engine. `tools` are those that it plays with."""

    tools: Tools

    def play(
        self, policy: Policy, tasks: Sequence[Task], *, on_done: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """One attempt at each task, in order."""
        ...

    def checks(self) -> Sequence[CheckResult]:
        """What is to be said of all that was played."""
        ...


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


Play = Callable[[Attempt], Awaitable[Trajectory]]


@dataclass(frozen=True)
class Staleness:
    """Updates between the policy that sampled a token and the one that is trained on it."""

    mean: float
    largest: int


@dataclass(eq=False)
class _Begun:
    """A group in flight; `version` is the policy that was in force when it was begun."""

    version: int
    task: asyncio.Task[list[Trajectory]]


class Pipeline:
    """Bound to one event loop. `groups` are the attempts at each task in the order in which they are begun,
    `play` plays one, and `batch` is how many groups a training step takes.

    Half of the staleness is for running ahead, the other half for stragglers: in flight are
    `batch * (1 + max_staleness / 2)` groups.
    """

    def __init__(
        self,
        groups: Iterable[Sequence[Attempt]],
        *,
        play: Play,
        batch: int,
        max_staleness: int,
        concurrency: int,
    ) -> None:
        if max_staleness < 1:
            raise ValueError("a pipeline needs max_staleness of 1 or more; use collect")
        self._groups = iter(groups)
        self._play, self._batch, self._max_staleness = play, batch, max_staleness
        self._slots = asyncio.Semaphore(concurrency)
        self._begun: list[_Begun] = []  # oldest first

    @property
    def in_flight(self) -> int:
        """Groups that have begun and that `take` has not given yet."""
        return len(self._begun)

    async def take(self, *, version: int) -> list[Trajectory]:
        """The next batch, group by group, for the update of policy `version`; fewer groups where no more are
        left, none at the end. What `play` raises is raised here."""
        self._begin(version)
        while (batch := self._finished_batch(version)) is None:
            running = [group.task for group in self._begun if not group.task.done()]
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        self._begun = [group for group in self._begun if group not in batch]
        return [trajectory for group in batch for trajectory in group.task.result()]

    async def close(self) -> None:
        """End what is still running."""
        begun, self._begun = self._begun, []
        for group in begun:
            group.task.cancel()
        await asyncio.gather(*(group.task for group in begun), return_exceptions=True)

    def _begin(self, version: int) -> None:
        target = self._batch + self._batch * self._max_staleness // 2
        while len(self._begun) < target and (attempts := next(self._groups, None)) is not None:
            self._begun.append(_Begun(version, asyncio.create_task(self._play_group(attempts))))

    async def _play_group(self, attempts: Sequence[Attempt]) -> list[Trajectory]:
        async def one(attempt: Attempt) -> Trajectory:
            async with self._slots:
                return await self._play(attempt)

        return list(await asyncio.gather(*(one(attempt) for attempt in attempts)))

    def _finished_batch(self, version: int) -> list[_Begun] | None:
        """The oldest groups that have finished, once they are a batch that leaves enough steps for the rest;
        None while that is to be waited for."""
        failed = next((g for g in self._begun if g.task.done() and g.task.exception()), None)
        if failed is not None:
            failed.task.result()
        batch = [group for group in self._begun if group.task.done()][: self._batch]
        if len(batch) < min(self._batch, len(self._begun)):
            return None
        rest = [group.version for group in self._begun if group not in batch]
        for steps in range(self._max_staleness + 1):
            # What must be taken within so many further steps has to fit into their batches.
            due = sum(begun <= version - self._max_staleness + steps for begun in rest)
            if due > steps * self._batch:
                return None
        return batch


def staleness(trajectories: Iterable[Trajectory], *, version: int) -> Staleness | None:
    """Over the sampled tokens, for the update of policy `version`; None where there are none."""
    ages: list[int] = []
    for trajectory in trajectories:
        for turn in trajectory.turns:
            for span in turn.completion.policy_versions:
                ages += [version - span.version] * (span.end - span.start)
    return Staleness(fmean(ages), max(ages)) if ages else None


def attempts(tasks: Iterable[Task], *, per_task: int, seed: int, label: str = "") -> Iterator[Attempt]:
    """`per_task` attempts at each task. `label` separates collections that meet the same task again (a
    training step): it enters the seeds, and the same label gives the same seeds."""
    for task in tasks:
        for attempt in range(per_task):
            yield Attempt(
                task=task,
                attempt=attempt,
                group_id=task.id,
                seed=derive_seed(seed, "rollout", label, task.id, attempt),
            )


class Playing(TypedDict, total=False):
    """How attempts are played. `deterministic` (the default) asks the policy in turn barriers
    (`TurnBarrier`); otherwise each episode asks when it is ready. At most `concurrency` (64) episodes are
    open at a time."""

    policy: Required[Policy]
    tools: Required[ToolProvider]
    settings: Required[AgentSettings]
    renderer: ContextRenderer | None
    concurrency: int
    deterministic: bool
    on_done: Callable[[Trajectory], None] | None


async def collect(attempts: Sequence[Attempt], **how: Unpack[Playing]) -> list[Trajectory]:
    """Trajectories in the order of `attempts`, all in memory. Raises what `run_attempt` raises; the other
    episodes are cancelled then."""
    results: list[Trajectory | None] = [None] * len(attempts)
    await _play_each(enumerate(attempts), results.__setitem__, **how)
    return [trajectory for trajectory in results if trajectory is not None]


async def collect_on_disk(
    attempts: Iterable[Attempt],
    *,
    played: Mapping[str, Trajectory] | None = None,
    **how: Unpack[Playing],
) -> DiskList[Trajectory]:
    """As `collect`, for any number of episodes: attempts are drawn as episodes end, and what was played lies
    on disk. Those of `played`, by id, are taken as they are."""
    results: DiskList[Trajectory] = DiskList()

    def fresh() -> Iterator[tuple[int, Attempt]]:
        for index, attempt in enumerate(attempts):
            before = None if played is None else played.get(attempt.episode_id)
            if before is None:
                yield index, attempt
            else:
                results.put(index, before)

    await _play_each(fresh(), results.put, **how)
    return results


async def _play_each(
    attempts: Iterable[tuple[int, Attempt]],
    put: Callable[[int, Trajectory], None],
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: ContextRenderer | None = None,
    concurrency: int = 64,
    deterministic: bool = True,
    on_done: Callable[[Trajectory], None] | None = None,
) -> None:
    barrier = TurnBarrier(policy) if deterministic else None
    queue = iter(attempts)

    async def worker(first: tuple[int, Attempt]) -> None:
        item: tuple[int, Attempt] | None = first
        while item is not None:
            index, attempt = item
            trajectory = await run_attempt(
                attempt, policy=barrier or policy, tools=tools, settings=settings, renderer=renderer
            )
            put(index, trajectory)
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


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[TrajectoryGroup]:
    """Attempts at the same task, in order of first appearance."""
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_group.setdefault(trajectory.group_id, []).append(trajectory)
    return [TrajectoryGroup(group_id=k, trajectories=tuple(v)) for k, v in by_group.items()]
