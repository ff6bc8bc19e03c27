"""Which tasks a step trains on: a seeded shuffle of each epoch, as a pure function of the step."""

from __future__ import annotations

import random
from array import array
from collections.abc import Collection
from itertools import islice

from mcpagent.core.seeds import derive_seed


class TaskOrder:
    """`batch(step)` for steps 1, 2, ...: every task once an epoch, in an order that depends on the seed, the
    epoch and the batch size alone. Nothing to save: a resumed run asks for the step it is at."""

    def __init__(self, n_tasks: int, *, batch_size: int, seed: int) -> None:
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
        """Up to `count` further tasks for a step that has `taken` some: drawn anew for each step and round,
        so that nothing is to be saved here either."""
        rng = random.Random(derive_seed(self._seed, "fresh", step, round_))
        left = [i for i in range(self._n) if i not in taken]
        return rng.sample(left, min(count, len(left)))

    def _epoch(self, number: int) -> array[int]:
        while len(self._epochs) <= number:
            self._epochs.append(self._shuffled(len(self._epochs)))
        return self._epochs[number]

    def _shuffled(self, epoch: int) -> array[int]:
        order = array("Q", range(self._n))  # a fifth of a list's memory
        random.Random(derive_seed(self._seed, "order", epoch)).shuffle(order)
        begun = epoch * self._n % self._batch
        if not begun:
            return order
        # The first batch has `begun` tasks from the epoch before: those come later in this one.
        taken = set(self._epochs[epoch - 1][-begun:])
        head = list(islice((i for i in order if i not in taken), self._batch - begun))
        chosen = set(head)
        return array("Q", (*head, *(i for i in order if i not in chosen)))
