"""What a GRPO run is made of: its settings, its state, who is told of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from mcpagent.config.sections import BudgetConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.reward.rule import PENALTY_WEIGHT
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.actor import LocalActor
from mcpagent.train.budget import Meter, Spent
from mcpagent.train.health import Callback, HealthMonitor, StepReport
from mcpagent.train.learner.learner import Learner
from mcpagent.train.learner.processes import Processes
from mcpagent.train.objective.grading import GradeSettings
from mcpagent.train.task_order import TaskOrder
from mcpagent.train.update import UpdateSettings


@dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """The settings that the loop itself needs. `eval_every` 0 never evaluates; `patience` is how many
    evaluations without a better one end the run; `resample_rounds` how often uniform groups are replaced in a
    step."""

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
    budget: BudgetConfig = field(default_factory=BudgetConfig)


@dataclass
class GrpoState:
    """The state that a resumed run needs besides weights, moments and random state."""

    step: int = 0
    optimizer_steps: int = 0
    penalty_active: bool = False
    kl_coef: float = 0.0  # the only one: it begins as grpo.kl_coef, and adaptive KL changes it
    best_success: float | None = None
    best_step: int | None = None
    evaluations_since_best: int = 0
    is_ill: bool = False  # a limit of health ends the run at this step
    good_step: int | None = None  # the last checkpoint whose weights were seen healthy, in the step after it
    ledger_bytes: int = 0  # of the servers' call ledger, if one is kept
    spent: Spent = field(default_factory=Spent)

    def adapt_kl(self, target: float, measured: float | None) -> None:
        """Proportional control of the KL coefficient towards `target` nats a token (Ziegler et al. 2019,
        arXiv 1909.08593, section 2.2). `measured` None, if nothing was trained, changes nothing."""
        if measured is not None:
            error = max(-0.2, min(0.2, measured / target - 1.0))
            self.kl_coef *= 1.0 + 0.1 * error

    @classmethod
    def from_json(cls, saved: JsonObject) -> GrpoState:
        """Return the state that `as_json` gave. Fields that only former versions had are left out."""
        fields = {name: value for name, value in saved.items() if name in cls.__dataclass_fields__}
        return cls(**{**fields, "spent": Spent.from_json(saved["spent"])})

    def as_json(self) -> JsonObject:
        """Return the state as a checkpoint keeps it; `from_json` reads it."""
        return {**vars(self), "spent": dict(vars(self.spent))}

    def agree(self, saved: JsonObject) -> None:
        """Become what `as_json` gave in another process; `spent` stays the object that it is."""
        vars(self.spent).update(saved["spent"])
        vars(self).update({**saved, "spent": self.spent})


@dataclass(frozen=True, kw_only=True)
class Observers:
    """The observers of a run: `health` and `callbacks` may end it, `on_step` gets each step once it is kept,
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
    """A run in progress: its parts, and how far it is. It is trained on `tasks` in their `order` and, from
    time to time, evaluated on those of `validation`."""

    learner: Learner
    actor: LocalActor
    tasks: Sequence[Task]
    order: TaskOrder
    validation: Sequence[Task]
    folder: RunFolder
    settings: GrpoSettings
    state: GrpoState
    observers: Observers = field(default_factory=Observers)

    def __post_init__(self) -> None:
        self.meter = Meter(self.settings.budget, self.state.spent)

    @property
    def processes(self) -> Processes:
        """Return the processes of the learner, of which this is one."""
        return self.learner.processes
