"""The calibrated order: against uniform drawing on learners whose solve rates are known."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.train.run_state import (
    MAX_CLASSES,
    MAX_TASKS,
    CalibratedOrder,
    Outcome,
    TaskOrder,
    is_useful,
    probability_useful,
    useful_share,
)

GROUP, BATCH = 8, 16


def make_tasks(count: int, *, classes: int = 10) -> list[Task]:
    return [
        Task.model_validate(
            {
                "prompt": [{"role": "user", "content": "?"}],
                "reward_spec": {"ground_truth": {"task_id": f"t{i}"}},
                "extra_info": {"template": f"kind-{i % classes}"},
            }
        )
        for i in range(count)
    ]


def calibrated(tasks: Sequence[Task], **settings: Any) -> CalibratedOrder:
    defaults = {"batch_size": BATCH, "seed": 0, "group_size": GROUP, "bound": 0.6}
    return CalibratedOrder(tasks, **{**defaults, **settings})


class Learner:
    """Solves a task with 1 / (1 + exp(difficulty - skill)). Difficulties lie around those of the classes,
    `spread` wide; each useful group adds to the skill."""

    def __init__(self, tasks: Sequence[Task], *, spread: float, learns: float, seed: int) -> None:
        rng = random.Random(seed)
        middles = [rng.uniform(-spread, spread) for _ in range(10)]
        self._difficulty = {task.id: rng.gauss(middles[i % 10], 1.0) for i, task in enumerate(tasks)}
        self._rng, self._learns, self.skill = rng, learns, 0.0

    def rate(self, task: Task) -> float:
        return 1 / (1 + math.exp(self._difficulty[task.id] - self.skill))

    def attempt(self, batch: Sequence[Task]) -> dict[str, Outcome]:
        outcomes = {
            task.id: (sum(self._rng.random() < self.rate(task) for _ in range(GROUP)), GROUP)
            for task in batch
        }
        self.skill += self._learns * sum(map(is_useful, outcomes.values()))
        return outcomes


def shares(order: CalibratedOrder | TaskOrder, tasks: Sequence[Task], learner: Learner) -> list[float]:
    """The share of useful groups of each of 60 steps."""
    played: list[float] = []
    for step in range(1, 61):
        outcomes = learner.attempt([tasks[i] for i in order.batch(step)])
        played.append(useful_share(outcomes) or 0.0)
        if isinstance(order, CalibratedOrder):
            order.observe(step, outcomes)
    return played


@pytest.mark.parametrize("seed", [1, 2, 3])
@pytest.mark.parametrize(("count", "learns"), [(300, 0.0), (300, 0.002), (20_000, 0.0), (20_000, 0.002)])
def test_the_share_of_useful_groups_stays_above_the_bound_where_uniform_drawing_falls_below(
    seed: int, count: int, learns: float
) -> None:
    tasks = make_tasks(count)
    uniform, drawn = (
        shares(order, tasks, Learner(tasks, spread=8.0, learns=learns, seed=seed))
        for order in (TaskOrder(count, batch_size=BATCH, seed=seed), calibrated(tasks, seed=seed))
    )
    # The first ten steps find out what the classes are.
    before, after = fmean(uniform[10:]), fmean(drawn[10:])
    print(f"{count} tasks, learns {learns}, seed {seed}: uniform {before:.2f}, calibrated {after:.2f}")
    assert before < 0.4
    assert after > before + 0.25
    assert after >= 0.6


@pytest.mark.parametrize(
    ("right", "wrong", "group", "useful"),
    [
        # The k-th moment of Beta(1, 1) is 1 / (k + 1), of the rate as of its complement.
        (1.0, 1.0, 8, 1 - 2 / 9),
        # Beta(2, 1): E[p^2] = 2/3 * 3/4 = 1/2, E[(1-p)^2] = 1/3 * 2/4 = 1/6.
        (2.0, 1.0, 2, 1 - 1 / 2 - 1 / 6),
        (1e9, 1e9, 3, 1 - 2 / 8),  # a coin
        (1e-9, 100.0, 8, 0.0),
    ],
)
def test_the_probability_of_a_useful_group_is_that_of_its_beta(
    right: float, wrong: float, group: int, useful: float
) -> None:
    assert probability_useful(right, wrong, group_size=group) == pytest.approx(useful, abs=1e-6)


def test_a_restored_order_goes_on_as_the_unbroken_one() -> None:
    tasks = make_tasks(200)
    whole, learner = calibrated(tasks), Learner(tasks, spread=4.0, learns=0.01, seed=1)
    for step in range(1, 41):
        batch = whole.batch(step)
        assert batch == whole.batch(step)
        fresh = whole.fresh(step, round_=1, count=3, taken=batch)
        assert not set(fresh) & set(batch) and len(set(fresh)) == 3
        saved = whole.observe(step, learner.attempt([tasks[i] for i in [*batch, *fresh]]))
        if step % 7:
            continue
        resumed = calibrated(tasks)
        resumed.restore(json.loads(json.dumps(saved)))
        assert resumed.batch(step + 1) == whole.batch(step + 1)
        assert resumed.fresh(step + 1, round_=1, count=5, taken=[0]) == whole.fresh(
            step + 1, round_=1, count=5, taken=[0]
        )
        assert calibrated(tasks, seed=1).batch(step + 1) != whole.batch(step + 1)


@given(st.integers(1, 40), st.integers(1, 12), st.integers(1, 9))
def test_a_batch_holds_as_many_distinct_tasks_as_there_are(n: int, batch: int, step: int) -> None:
    order = calibrated(make_tasks(n), batch_size=min(batch, n))
    chosen = order.batch(step)
    assert len(set(chosen)) == len(chosen) == min(batch, n) and set(chosen) <= set(range(n))
    rest = order.fresh(step, round_=1, count=n, taken=chosen)
    assert sorted([*chosen, *rest]) == list(range(n))


class Endless(Sequence[Task]):
    """A hundred thousand tasks, each of a class of its own, made when they are read."""

    def __init__(self) -> None:
        self.read = 0

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, index: Any) -> Any:
        self.read += 1
        truth = {"task_id": f"t{index}"}
        record = {"prompt": [{"role": "user", "content": "?"}], "reward_spec": {"ground_truth": truth}}
        return Task.model_validate({**record, "extra_info": {"template": f"kind-{index}"}})


def test_the_state_stays_bounded_on_a_dataset_that_is_not_read_whole() -> None:
    tasks = Endless()
    order = calibrated(tasks, batch_size=4)
    saved: JsonObject = {}
    for step in range(1, 31):
        read = tasks.read
        order.batch(step)
        assert tasks.read - read <= 8 * 4
        # As much as a hundred steps see.
        saved = order.observe(step, {f"t{step * 1000 + i}": (1, 2) for i in range(400)})
    assert len(saved["tasks"]) == MAX_TASKS and len(saved["classes"]) <= MAX_CLASSES
    # The latest are those that are kept.
    assert f"t{30 * 1000 + 399}" in saved["tasks"] and "t1000" not in saved["tasks"]


def test_tasks_that_all_fail_are_all_tried_and_what_was_too_hard_is_tried_again() -> None:
    tasks = make_tasks(80, classes=2)
    order, tried = calibrated(tasks), set[int]()
    for step in range(1, 81):
        batch = order.batch(step)
        tried |= set(batch)
        # Half of them can be learnt from; the others are hopeless until step 60.
        order.observe(step, {f"t{i}": (4 if i % 2 == 0 or step > 60 else 0, 8) for i in batch})
        if step == 60:
            assert sum(i % 2 == 0 for i in batch) >= 10
    assert tried == set(range(80))
    assert sum(i % 2 for i in order.batch(81)) >= 4


def test_attempts_that_were_not_scored_say_nothing() -> None:
    tasks = make_tasks(40)
    told, silent = calibrated(tasks), calibrated(tasks)
    told.observe(1, {f"t{i}": (0, 0) for i in told.batch(1)})
    assert told.as_json()["tasks"] == {} == told.as_json()["classes"]
    assert told.batch(2) == silent.batch(2)
