"""The pipeline on a clock that the tests turn: who is taken when, how old, and that nobody is left out."""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.trajectory import Completion, PolicySpan, StopReason, Trajectory, Turn
from mcpagent.rollout.agent import Attempt
from mcpagent.rollout.collector import Pipeline, Staleness, attempts, staleness
from tests.env.world import make_task

PATIENCE_S = 20.0


class World:
    """Episodes take as many ticks as they have tokens; `version` is what the trainer made of the policy."""

    def __init__(self, lengths: Callable[[Attempt], int]) -> None:
        self.lengths, self.version, self.now = lengths, 0, 0
        self.begun: list[str] = []
        self._waiting: list[tuple[int, asyncio.Event]] = []

    async def play(self, attempt: Attempt) -> Trajectory:
        self.begun.append(attempt.episode_id)
        length, version = self.lengths(attempt), self.version
        done = asyncio.Event()
        self._waiting.append((self.now + length, done))
        await done.wait()
        spans = (PolicySpan(version=version, start=0, end=length),)
        completion = Completion(text="", token_ids=(1,) * length, policy_versions=spans)
        return Trajectory(
            id=attempt.episode_id,
            task_id=attempt.task.id,
            group_id=attempt.group_id,
            attempt=attempt.attempt,
            turns=(Turn(index=0, completion=completion),),
            stop_reason=StopReason.ANSWERED,
        )

    async def pass_time(self, ticks: int | None = None) -> None:
        """So many ticks; None: until the next episode ends."""
        await _settle()
        if ticks is not None:
            self.now += ticks
        elif self._waiting:
            self.now = max(self.now, min(when for when, _ in self._waiting))
        for when, done in list(self._waiting):
            if when <= self.now:
                done.set()
                self._waiting.remove((when, done))

    async def until(self, wanted: Coroutine[Any, Any, list[Trajectory]]) -> list[Trajectory]:
        task = asyncio.ensure_future(wanted)
        while True:
            await _settle()
            if task.done():
                break
            await self.pass_time()
        return task.result()


async def _settle() -> None:
    """Whoever was let go goes on as far as it can."""
    for _ in range(5):
        await asyncio.sleep(0)


def groups(count: int, *, size: int = 2) -> list[Sequence[Attempt]]:
    tasks = [make_task(task_id=f"t{i}") for i in range(count)]
    wanted = list(attempts(tasks, per_task=size, seed=0))
    return [wanted[i * size : (i + 1) * size] for i in range(count)]


def length_of(trajectory: Trajectory) -> int:
    return len(trajectory.turns[0].completion.token_ids)


def train(
    lengths: Callable[[Attempt], int], *, steps: int, batch: int, max_staleness: int, concurrency: int = 10**6
) -> list[list[Trajectory]]:
    """A whole run: what each step was trained on."""
    world = World(lengths)

    async def run() -> list[list[Trajectory]]:
        pipeline = Pipeline(
            groups(steps * batch),
            play=world.play,
            batch=batch,
            max_staleness=max_staleness,
            concurrency=concurrency,
        )
        taken: list[list[Trajectory]] = []
        for step in range(steps):
            taken.append(await world.until(pipeline.take(version=step)))
            world.version = step + 1
            await world.pass_time(4)  # the update: episodes go on meanwhile
        assert pipeline.in_flight == 0
        assert await pipeline.take(version=steps) == []
        return taken

    async def bounded() -> list[list[Trajectory]]:
        async with asyncio.timeout(PATIENCE_S):
            return await run()

    return asyncio.run(bounded())


def heavy_tailed(seed: int) -> Callable[[Attempt], int]:
    rng = random.Random(seed)
    drawn: dict[str, int] = {}

    def length(attempt: Attempt) -> int:
        return drawn.setdefault(attempt.episode_id, int(rng.paretovariate(1.1)) + 1)

    return length


@given(
    seed=st.integers(0, 1000),
    steps=st.integers(1, 12),
    batch=st.integers(1, 6),
    max_staleness=st.integers(1, 5),
    concurrency=st.integers(1, 40),
)
def test_every_sampled_episode_is_trained_on_once_and_none_later_than_it_may(
    seed: int, steps: int, batch: int, max_staleness: int, concurrency: int
) -> None:
    taken = train(
        heavy_tailed(seed), steps=steps, batch=batch, max_staleness=max_staleness, concurrency=concurrency
    )
    assert [len(step) for step in taken] == [2 * batch] * steps
    everyone = Counter(f"t{i}#{a}" for i in range(steps * batch) for a in range(2))
    assert Counter(t.id for step in taken for t in step) == everyone
    for version, step in enumerate(taken):
        found = staleness(step, version=version)
        assert found is not None and 0 <= found.largest <= max_staleness
        # Groups are whole: their advantages compare attempts with each other.
        assert all(a.group_id == b.group_id for a, b in zip(step[::2], step[1::2], strict=True))


def test_long_episodes_reach_training_as_often_as_they_are_sampled_and_a_cut_off_would_lose_them() -> None:
    """Latency grows with length. Halfway through a run as many long episodes have been trained on as were
    sampled so far; taking the first to finish and dropping the rest is far below that."""
    lengths = heavy_tailed(3)
    steps, batch = 60, 8
    taken = train(lengths, steps=steps, batch=batch, max_staleness=4)
    sampled = [lengths(attempt) for group in groups(steps * batch) for attempt in group]
    trained = [length_of(t) for step in taken for t in step]
    assert sorted(trained) == sorted(sampled)
    first = [length_of(t) for step in taken[:30] for t in step]
    begun = sampled[: len(first)]
    assert sum(map(_is_long, first)) == pytest.approx(sum(map(_is_long, begun)), abs=4)
    # The biased way, for comparison: of each 12 groups that are begun, the 8 that finish first.
    kept: list[int] = []
    for start in range(0, 2 * steps * batch - 24, 24):
        pairs = [sampled[i : i + 2] for i in range(start, start + 24, 2)]
        kept += [n for pair in sorted(pairs, key=max)[:8] for n in pair]
    share = sum(map(_is_long, sampled)) / len(sampled)
    assert sum(map(_is_long, kept)) / len(kept) < 0.5 * share


def _is_long(length: int) -> bool:
    return length > 8


def test_a_straggler_does_not_hold_the_batch_and_comes_into_a_later_one() -> None:
    def length(attempt: Attempt) -> int:
        return 10_000 if attempt.episode_id == "t0#1" else 3

    taken = train(length, steps=6, batch=2, max_staleness=4)
    steps_of = [number for number, step in enumerate(taken) if any(t.group_id == "t0" for t in step)]
    assert steps_of == [4]  # as late as it may, and no later


def test_episodes_run_while_the_policy_is_trained() -> None:
    world = World(lambda attempt: 5)

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            pipeline = Pipeline(groups(9), play=world.play, batch=2, max_staleness=2, concurrency=99)
            await world.until(pipeline.take(version=0))
            assert pipeline.in_flight == 2
            assert len(world.begun) == 8  # two groups more than the batch
            await pipeline.close()
            assert pipeline.in_flight == 0

    asyncio.run(run())


def test_what_an_episode_raises_ends_the_run() -> None:
    async def play(attempt: Attempt) -> Trajectory:
        if attempt.episode_id == "t1#0":
            raise RuntimeError("the device fell off")
        await asyncio.Event().wait()
        raise AssertionError

    async def run() -> None:
        async with asyncio.timeout(PATIENCE_S):
            pipeline = Pipeline(groups(4), play=play, batch=2, max_staleness=1, concurrency=9)
            try:
                await pipeline.take(version=0)
            finally:
                await pipeline.close()

    with pytest.raises(RuntimeError, match="fell off"):
        asyncio.run(run())


def test_staleness_is_counted_by_token() -> None:
    spans = (PolicySpan(version=3, start=0, end=3), PolicySpan(version=5, start=3, end=4))
    completion = Completion(text="", token_ids=(1, 2, 3, 4), policy_versions=spans)
    trajectory = Trajectory(
        id="a",
        task_id="a",
        group_id="a",
        turns=(Turn(index=0, completion=completion),),
        stop_reason=StopReason.ANSWERED,
    )
    assert staleness([trajectory], version=5) == Staleness(mean=(3 * 2 + 0) / 4, largest=2)
    assert staleness([], version=5) is None
