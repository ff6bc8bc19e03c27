"""The GRPO loop: collect, grade, update, record; read it top to bottom."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from statistics import fmean
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.core.trajectory import Trajectory
from mcpagent.interrupts import Abandoned, stopping, uninterrupted
from mcpagent.reward.terms import NOT_RUN
from mcpagent.rollout.collector import group_trajectories
from mcpagent.storage.checkpoints import rotate
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.actor import Validation
from mcpagent.train.budget import BudgetReached, resident_mib
from mcpagent.train.health import StepReport, episode_measures
from mcpagent.train.objective.advantages import GradedBatch
from mcpagent.train.objective.grading import apply_penalty, grade_groups
from mcpagent.train.run_state import GrpoRun
from mcpagent.train.update import update_policy


def success_rate(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of successes among the scored ones; 0 if none is scored."""
    scored = [t.is_success for t in trajectories if t.is_success is not None]
    return fmean(scored) if scored else 0.0


def success_rate_of_all(trajectories: Sequence[Trajectory]) -> float:
    """Return the share of successes, unscored episodes counted as failed: what decisions are made by."""
    return fmean(t.is_success is True for t in trajectories) if trajectories else 0.0


def episode_metrics(trajectories: Sequence[Trajectory]) -> dict[str, Any]:
    """Return what the episodes of a step say; means are over scored episodes, but for `success_rate_all`."""
    scored = [t for t in trajectories if t.reward is not None]
    metrics: dict[str, Any] = {
        "episodes": len(trajectories),
        "unscored": len(trajectories) - len(scored),
        "tokens": sum(len(t.completion.token_ids) for x in trajectories for t in x.turns),
        "tool_calls": sum(len(x.tool_results) for x in trajectories),
        "searches": sum(len(x.searches) for x in trajectories),
        "success_rate_all": success_rate_of_all(trajectories),
    }
    if not scored:
        return metrics
    metrics["reward_mean"] = fmean(t.reward or 0.0 for t in scored)
    metrics["success_rate"] = success_rate(scored)
    metrics["turns_mean"] = fmean(len(t.turns) for t in scored)
    metrics["penalty_mean"] = fmean(t.term("penalty") or 0.0 for t in scored)
    metrics["invalid_rate"] = fmean(t.term("invalid_rate") or 0.0 for t in scored)
    for complexity in sorted({t.complexity for t in scored}):
        metrics[f"success_{complexity}"] = success_rate([t for t in scored if t.complexity == complexity])
    return metrics


def train_grpo(run: GrpoRun) -> str:
    """Train from `state.step` to `settings.total_steps`, or until something ends the run before; returns
    what.

    Leaves a checkpoint at the last step, also on Ctrl-C, which is raised again. Only what is whole is kept: a
    step that is cut while its episodes run leaves no trace, and one that updates is finished first. Several
    processes go through this together: each plays its share of the episodes, and the first decides.
    """
    state, total, processes = run.state, run.settings.total_steps, run.processes
    step, begun_bytes = state.step, 0

    def note() -> None:
        run.observers.note(f"finishing step {step} of {total} before it stops; Ctrl-C again drops the step")

    save_if_missing(run)  # the weights from which the run begins are good ones to come back to
    try:
        with processes.holding_interrupts(note) as asked:
            if step == 0 and total >= run.settings.eval_every and (start := _evaluated(run)) is not None:
                run.observers.note(f"before the first step: validation success {start.success:.0%}")
            while (reason := processes.broadcast_from_rank0(lambda: _why_ended(run))) is None:
                step, begun_bytes = state.step + 1, run.actor.ledger_bytes
                episodes = _collect(run, step, asked)
                with uninterrupted(note) if processes.count == 1 else nullcontext():
                    graded = _grade(run, step, episodes.trajectories)
                    measured = _update(run, step, graded)
                    _record(run, episodes, graded, measured)
    except BudgetReached as reached:
        reason = str(reached)
        processes.broadcast_from_rank0(lambda: run.actor.roll_back(begun_bytes))
    except Abandoned:
        raise
    except KeyboardInterrupt:
        stopping()
        save_if_missing(run)
        raise
    save_if_missing(run)
    return reason


def save_if_missing(run: GrpoRun) -> None:
    """A checkpoint of the current step, and the rotation of older ones; no process goes on before both."""
    folder = run.folder.checkpoint_dir(run.state.step)
    if run.processes.broadcast_from_rank0(lambda: not folder.exists()):
        run.meter.read()
        run.learner.save(folder, state=run.state.as_json())
    spare = {step for step in (run.state.best_step, run.state.good_step) if step is not None}
    run.processes.broadcast_from_rank0(
        lambda: rotate(run.folder, keep=run.settings.keep_checkpoints, spare=spare)
    )


def _why_ended(run: GrpoRun) -> str | None:
    state, settings = run.state, run.settings
    if state.step >= settings.total_steps:
        return "completed"
    if settings.patience is not None and state.evaluations_since_best >= settings.patience:
        return f"no better evaluation in {state.evaluations_since_best} (training.patience)"
    for callback in run.observers.all_callbacks:
        if (reason := callback.should_stop()) is not None:
            return reason
    return run.meter.reached()


@dataclass(frozen=True, kw_only=True)
class _Episodes:
    """The episodes that a step learns from, with penalties in force or not."""

    trajectories: list[Trajectory]
    penalty_active: bool
    resampled: int
    started_cpu_s: float
    ended_cpu_s: float


def _collect(run: GrpoRun, step: int, asked: Callable[[], bool]) -> _Episodes:
    """A step's episodes; with `resample_rounds`, groups that carry no signal give way to others. `asked` says
    whether the run is to be interrupted."""
    started, settings = time.process_time(), run.settings
    taken = fresh = run.order.batch(step)
    kept: list[Trajectory] = []
    resampled, penalty_active = 0, run.state.penalty_active
    for round_ in range(settings.resample_rounds + 1):
        episodes = _episodes(run, fresh, step, round_, asked)
        if round_ == 0:  # later rounds are what is left after a choice by reward
            penalty_active |= success_rate_of_all(episodes) >= settings.penalty_after_success
        episodes = apply_penalty(episodes, active=penalty_active, weight=settings.penalty_weight)
        is_last = round_ == settings.resample_rounds
        uniform_group_ids = set[str]() if is_last else _grade(run, step, episodes).uniform_group_ids
        fresh = run.order.fresh(step, round_=round_ + 1, count=len(uniform_group_ids), taken=taken)
        if not fresh:
            kept += episodes
            break
        kept += [t for t in episodes if t.group_id not in uniform_group_ids]
        resampled += len(uniform_group_ids)
        taken = [*taken, *fresh]
    return _Episodes(
        trajectories=kept,
        penalty_active=penalty_active,
        resampled=resampled,
        started_cpu_s=started,
        ended_cpu_s=time.process_time(),
    )


def _episodes(
    run: GrpoRun, places: Sequence[int], step: int, round_: int, asked: Callable[[], bool]
) -> list[Trajectory]:
    """Return the episodes of all processes at the tasks of `places`, of which each process plays its share.
    What cuts one process short cuts all."""
    processes, spent = run.processes, run.state.spent
    calls = spent.tool_calls

    def on_episode(trajectory: Trajectory) -> None:
        run.meter.add(trajectory)
        if asked():
            raise BudgetReached

    played, reached = [], None
    try:
        tasks = [run.tasks[i] for i in processes.share(places)]
        played = run.actor.collect(tasks, step=step, round_=round_, on_episode=on_episode)
    except BudgetReached as reason:
        reached = str(reason) or None
    processes.meet()
    ended = processes.gather([(played, reached, asked())])
    (made,) = processes.sum([spent.tool_calls - calls])
    spent.tool_calls = calls + round(made)
    if any(is_asked for _, _, is_asked in ended):
        raise KeyboardInterrupt
    reasons = [reason for _, reason, _ in ended if reason is not None]
    if reasons:
        raise BudgetReached(reasons[0])
    return [trajectory for part, _, _ in ended for trajectory in part]


def _grade(run: GrpoRun, step: int, trajectories: Sequence[Trajectory]) -> GradedBatch:
    settings = run.settings
    return grade_groups(
        group_trajectories(trajectories), settings=settings.grading, seed=settings.seed + step
    )


def _update(run: GrpoRun, step: int, graded: GradedBatch) -> JsonObject:
    """Optimise on the step's groups and hand the weights to the policy: the step is taken. Returns what both
    measured, for its record."""
    state, settings = run.state, run.settings
    run.actor.rest()
    stats = update_policy(
        run.learner,
        graded,
        settings=settings.update,
        kl_coef=state.kl_coef,
        first_optimizer_step=state.optimizer_steps + 1,
        seed=settings.seed + step,
    )
    run.learner.end_step(step)
    # Read while no process calls a tool.
    ledger_bytes = run.processes.broadcast_from_rank0(lambda: run.actor.ledger_bytes)
    synced = run.actor.sync()
    state.step, state.ledger_bytes = step, ledger_bytes
    state.optimizer_steps += stats.optimizer_steps
    summary = stats.summary()
    if settings.target_kl is not None:
        state.adapt_kl(settings.target_kl, summary.get("kl"))
    return {**summary, **synced}


def _record(run: GrpoRun, episodes: _Episodes, graded: GradedBatch, measured: JsonObject) -> None:
    """The rest of a step: its evaluation, its record and, if it is due, its checkpoint."""
    updated_cpu_s = time.process_time()
    state, trajectories = run.state, episodes.trajectories
    state.penalty_active = episodes.penalty_active
    groups, uniform = len({t.group_id for t in trajectories}), len(graded.uniform_group_ids)
    record: JsonObject = {
        "step": state.step,
        **episode_metrics(trajectories),
        **measured,
        "uniform_groups": uniform,
        "uniform_share": uniform / groups if groups else None,
        "resampled_groups": episodes.resampled,
        "trained_samples": len(graded.samples),
        "penalty_active": state.penalty_active,
        "kl_coef": state.kl_coef,
        "rollout_cpu_s": episodes.ended_cpu_s - episodes.started_cpu_s,
        "update_cpu_s": updated_cpu_s - episodes.ended_cpu_s,
    }
    if (validation := _evaluated(run)) is not None:
        record["validation_success"] = validation.scored_success
        record["validation_success_all"] = validation.success
        record["validation_unscored"] = validation.unscored
    report = None
    if run.processes.is_first:
        report = _report(run, record, trajectories, started_cpu_s=episodes.started_cpu_s)
    state.agree(run.processes.broadcast_from_rank0(state.as_json))
    # The checkpoint comes last: a run that stops before it resumes at the checkpoint before this one, and
    # `truncate_after` drops what this step had already recorded.
    is_due = state.step % run.settings.save_every == 0 or state.best_step == state.step
    if run.processes.broadcast_from_rank0(lambda: is_due or _why_ended(run) is not None):
        save_if_missing(run)
    if report is not None:
        run.observers.on_step(report)


def _report(
    run: GrpoRun, record: JsonObject, trajectories: list[Trajectory], *, started_cpu_s: float
) -> StepReport:
    """Show a step to all that watch over the run, and keep it."""
    state, step, health = run.state, run.state.step, run.observers.health
    write_trajectories(run.folder.trajectory_stem(step), trajectories)
    record |= run.actor.tool_metrics() | episode_measures(trajectories)
    _note_broken_terms(run, trajectories)
    report = StepReport(step=step, metrics=record, trajectories=trajectories)
    for callback in run.observers.all_callbacks:
        callback.on_step(report)
    # The episodes were sampled with the weights of the step before: if they are well, so are those weights.
    if (health is None or health.is_well) and run.folder.checkpoint_dir(step - 1).exists():
        state.good_step = step - 1
    state.is_ill = health is not None and health.should_stop() is not None
    run.meter.read()
    record["cpu_s"] = time.process_time() - started_cpu_s
    record["rss_mb"] = resident_mib(trimmed=True)
    for name in [name for name, value in record.items() if value is None]:
        del record[name]
    run.folder.append_metrics(record)
    return report


def _note_broken_terms(run: GrpoRun, trajectories: Sequence[Trajectory]) -> None:
    broken = [error for t in trajectories for error in t.errors if error.startswith(NOT_RUN)]
    if broken:
        run.observers.note(
            f"step {run.state.step}: a reward term did not run {len(broken)} times in {len(trajectories)} "
            f"episodes, which are unscored if it has a weight; the first: {broken[0]}"
        )


def _evaluated(run: GrpoRun) -> Validation | None:
    """The evaluation of the current weights, if one is due, compared with the best so far: what a run begins
    with stays the best checkpoint if no step does as well."""
    state, every = run.state, run.settings.eval_every
    is_compared = state.best_step is not None and state.step == run.settings.total_steps  # the last one too
    if not every or not run.validation or (state.step % every and not is_compared):
        return None
    result = run.actor.evaluate(run.validation, step=state.step)
    least = -1.0 if state.best_success is None else state.best_success
    is_better = result.success >= least if state.best_step == 0 else result.success > least
    if result.unscored < result.episodes and is_better:
        state.best_success, state.best_step, state.evaluations_since_best = result.success, state.step, 0
    elif result.is_doubtful:
        run.observers.note(
            f"step {state.step}: {result.unscored} of {result.episodes} validation episodes are unscored, "
            "so this evaluation does not count towards training.patience"
        )
    else:
        state.evaluations_since_best += 1
    return result
