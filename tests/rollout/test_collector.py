"""Many episodes at once: fixed batches, neighbours that live, errors that say what they are."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Completion, StopReason, Trajectory
from mcpagent.errors import UserError
from mcpagent.policy.contract import CompletionRequest, Sampling
from mcpagent.policy.scripted import call_text
from mcpagent.rollout.collector import AgentSettings, Attempt, attempts, collect, group_trajectories
from tests.env.world import READ_ONLY, make_task, scratch_pool


class Recorder:
    """Makes so many calls of `wait`, then answers; writes down which episodes it was asked about together."""

    def __init__(self, calls: int = 2) -> None:
        self._calls = calls
        self.batches: list[list[str]] = []

    async def complete(self, requests: Sequence[CompletionRequest]) -> list[Completion]:
        self.batches.append([r.episode_id for r in requests])
        return [Completion(text=self._text(r)) for r in requests]

    async def release(self, episode_id: str) -> None:
        """Nothing is kept."""

    def _text(self, request: CompletionRequest) -> str:
        turn = sum(m["role"] == "tool" for m in request.messages)
        name = request.episode_id.partition("#")[0]
        return call_text("wait", {"name": name}) if turn < self._calls else "done"


def _tasks(count: int) -> list[Task]:
    return [
        make_task(task_id=f"t{i}", success={"must_call_tool": "scratch.wait"}, max_turns=5)
        for i in range(count)
    ]


def _played(
    wait: Callable[..., Any],
    planned: Iterable[Attempt],
    policy: Recorder,
    *,
    timeout_s: float = 30.0,
    **how: Any,
) -> list[Trajectory]:
    async def run() -> list[Trajectory]:
        async with scratch_pool((wait, READ_ONLY), timeout_s=timeout_s) as pool:
            settings = AgentSettings(sampling=Sampling())
            return await collect(planned, policy=policy, tools=pool, settings=settings, **how)

    return asyncio.run(run())


def _collect(yields: dict[str, int], **how: Any) -> tuple[list[Trajectory], list[list[str]]]:
    """`yields` says how many turns of the event loop each task's tool takes: who is late, and who is not."""

    async def wait(name: str) -> str:
        for _ in range(yields.get(name, 0)):
            await asyncio.sleep(0)
        return name

    policy = Recorder()
    return _played(wait, attempts(_tasks(4), per_task=2, seed=0), policy, **how), policy.batches


def test_batches_do_not_depend_on_which_tool_answers_first() -> None:
    early, fast = _collect({})
    late, slow = _collect({"t0": 60, "t2": 25})
    assert fast == slow
    assert fast[0] == [f"t{i}#{a}" for i in range(4) for a in range(2)]
    assert [t.id for t in early] == [t.id for t in late] == fast[0]


@pytest.mark.parametrize("concurrency", [1, 3, 7])
def test_fewer_open_episodes_change_neither_results_nor_their_order(concurrency: int) -> None:
    wide, _ = _collect({"t1": 9})
    narrow, batches = _collect({"t1": 9}, concurrency=concurrency)
    assert [(t.id, t.stop_reason, t.reward) for t in narrow] == [
        (t.id, t.stop_reason, t.reward) for t in wide
    ]
    assert max(map(len, batches)) <= concurrency
    order = [t.id for t in wide]
    assert all(batch == sorted(batch, key=order.index) for batch in batches)


def test_without_barriers_a_late_tool_holds_nobody_up() -> None:
    _, batches = _collect({"t0": 400}, deterministic=False)
    order = [episode for batch in batches for episode in batch]
    # Everybody else has finished (three requests each) before the late task's second turn.
    assert {e.partition("#")[0] for e in order[-4:]} == {"t0"}


def test_seeds_belong_to_task_and_attempt() -> None:
    first = {(a.task.id, a.attempt): a.seed for a in attempts(_tasks(3), per_task=2, seed=1)}
    again = {(a.task.id, a.attempt): a.seed for a in attempts(_tasks(3)[::-1], per_task=2, seed=1)}
    assert first == again
    assert len(set(first.values())) == 6
    other = {a.seed for a in attempts(_tasks(3), per_task=2, seed=1, label="step 2")}
    assert other.isdisjoint(first.values())


def test_groups_keep_the_attempts_of_a_task_together() -> None:
    trajectories, _ = _collect({})
    assert [len(g.trajectories) for g in group_trajectories(trajectories)] == [2, 2, 2, 2]


def test_an_episode_lost_to_its_server_is_unscored_and_its_siblings_are_not() -> None:
    async def wait(name: str) -> str:
        if name == "t1":
            await asyncio.Event().wait()
        return name

    planned = attempts(_tasks(3), per_task=1, seed=0)
    trajectories = _played(wait, planned, Recorder(calls=1), timeout_s=2.0)
    assert [t.stop_reason for t in trajectories] == [
        StopReason.ANSWERED,
        StopReason.FAILED,
        StopReason.ANSWERED,
    ]
    assert [t.reward is None for t in trajectories] == [False, True, False]
    assert trajectories[1].errors


def test_a_task_that_offers_a_missing_tool_is_the_users_error_and_no_group_of_errors() -> None:
    async def wait(name: str) -> str:
        return name

    planned = attempts([make_task(tools=["scratch.gone"])], per_task=2, seed=0)
    with pytest.raises(UserError, match=r"scratch\.gone"):
        _played(wait, planned, Recorder())
