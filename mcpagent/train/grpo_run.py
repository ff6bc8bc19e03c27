"""What a GRPO run is made of: its actor, its settings, its state."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.evaluate.compare import MAX_UNSCORED
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.budget import Budget, Meter, Spent
from mcpagent.train.callbacks import Callback, StepReport
from mcpagent.train.health import PPOHealthCallback
from mcpagent.train.learner import Learner
from mcpagent.train.order import TaskOrder
from mcpagent.train.processes import Processes
from mcpagent.train.rewards import GradeSettings
from mcpagent.train.update_settings import UpdateSettings


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
    grading: GradeSettings
    update: UpdateSettings
    target_kl: float | None = None  # with a value, kl_coef adapts to it
    budget: Budget = field(default_factory=Budget)


@dataclass
class GrpoState:
    """What a resumed run must know besides weights, moments and random state."""

    step: int = 0
    optimizer_steps: int = 0
    penalty_active: bool = False
    kl_coef: float = 0.0
    best_success: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    is_ill: bool = False  # a limit of health ends the run at this step
    good_step: int | None = None  # the last checkpoint whose weights were seen healthy, in the step after it
    ledger_bytes: int = 0  # of the servers' call ledger, where one is kept
    spent: Spent = field(default_factory=Spent)

    @classmethod
    def from_json(cls, saved: JsonObject) -> GrpoState:
        """What `as_json` gave."""
        return cls(**{**saved, "spent": Spent(**saved["spent"])})

    def as_json(self) -> JsonObject:
        return {**vars(self), "spent": dict(vars(self.spent))}

    def agree(self, saved: JsonObject) -> None:
        """Become what `as_json` gave in another process; `spent` stays the object that it is."""
        vars(self.spent).update(saved["spent"])
        vars(self).update({**saved, "spent": self.spent})


@dataclass(kw_only=True)
class GrpoRun:
    """A run in progress: its parts, and how far it is."""

    learner: Learner
    actor: Actor
    tasks: Sequence[Task]
    validation: Sequence[Task]
    order: TaskOrder
    folder: RunFolder
    settings: GrpoSettings
    state: GrpoState
    health: PPOHealthCallback | None = None
    callbacks: Sequence[Callback] = ()
    on_step: Callable[[StepReport], None] = lambda _: None
    note: Callable[[str], None] = lambda _: None

    def __post_init__(self) -> None:
        self.meter = Meter(self.settings.budget, self.state.spent)

    @property
    def watchers(self) -> Sequence[Callback]:
        return self.callbacks if self.health is None else (self.health, *self.callbacks)

    @property
    def processes(self) -> Processes:
        return self.learner.processes
