"""Collect trajectories: many episodes at once on one event loop, so that a waiting tool stalls nobody."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence

from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory, TrajectoryGroup
from mcpagent.policy.contract import Policy
from mcpagent.rollout.agent import AgentSettings, Attempt, ContextRenderer, run_attempt
from mcpagent.rollout.barrier import TurnBarrier
from mcpagent.tools.contract import ToolProvider


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


async def collect(
    wanted: Sequence[Attempt],
    *,
    policy: Policy,
    tools: ToolProvider,
    settings: AgentSettings,
    renderer: ContextRenderer | None = None,
    concurrency: int = 64,
    deterministic: bool = True,
    on_done: Callable[[Trajectory], None] | None = None,
) -> list[Trajectory]:
    """Trajectories in the order of `wanted`, at most `concurrency` episodes open at a time.

    `deterministic` asks the policy in turn barriers (`TurnBarrier`); otherwise each episode asks when it is
    ready. Raises what `run_attempt` raises; the other episodes are cancelled then.
    """
    results: list[Trajectory | None] = [None] * len(wanted)
    barrier = TurnBarrier(policy) if deterministic else None
    queue = iter(enumerate(wanted))

    async def worker(first: tuple[int, Attempt]) -> None:
        item: tuple[int, Attempt] | None = first
        while item is not None:
            index, attempt = item
            results[index] = trajectory = await run_attempt(
                attempt, policy=barrier or policy, tools=tools, settings=settings, renderer=renderer
            )
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
    return [trajectory for trajectory in results if trajectory is not None]


def group_trajectories(trajectories: Iterable[Trajectory]) -> list[TrajectoryGroup]:
    """Attempts at the same task, in order of first appearance."""
    by_group: dict[str, list[Trajectory]] = {}
    for trajectory in trajectories:
        by_group.setdefault(trajectory.group_id, []).append(trajectory)
    return [TrajectoryGroup(group_id=k, trajectories=tuple(v)) for k, v in by_group.items()]
