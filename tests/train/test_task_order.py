"""The order of tasks is a function of the seed and the step, and has each kind in its share."""

from __future__ import annotations

import random
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.tasks import Task
from mcpagent.train.task_order import TaskOrder, in_proportion
from tests.env.world import make_task


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


@given(
    st.lists(st.integers(1, 30), min_size=2, max_size=6), st.integers(2, 12), st.integers(0, 5), st.booleans()
)
def test_every_step_has_each_kind_in_its_share(
    sizes: list[int], batch: int, seed: int, are_sorted: bool
) -> None:
    kinds = [str(kind) for kind, size in enumerate(sizes) for _ in range(size)]
    if not are_sorted:
        random.Random(seed).shuffle(kinds)
    batch = min(batch, len(kinds))
    order = TaskOrder(len(kinds), batch_size=batch, seed=seed, kinds=kinds)
    for step in range(1, len(kinds) // batch + 1):  # of the first epoch
        drawn = Counter(kinds[i] for i in order.batch(step))
        fresh = Counter(kinds[i] for i in order.fresh(step, round_=0, count=batch, taken=()))
        for kind, size in enumerate(sizes):
            share = size * batch / len(kinds)
            # Tasks of a kind are equally far apart: a stretch holds one more or less for each other kind that
            # crowds it, and seldom so many.
            assert abs(drawn[str(kind)] - share) < 3 and abs(fresh[str(kind)] - share) < 3


def test_kinds_are_nearer_to_their_share_than_by_chance() -> None:
    kinds = ["rare"] * 40 + ["common"] * 360
    order = TaskOrder(400, batch_size=20, seed=1, kinds=kinds)
    rare = [sum(kinds[i] == "rare" for i in order.batch(step)) for step in range(1, 21)]
    # Two in every batch of twenty; by chance one batch in nine has none (0.9 ** 20 = 0.12).
    assert sum(rare) == 40 and min(rare) >= 1 and max(rare) <= 3
    plain = TaskOrder(400, batch_size=20, seed=1)
    assert min(sum(kinds[i] == "rare" for i in plain.batch(step)) for step in range(1, 21)) == 0


def test_kinds_are_repeated_for_demonstrations_that_are_rewritten_anew_each_time() -> None:
    twice = TaskOrder(20, batch_size=4, seed=0, kinds=["a", "b"] * 5)
    assert twice.batch(3) == TaskOrder(20, batch_size=4, seed=0, kinds=["a", "b"] * 10).batch(3)


def test_a_part_of_a_dataset_has_every_class_and_server_in_its_share() -> None:
    # Datasets of three servers, one after the other, as `cat` joins them.
    def of(server: str, kind: str, n: int) -> list[Task]:
        plan = [{"step": 1, "server": server, "tool": "t", "params": {}}]
        tasks = (make_task(task_id=f"{server}-{kind}-{i}", tool_sequence=plan) for i in range(n))
        return [task.model_copy(update={"extra_info": {"class": kind}}) for task in tasks]

    joined = [*of("a", "single", 60), *of("a", "pairs", 20), *of("b", "single", 30), *of("c", "none", 10)]
    part = in_proportion(joined, 24, seed=3)
    drawn = Counter(task.id.rpartition("-")[0] for task in part)
    assert len(part) == 24 and part == [task for task in joined if task in part]
    for name, share in {"a-single": 12, "a-pairs": 4, "b-single": 6, "c-none": 2}.items():
        assert abs(drawn[name] - share) <= 1, drawn
    assert in_proportion(joined, 500, seed=3) == joined
