"""The GRPO loop: collect, grade, update, record; read it top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, Protocol

from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.rollout.collector import group_trajectories
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.learner import Learner
from mcpagent.train.memory import resident_mib
from mcpagent.train.order import TaskOrder
from mcpagent.train.rewards import apply_penalty, grade_groups
from mcpagent.train.samples import sample_from_trajectory
from mcpagent.train.update import UpdateSettings, update_policy


class Actor(Protocol):
    """Where episodes come from."""

    @property
    def ledger_bytes(self) -> int:
        """Size of the servers' call ledger, where one is kept."""
        ...

    def collect(self, tasks: Sequence[Task], *, step: int) -> list[Trajectory]:
        """`group_size` attempts at each task with the current weights."""
        ...

    def tool_metrics(self) -> JsonObject:
        """What happened to tool calls since this was last asked, besides what the trajectories say."""
        ...

    def sync(self) -> JsonObject:
        """The weights have changed. Returns what it measured, for the step's record."""
        ...

    def evaluate(self, tasks: Sequence[Task], *, step: int) -> float | None:
        """Share of `tasks` that the current weights solve greedily; recorded with the run."""
        ...


@dataclass(frozen=True, kw_only=True)
class GrpoSettings:
    """What the loop itself needs to know. `eval_every` 0 never evaluates."""

    total_steps: int
    save_every: int
    eval_every: int
    seed: int
    normalize_advantages: bool
    penalty_after_success: float
    update: UpdateSettings
    target_kl: float | None = None  # with a value, kl_coef adapts to it
    control: str = "none"
    max_cpu_s: float | None = None  # of all steps together; past it the run ends with a checkpoint


@dataclass
class GrpoState:
    """What a resumed run must know besides weights, moments and random state."""

    step: int = 0
    optimizer_steps: int = 0
    penalty_active: bool = False
    kl_coef: float = 0.0
    best_success: float | None = None
    best_step: int | None = None
    ledger_bytes: int = 0  # of the servers' call ledger, where one is kept
    cpu_s: float = 0.0  # of the steps so far


def train_grpo(
    learner: Learner,
    actor: Actor,
    *,
    tasks: Sequence[Task],
    validation: Sequence[Task],
    order: TaskOrder,
    run: RunFolder,
    settings: GrpoSettings,
    state: GrpoState,
    on_step: Callable[[JsonObject], None],
) -> GrpoState:
    """Train from `state.step` to `settings.total_steps`, or until the CPU budget is spent. Leaves a
    checkpoint at the last step."""
    while state.step < settings.total_steps and not _is_spent(state, settings):
        step = state.step + 1
        started = time.process_time()
        trajectories = actor.collect([tasks[i] for i in order.batch(step)], step=step)
        collected = time.process_time()
        state.penalty_active |= _success_rate(trajectories) >= settings.penalty_after_success
        trajectories = apply_penalty(trajectories, active=state.penalty_active)
        graded = grade_groups(
            group_trajectories(trajectories),
            normalize=settings.normalize_advantages,
            control=settings.control,
            seed=settings.seed + step,
        )
        stats = update_policy(
            learner,
            [sample_from_trajectory(t) for t in graded.trajectories],
            graded.advantages,
            settings=_with_kl(settings.update, state),
            first_optimizer_step=state.optimizer_steps + 1,
            seed=settings.seed + step,
        )
        synced = actor.sync()
        state.step, state.ledger_bytes = step, actor.ledger_bytes
        state.optimizer_steps += stats.optimizer_steps
        summary = stats.summary()
        _adapt_kl(state, settings, summary.get("kl"))
        updated = time.process_time()
        write_trajectories(run.trajectory_stem(step), trajectories)
        record: JsonObject = {
            "step": step,
            **_episode_metrics(trajectories),
            **summary,
            **synced,
            "uniform_groups": graded.uniform_groups,
            "trained_samples": len(graded.trajectories),
            "penalty_active": state.penalty_active,
            "kl_coef": state.kl_coef,
            "rollout_cpu_s": collected - started,
            "update_cpu_s": updated - collected,
        }
        if settings.eval_every and step % settings.eval_every == 0 and validation:
            success = actor.evaluate(validation, step=step)
            record["validation_success"] = success
            if success is not None and (state.best_success is None or success > state.best_success):
                state.best_success, state.best_step = success, step
        record |= actor.tool_metrics()
        record["cpu_s"] = time.process_time() - started
        state.cpu_s += record["cpu_s"]
        record["rss_mb"] = resident_mib(trimmed=True)
        run.append_metrics({k: v for k, v in record.items() if v is not None})
        # The checkpoint comes last: a run that stops before it resumes at the checkpoint before this one,
        # and `truncate_after` drops what this step had already recorded.
        is_last = step == settings.total_steps or _is_spent(state, settings)
        if step % settings.save_every == 0 or is_last or state.best_step == step:
            learner.save(run.checkpoint_dir(step), state=vars(state))
        on_step(record)
    return state


def _is_spent(state: GrpoState, settings: GrpoSettings) -> bool:
    return settings.max_cpu_s is not None and state.cpu_s >= settings.max_cpu_s


def _with_kl(update: UpdateSettings, state: GrpoState) -> UpdateSettings:
    return replace(update, kl_coef=state.kl_coef)


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
