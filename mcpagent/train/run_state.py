"""What a GRPO run is made of: its actor, its settings, its state, the order of its tasks."""

from __future__ import annotations

import random
from array import array
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.compare import MAX_UNSCORED
from mcpagent.reward.rule import PENALTY_WEIGHT
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.budget import Meter, RunBudget, Spent
from mcpagent.train.health import Callback, HealthMonitor, StepReport
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes
from mcpagent.train.objective.advantages import GradeSettings
from mcpagent.train.update import UpdateSettings

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
        in_head = set(head)
        return array("Q", (*head, *(i for i in order if i not in in_head)))


@dataclass(frozen=True, kw_only=True)
class Validation:
    """One evaluation while training. `success` counts unscored episodes as failed: what the best checkpoint
    is chosen by, since episodes that drop out cannot raise it. `scored_success` is that of the others alone,
    None where there are none."""

    success: float
    scored_success: float | None
    episodes: int
    unscored: int

    @property
    def is_doubtful(self) -> bool:
        """So many episodes are unscored that a lower success says little about the weights."""
        return self.unscored > MAX_UNSCORED * self.episodes


class Actor(Protocol):
    """Where episodes come from."""

    @property
    def ledger_bytes(self) -> int:
        """Size of the servers' call ledger, where one is kept."""
        ...

    def collect(
        self, tasks: Sequence[Task], *, step: int, round_: int = 0, on_episode: Callable[[Trajectory], None]
    ) -> list[Trajectory]:
        """`group_size` attempts at each task with the current weights; `round_` 1, 2, ... are further tasks
        of the same step. What `on_episode` raises ends the other episodes and is raised here."""
        ...

    def roll_back(self, ledger_bytes: int) -> None:
        """Forget what the servers counted since their ledger had that size: the step was cut."""
        ...

    def tool_metrics(self) -> JsonObject:
        """What a step's record says of the tool calls, besides what its trajectories say."""
        ...

    def rest(self) -> None:
        """All episodes of the step are there, and its update begins: none is asked for until `sync`."""
        ...

    def sync(self) -> JsonObject:
        """The weights have changed. Returns what it measured, for the step's record."""
        ...

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> Validation:
        """How the current weights do on `tasks`, greedily; recorded with the run."""
        ...


@dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """What the loop itself needs to know. `eval_every` 0 never evaluates; `patience` is how many evaluations
    without a better one end the run; `resample_rounds` how often uniform groups are replaced in a step."""

    total_steps: int
    save_every: int
    keep_checkpoints: int | None = None  # None keeps all
    eval_every: int
    patience: int | None = None
    resample_rounds: int = 0
    seed: int
    penalty_after_success: float
    penalty_weight: float = PENALTY_WEIGHT
    grading: GradeSettings
    update: UpdateSettings
    target_kl: float | None = None  # with a value, kl_coef adapts to it
    budget: RunBudget = field(default_factory=RunBudget)


@dataclass
class GrpoState:
    """What a resumed run must know besides weights, moments and random state."""

    step: int = 0
    optimizer_steps: int = 0
    penalty_active: bool = False
    kl_coef: float = 0.0  # the only one: it begins as grpo.kl_coef, and adaptive KL changes it
    best_success: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    is_ill: bool = False  # a limit of health ends the run at this step
    good_step: int | None = None  # the last checkpoint whose weights were seen healthy, in the step after it
    ledger_bytes: int = 0  # of the servers' call ledger, where one is kept
    spent: Spent = field(default_factory=Spent)
    curriculum: JsonObject | None = None  # the estimates of a `CalibratedOrder`; None: another order

    def adapt_kl(self, target: float, measured: float | None) -> None:
        """Proportional control of the KL coefficient towards `target` nats a token (Ziegler et al. 2019,
        arXiv 1909.08593, section 2.2). `measured` None, where nothing was trained, changes nothing."""
        if measured is not None:
            error = max(-0.2, min(0.2, measured / target - 1.0))
            self.kl_coef *= 1.0 + 0.1 * error

    @classmethod
    def from_json(cls, saved: JsonObject) -> GrpoState:
        """What `as_json` gave."""
        return cls(**{**saved, "spent": Spent(**saved["spent"])})

    def as_json(self) -> JsonObject:
        """The state as a checkpoint keeps it; `from_json` reads it."""
        return {**vars(self), "spent": dict(vars(self.spent))}

    def agree(self, saved: JsonObject) -> None:
        """Become what `as_json` gave in another process; `spent` stays the object that it is."""
        vars(self.spent).update(saved["spent"])
        vars(self).update({**saved, "spent": self.spent})


@dataclass(frozen=True, kw_only=True)
class TrainingTasks:
    """What a run is trained and, from time to time, evaluated on, and the order in which it trains."""

    train: Sequence[Task]
    validation: Sequence[Task]
    order: TaskOrder | CalibratedOrder


@dataclass(frozen=True, kw_only=True)
class Observers:
    """Who is told of a run: `health` and `callbacks` may end it, `on_step` gets each step once it is kept,
    `note` sentences for a person."""

    health: HealthMonitor | None = None
    callbacks: Sequence[Callback] = ()
    on_step: Callable[[StepReport], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None

    @property
    def all_callbacks(self) -> Sequence[Callback]:
        """The callbacks, that of health first."""
        return self.callbacks if self.health is None else (self.health, *self.callbacks)


@dataclass(kw_only=True)
class GrpoRun:
    """A run in progress: its parts, and how far it is."""

    learner: Learner
    actor: Actor
    tasks: TrainingTasks
    folder: RunFolder
    settings: GrpoSettings
    state: GrpoState
    observers: Observers = field(default_factory=Observers)

    def __post_init__(self) -> None:
        self.meter = Meter(self.settings.budget, self.state.spent)

    @property
    def processes(self) -> Processes:
        """Those of the learner, of which this is one."""
        return self.learner.processes
