"""Which tasks a step trains on: a seeded shuffle of each epoch, as a pure function of the step."""

from __future__ import annotations

import random
from functools import lru_cache

from mcpagent.core.seeds import derive_seed


class TaskOrder:
    """`batch(step)` for steps 1, 2, ...: every task once an epoch, in an order that depends on the seed and
    the epoch alone. Nothing to save: a resumed run asks for the step it is at."""

    def __init__(self, n_tasks: int, *, batch_size: int, seed: int) -> None:
        self._n = n_tasks
        self._batch = min(batch_size, n_tasks)
        self._seed = seed
        self._epoch = lru_cache(maxsize=2)(self._shuffled)

    def batch(self, step: int) -> list[int]:
        """Indices of the distinct tasks of a step."""
        first = (step - 1) * self._batch
        chosen: list[int] = []
        position = first
        while len(chosen) < self._batch:
            epoch, place = divmod(position, self._n)
            index = self._epoch(epoch)[place]
            # A batch that crosses an epoch may meet a task again; the next one takes its place.
            if index not in chosen:
                chosen.append(index)
            position += 1
        return chosen

    def _shuffled(self, epoch: int) -> list[int]:
        order = list(range(self._n))
        random.Random(derive_seed(self._seed, "order", epoch)).shuffle(order)
        return order
