"""The order in which tasks are trained on, with every kind of them in its share."""

from __future__ import annotations

import random
from array import array
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from itertools import islice

from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task


class TaskOrder:
    """`batch(step)` for steps 1, 2, ...: every task once an epoch, in an order that depends on the seed, the
    epoch, the batch size and the `kinds` of the tasks alone (again from the first on if they are fewer).
    Every stretch of it has each kind in its share. Nothing to save: a resumed run asks for the step it is
    at."""

    def __init__(self, n_tasks: int, *, batch_size: int, seed: int, kinds: Iterable[str] = ()) -> None:
        numbers: dict[str, int] = {}
        self._kinds = array("L", (numbers.setdefault(kind, len(numbers)) for kind in kinds)) or array(
            "L", [0]
        )
        self._n = n_tasks
        self._batch = min(batch_size, n_tasks)
        self._seed = seed
        self._epochs: list[array[int]] = []

    def batch(self, step: int) -> list[int]:
        """Indices of the distinct tasks of a step."""
        first = (step - 1) * self._batch
        places = (divmod(position, self._n) for position in range(first, first + self._batch))
        return [self._epoch(epoch)[place] for epoch, place in places]

    def fresh(self, step: int, *, round_: int, count: int, taken: Collection[int]) -> list[int]:
        """Draw up to `count` further tasks for a step that has `taken` some: drawn anew for each step and
        round, so that nothing is to be saved here either."""
        order = self._in_proportion(random.Random(derive_seed(self._seed, "fresh", step, round_)))
        return list(islice((i for i in order if i not in taken), count))

    def _epoch(self, number: int) -> array[int]:
        while len(self._epochs) <= number:
            self._epochs.append(self._shuffled(len(self._epochs)))
        return self._epochs[number]

    def _shuffled(self, epoch: int) -> array[int]:
        order = self._in_proportion(random.Random(derive_seed(self._seed, "order", epoch)))
        begun = epoch * self._n % self._batch
        if not begun:
            return order
        # The first batch has `begun` tasks from the epoch before: those come later in this one.
        taken = set(self._epochs[epoch - 1][-begun:])
        head = list(islice((i for i in order if i not in taken), self._batch - begun))
        in_head = set(head)
        return array("Q", (*head, *(i for i in order if i not in in_head)))

    def _in_proportion(self, rng: random.Random) -> array[int]:
        """Return all tasks, shuffled, those of each kind at equal distances from a random first one on."""
        order = array("Q", range(self._n))  # a fifth of a list's memory
        rng.shuffle(order)
        kinds = array("L", (self._kinds[i % len(self._kinds)] for i in order))
        counts, before = Counter(kinds), Counter[int]()
        starts = {kind: rng.random() for kind in sorted(counts)}
        places = array("d")
        for kind in kinds:
            places.append((before[kind] + starts[kind]) / counts[kind])
            before[kind] += 1
        return array("Q", (order[place] for place in sorted(range(self._n), key=places.__getitem__)))


def order_of(tasks: Sequence[Task], *, batch_size: int, seed: int) -> TaskOrder:
    """Return the order of tasks in which each kind of them has its share."""
    return TaskOrder(len(tasks), batch_size=batch_size, seed=seed, kinds=map(kind_of, tasks))


def kind_of(task: Task) -> str:
    """Return what is kept in proportion: the class of a task, with its servers."""
    return f"{task.kind} of {task.servers_called}"


def in_proportion(tasks: Sequence[Task], count: int | None, *, seed: int) -> Sequence[Task]:
    """Return `count` of the tasks (None: all), every kind in its share, in the order that they have."""
    if count is None or count >= len(tasks):
        return tasks
    return [tasks[place] for place in sorted(order_of(tasks, batch_size=count, seed=seed).batch(1))]
