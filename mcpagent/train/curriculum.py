"""The calibrated order of tasks, drawn by how likely a group is to differ (`training.curriculum`)."""

from __future__ import annotations

import random
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory

Outcome = tuple[int, int]  # of a group: attempts that succeeded, and attempts that were scored

POOL = 8  # tasks that are looked at for each one that is drawn
EXPLORED = 8  # one of so many is drawn blindly, whatever its estimate says
HALF_LIFE_STEPS = 20.0  # after which an outcome counts half: the policy has learnt since
PRIOR_ATTEMPTS = 2.0  # what the rate of its class is worth in the estimate of a task, in attempts
MAX_TASKS = 4096  # whose outcomes are kept, the latest: the state is bounded whatever the dataset
MAX_CLASSES = 256
_FLOOR = 0.05  # pseudo-attempts: no class is so easy or so hard that nothing else is possible
_SHARE_DECAY = 0.8  # of the running share of useful groups, a step


def is_useful(outcome: Outcome) -> bool:
    """Not all right and not all wrong: the group sets its attempts apart."""
    return 0 < outcome[0] < outcome[1]


def group_outcomes(trajectories: Iterable[Trajectory]) -> dict[str, Outcome]:
    """By group, in order of appearance; unscored attempts are left out."""
    outcomes: dict[str, Outcome] = {}
    for trajectory in trajectories:
        right, scored = outcomes.get(trajectory.group_id, (0, 0))
        is_success = trajectory.is_success
        outcomes[trajectory.group_id] = (right + bool(is_success), scored + (is_success is not None))
    return outcomes


def useful_share(outcomes: Mapping[str, Outcome]) -> float | None:
    """The share of groups that are useful; None without groups."""
    return sum(map(is_useful, outcomes.values())) / len(outcomes) if outcomes else None


@dataclass
class SolveRate:
    """Successes and failures, both decayed: each step halves them by 1/`HALF_LIFE_STEPS`."""

    right: float = 0.0
    wrong: float = 0.0
    step: int = 0  # up to which they are decayed

    def at(self, step: int) -> tuple[float, float]:
        """Successes and failures as they count at `step`."""
        weight = 0.5 ** ((step - self.step) / HALF_LIFE_STEPS)
        return self.right * weight, self.wrong * weight

    def add(self, outcome: Outcome, *, step: int) -> None:
        """Count a group of `step`."""
        right, wrong = self.at(step)
        self.right, self.wrong = right + outcome[0], wrong + outcome[1] - outcome[0]
        self.step = step


def probability_useful(right: float, wrong: float, *, group_size: int) -> float:
    """That a group is neither all right nor all wrong, under Beta(right, wrong) of the solve rate: 1 less the
    group_size-th moments of the rate and of its complement."""
    all_right = all_wrong = 1.0
    for k in range(group_size):
        all_right *= (right + k) / (right + wrong + k)
        all_wrong *= (wrong + k) / (right + wrong + k)
    return 1.0 - all_right - all_wrong


@dataclass
class CalibratedOrder:
    """`batch(step)` for the step after the last that was observed. The same seed, tasks and outcomes give the
    same batches; `as_json` is all that a resumed run must know (`restore`).

    A step looks at `POOL` random tasks for each one that it takes. It takes them as they come, so that the
    whole dataset is seen, as long as the expected share of useful groups is at least `bound`; below that, the
    least useful ones give way to the most useful of the others, but for one in `EXPLORED`. Estimates are Beta
    posteriors: of a task around the rate of its class, of a class around nothing. A task that was never
    tried counts as its class, one of a class that was never tried as likely to be useful; outcomes fade, so
    that what was too hard or too easy is tried again.
    """

    tasks: Sequence[Task]
    batch_size: int
    seed: int
    group_size: int
    bound: float
    _by_task: dict[str, SolveRate] = field(default_factory=dict)  # the longest unseen first
    _by_class: dict[str, SolveRate] = field(default_factory=dict)
    _share: float | None = None  # running share of useful groups
    _classes: dict[str, str] = field(default_factory=dict)  # of the tasks of this step

    def batch(self, step: int) -> list[int]:
        """Indices of the distinct tasks of a step."""
        self._classes = {}
        rng = random.Random(derive_seed(self.seed, "curriculum", step))
        return self._draw(rng, step, count=self.batch_size, taken=(), bound=self._target)

    def fresh(self, step: int, *, round_: int, count: int, taken: Collection[int]) -> list[int]:
        """Up to `count` further tasks for a step that has `taken` some, the most useful of a pool."""
        rng = random.Random(derive_seed(self.seed, "curriculum", step, round_))
        return self._draw(rng, step, count=count, taken=taken, bound=1.0)

    def observe(self, step: int, outcomes: Mapping[str, Outcome]) -> JsonObject:
        """Learn what became of the groups of a step, by task id; the state after it."""
        for task_id, outcome in outcomes.items():
            for rates, key in ((self._by_task, task_id), (self._by_class, self._classes.get(task_id))):
                if key is None or not outcome[1]:
                    continue
                rate = rates.pop(key, SolveRate(step=step))
                rate.add(outcome, step=step)
                rates[key] = rate
        for rates, most in ((self._by_task, MAX_TASKS), (self._by_class, MAX_CLASSES)):
            for key in list(rates)[: max(0, len(rates) - most)]:
                del rates[key]
        share = useful_share(outcomes)
        if share is not None:
            before = share if self._share is None else self._share
            self._share = _SHARE_DECAY * before + (1 - _SHARE_DECAY) * share
        return self.as_json()

    def as_json(self) -> JsonObject:
        """The estimates, as a checkpoint keeps them."""
        return {
            "tasks": {key: [rate.right, rate.wrong, rate.step] for key, rate in self._by_task.items()},
            "classes": {key: [rate.right, rate.wrong, rate.step] for key, rate in self._by_class.items()},
            "useful_share": self._share,
        }

    def restore(self, saved: JsonObject) -> None:
        """Go on from what `as_json` gave."""
        self._by_task = {key: SolveRate(*values) for key, values in saved["tasks"].items()}
        self._by_class = {key: SolveRate(*values) for key, values in saved["classes"].items()}
        self._share = saved["useful_share"]

    @property
    def _target(self) -> float:
        """The bound, and by as much more as the groups so far have missed it: estimates may flatter."""
        missing = 0.0 if self._share is None else max(0.0, self.bound - self._share)
        return min(1.0, self.bound + missing)

    def _draw(
        self, rng: random.Random, step: int, *, count: int, taken: Collection[int], bound: float
    ) -> list[int]:
        n = len(self.tasks)
        pool = [i for i in rng.sample(range(n), min(n, POOL * count + len(taken))) if i not in taken]
        batch, others = pool[:count], pool[count:]
        useful = {i: self._usefulness(i, step) for i in pool}
        # The blind ones are the last drawn: they stay, and the others make up for them.
        free = len(batch) - max(1, len(batch) // EXPLORED) if bound < 1.0 else len(batch)
        others.sort(key=lambda i: -useful[i])
        for best in others:
            worst = min(range(free), key=lambda place: useful[batch[place]], default=None)
            is_enough = sum(useful[i] for i in batch) >= bound * len(batch)
            if worst is None or is_enough or useful[best] <= useful[batch[worst]]:
                break
            batch[worst] = best
        return batch

    def _usefulness(self, index: int, step: int) -> float:
        task = self.tasks[index]
        kind = self._classes.setdefault(task.id, _class_of(task))
        right, wrong = self._by_class.get(kind, SolveRate()).at(step)
        rate = (right + 1.0) / (right + wrong + 2.0)
        own_right, own_wrong = self._by_task.get(task.id, SolveRate()).at(step)
        # An unseen class is as likely anything: Beta(1, 1), which two attempts at a rate of a half are.
        return probability_useful(
            max(_FLOOR, PRIOR_ATTEMPTS * rate) + own_right,
            max(_FLOOR, PRIOR_ATTEMPTS * (1.0 - rate)) + own_wrong,
            group_size=self.group_size,
        )


def _class_of(task: Task) -> str:
    """Tasks of one template, or of one kind, with as many calls to make, are of a likely difficulty."""
    kind = task.extra_info.get("template") or task.extra_info.get("class") or task.data_source
    return f"{kind}/{len(task.truth.tool_sequence)}/{len(task.truth.user_turns)}"
