"""The order of tasks is a function of the seed and the step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from mcpagent.train.run_state import TaskOrder


@given(st.integers(1, 40), st.integers(1, 12), st.integers(0, 5))
def test_every_epoch_covers_each_task_once_also_where_a_batch_crosses_into_the_next(
    n: int, batch: int, seed: int
) -> None:
    order = TaskOrder(n, batch_size=batch, seed=seed)
    steps = -(-4 * n // min(batch, n))
    seen = [i for step in range(1, steps + 1) for i in order.batch(step)]
    for epoch in range(4):
        assert sorted(seen[epoch * n : (epoch + 1) * n]) == list(range(n))


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 30))
def test_a_batch_holds_distinct_tasks_and_depends_on_nothing_else(n: int, batch: int, step: int) -> None:
    chosen = TaskOrder(n, batch_size=batch, seed=3).batch(step)
    assert len(set(chosen)) == len(chosen) == min(batch, n)
    walked = TaskOrder(n, batch_size=batch, seed=3)
    for earlier in range(1, step):
        walked.batch(earlier)
    assert walked.batch(step) == chosen


def test_another_seed_gives_another_order() -> None:
    assert TaskOrder(50, batch_size=10, seed=0).batch(1) != TaskOrder(50, batch_size=10, seed=1).batch(1)


def test_another_epoch_has_another_order() -> None:
    order = TaskOrder(20, batch_size=10, seed=0)
    assert [*order.batch(1), *order.batch(2)] != [*order.batch(3), *order.batch(4)]
