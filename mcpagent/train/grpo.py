"""The GRPO loop: collect, grade, update, record; read it top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from statistics import fmean
from typing import Any, Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.rollout.collector import group_trajectories
from mcpagent.storage.checkpoints import rotate
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.budget import Budget, BudgetReached, Meter, Spent
from mcpagent.train.callbacks import Abandoned, Callback, StepReport, uninterrupted
from mcpagent.train.health import PPOHealthCallback
from mcpagent.train.learner import Learner
from mcpagent.train.memory import resident_mib
from mcpagent.train.order import TaskOrder
from mcpagent.train.processes import Processes
from mcpagent.train.rewards import GradeSettings, apply_penalty, grade_groups
from mcpagent.train.update import update_policy
from mcpagent.train.update_settings import UpdateSettings


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

    def tool_metrics(self) -> JsonObject:
        """What a step's record says of the tool calls, besides what its trajectories say."""
        ...

    def sync(self) -> JsonObject:
        """The weights have changed. Returns what it measured, for the step's record."""
        ...

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> float | None:
        """Share of `tasks` that the current weights solve greedily; recorded with the run."""
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


def train_grpo(run: GrpoRun) -> str:
    """Train from `state.step` to `settings.total_steps`, or until something ends the run before; returns
    what.

    Leaves a checkpoint at the last step, also on Ctrl-C, which is raised again. Only what is whole is kept: a
    step that is cut while its episodes run leaves no trace, and one that updates is finished first. Several
    processes go through this together: each plays its share of the episodes, and the first decides.
    """
    state, total, processes = run.state, run.settings.total_steps, run.processes
    step = state.step

    def note() -> None:
        run.note(f"finishing step {step} of {total} before it stops; Ctrl-C again drops the step")

    save_if_missing(run)  # the weights from which the run begins are good ones to come back to
    try:
        with processes.holding_interrupts(note) as asked:
            while (reason := processes.from_first(lambda: _why_ended(run))) is None:
                step = state.step + 1
                trajectories = _collect(run, step, asked)
                with uninterrupted(note) if processes.count == 1 else nullcontext():
                    _learn(run, step, trajectories)
    except BudgetReached as reached:
        reason = str(reached)
    except Abandoned:
        raise
    except KeyboardInterrupt:
        save_if_missing(run)
        raise
    save_if_missing(run)
    return reason


def save_if_missing(run: GrpoRun) -> None:
    """A checkpoint of the current step, and the rotation of older ones; no process goes on before both."""
    run.processes.from_first(lambda: _save_if_missing(run))


def _save_if_missing(run: GrpoRun) -> None:
    folder = run.folder.checkpoint_dir(run.state.step)
    if not folder.exists():
        run.meter.read()
        run.learner.save(folder, state=run.state.as_json())
    spare = {step for step in (run.state.best_step, run.state.good_step) if step is not None}
    rotate(run.folder, keep=run.settings.keep_checkpoints, spare=spare)


def _why_ended(run: GrpoRun) -> str | None:
    state, settings = run.state, run.settings
    if state.step >= settings.total_steps:
        return "completed"
    if settings.patience is not None and state.evaluations_since_best >= settings.patience:
        return f"no better evaluation in {state.evaluations_since_best} (training.patience)"
    for watcher in run.watchers:
        if (reason := watcher.should_stop()) is not None:
            return reason
    return run.meter.reached()


@dataclass(frozen=True, kw_only=True)
class _Collected:
    trajectories: list[Trajectory]
    resampled: int
    started_cpu_s: float
    ended_cpu_s: float


def _collect(run: GrpoRun, step: int, asked: Callable[[], bool]) -> _Collected:
    """A step's episodes; with `resample_rounds`, groups whose attempts are all alike give way to others.
    `asked` says whether the run is to be interrupted."""
    started = time.process_time()
    chosen = run.order.batch(step)
    kept: list[Trajectory] = []
    wanted, fresh, resampled = len(chosen), chosen, 0
    for round_ in range(run.settings.resample_rounds + 1):
        found = _episodes(run, fresh, step, round_, asked)
        groups = group_trajectories(apply_penalty(found, active=run.state.penalty_active))
        is_last = round_ == run.settings.resample_rounds
        telling = [group for group in groups if not group.is_uniform]
        missing = wanted - len(telling)
        fresh = [] if is_last else run.order.fresh(step, round_=round_ + 1, count=missing, taken=chosen)
        if not fresh:
            kept += found
            break
        kept += [t for group in telling for t in group.trajectories]
        resampled += len(groups) - len(telling)
        wanted, chosen = missing, [*chosen, *fresh]
    return _Collected(
        trajectories=kept,
        resampled=resampled,
        started_cpu_s=started,
        ended_cpu_s=time.process_time(),
    )


def _episodes(
    run: GrpoRun, chosen: Sequence[int], step: int, round_: int, asked: Callable[[], bool]
) -> list[Trajectory]:
    """Those of all processes, of which each plays its share. What cuts one of them short cuts all."""
    processes, spent = run.processes, run.state.spent
    calls, cost = spent.tool_calls, spent.cost_usd

    def on_episode(trajectory: Trajectory) -> None:
        run.meter.add(trajectory)
        if asked():
            raise BudgetReached

    own, reached = [], None
    try:
        tasks = [run.tasks[i] for i in processes.share(chosen)]
        own = run.actor.collect(tasks, step=step, round_=round_, on_episode=on_episode)
    except BudgetReached as reason:
        reached = str(reason) or None
    ended = processes.gather([(own, reached, asked())])
    total = processes.sum([spent.tool_calls - calls, spent.cost_usd - cost])
    spent.tool_calls, spent.cost_usd = calls + round(total[0]), cost + total[1]
    if any(is_asked for _, _, is_asked in ended):
        raise KeyboardInterrupt
    reasons = [reason for _, reason, _ in ended if reason is not None]
    if reasons:
        raise BudgetReached(reasons[0])
    return [trajectory for part, _, _ in ended for trajectory in part]


def _learn(run: GrpoRun, step: int, collected: _Collected) -> None:
    """The rest of a step: from its episodes to its record and, where it is due, its checkpoint."""
    state, settings = run.state, run.settings
    trajectories = collected.trajectories
    state.penalty_active |= _success_rate(trajectories) >= settings.penalty_after_success
    trajectories = apply_penalty(trajectories, active=state.penalty_active)
    graded = grade_groups(
        group_trajectories(trajectories),
        settings=settings.grading,
        seed=settings.seed + step,
    )
    stats = update_policy(
        run.learner,
        graded,
        settings=_with_kl(settings.update, state),
        first_optimizer_step=state.optimizer_steps + 1,
        seed=settings.seed + step,
    )
    run.learner.end_step(step)
    # Read while no process calls a tool.
    ledger_bytes = run.processes.from_first(lambda: run.actor.ledger_bytes)
    synced = run.actor.sync()
    before = state.step
    state.step, state.ledger_bytes = step, ledger_bytes
    state.optimizer_steps += stats.optimizer_steps
    summary = stats.summary()
    _adapt_kl(state, settings, summary.get("kl"))
    updated = time.process_time()
    groups = len({t.group_id for t in trajectories})
    record: JsonObject = {
        "step": step,
        **_episode_metrics(trajectories),
        **summary,
        **synced,
        "uniform_groups": graded.uniform_groups,
        "uniform_share": graded.uniform_groups / groups if groups else None,
        "resampled_groups": collected.resampled,
        "trained_samples": len(graded.samples),
        "penalty_active": state.penalty_active,
        "kl_coef": state.kl_coef,
        "rollout_cpu_s": collected.ended_cpu_s - collected.started_cpu_s,
        "update_cpu_s": updated - collected.ended_cpu_s,
    }
    _evaluate(run, record)
    report = None
    if run.processes.is_first:
        report = _record(run, record, trajectories, before=before, started_cpu_s=collected.started_cpu_s)
    state.agree(run.processes.from_first(state.as_json))
    # The checkpoint comes last: a run that stops before it resumes at the checkpoint before this one, and
    # `truncate_after` drops what this step had already recorded.
    is_due = step % settings.save_every == 0 or state.best_step == step
    if run.processes.from_first(lambda: is_due or _why_ended(run) is not None):
        save_if_missing(run)
    if report is not None:
        run.on_step(report)


def _record(
    run: GrpoRun, record: JsonObject, trajectories: list[Trajectory], *, before: int, started_cpu_s: float
) -> StepReport:
    """Show a step to all that watch over the run, and keep it. `before` is the step before it."""
    state, step = run.state, run.state.step
    write_trajectories(run.folder.trajectory_stem(step), trajectories)
    record |= run.actor.tool_metrics()
    report = StepReport(step=step, metrics=record, trajectories=trajectories)
    for watcher in run.watchers:
        watcher.on_step(report)
    if (run.health is None or run.health.is_well) and run.folder.checkpoint_dir(before).exists():
        state.good_step = before
    state.spent.steps += 1
    run.meter.read()
    record["cpu_s"] = time.process_time() - started_cpu_s
    record["rss_mb"] = resident_mib(trimmed=True)
    for name in [name for name, value in record.items() if value is None]:
        del record[name]
    run.folder.append_metrics(record)
    return report


def _evaluate(run: GrpoRun, record: JsonObject) -> None:
    state, every = run.state, run.settings.eval_every
    if not every or state.step % every or not run.validation:
        return
    success = run.actor.evaluate(run.validation, step=state.step)
    record["validation_success"] = success
    if success is not None and (state.best_success is None or success > state.best_success):
        state.best_success, state.best_step, state.evaluations_since_best = success, state.step, 0
    else:
        state.evaluations_since_best += 1


def _with_kl(update: UpdateSettings, state: GrpoState) -> UpdateSettings:
    return replace(update, objective=replace(update.objective, kl_coef=state.kl_coef))


def _adapt_kl(state: GrpoState, settings: GrpoSettings, kl: float | None) -> None:
    """Proportional control of the KL coefficient (Ziegler et al. 2019, arXiv 1909.08593, section 2.2)."""
    if settings.target_kl is not None and kl is not None:
        error = max(-0.2, min(0.2, kl / settings.target_kl - 1.0))
        state.kl_coef *= 1.0 + 0.1 * error


def _success_rate(trajectories: Sequence[Trajectory]) -> float:
    scored = [t.is_success for t in trajectories if t.is_success is not None]
    return fmean(scored) if scored else 0.0


def _episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """What the episodes of a step say; means are over scored episodes."""
    scored = [t for t in trajectories if t.reward is not None]
    metrics: dict[str, Any] = {
        "episodes": len(trajectories),
        "unscored": len(trajectories) - len(scored),
        "tokens": sum(len(t.completion.token_ids) for x in trajectories for t in x.turns),
        "tool_calls": sum(len(x.tool_results) for x in trajectories),
    }
    if not scored:
        return metrics
    metrics["reward_mean"] = fmean(t.reward or 0.0 for t in scored)
    metrics["success_rate"] = _success_rate(scored)
    metrics["turns_mean"] = fmean(len(t.turns) for t in scored)
    metrics["penalty_mean"] = fmean(t.term("penalty") or 0.0 for t in scored)
    metrics["invalid_rate"] = fmean(t.term("invalid_rate") or 0.0 for t in scored)
    for complexity in sorted({t.complexity for t in scored}):
        own = [t for t in scored if t.complexity == complexity]
        metrics[f"success_{complexity}"] = _success_rate(own)
    return metrics
