"""Episodes that run while the policy is trained, taken in batches of whole groups as they finish.

More groups are in flight than a batch has, so a straggler is left for a later batch instead of holding this
one up, and the policy samples while the trainer works. Nothing is dropped: every group that is begun reaches
a batch, so what is trained on is what was sampled, long episodes included; a cut-off by time would select the
short ones. A group waits at most until its first tokens would be older than `max_staleness` updates.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import fmean

from mcpagent.core.trajectory import Trajectory
from mcpagent.rollout.agent import Attempt

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
            raise ValueError("a pipeline without staleness is no pipeline; use collect")
        self._groups = iter(groups)
        self._play, self._batch, self._max_staleness = play, batch, max_staleness
        self._slots = asyncio.Semaphore(concurrency)
        self._begun: list[_Begun] = []  # oldest first

    @property
    def in_flight(self) -> int:
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
        wanted = self._batch + self._batch * self._max_staleness // 2
        while len(self._begun) < wanted and (attempts := next(self._groups, None)) is not None:
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
