"""A GRPO run: its parts made from the configuration, then the loop."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from mcpagent.config.schema import TrainConfig
from mcpagent.core.tasks import Task
from mcpagent.policy.canary import CANARY_ROWS
from mcpagent.rollout.setup import Tools, agent_settings
from mcpagent.run.lifecycle import (
    RunPlace,
    TrainOutcome,
    Watch,
    health_callback,
    note_padding,
    open_run,
    outcome_of,
    tracked,
)
from mcpagent.run.self_evaluation import MeasuredTasks, SelfEvaluation
from mcpagent.storage.datasets import TaskFile
from mcpagent.storage.run_folder import RunFolder
from mcpagent.train.actor import (
    ActorRecords,
    ActorSettings,
    DriftCallback,
    LocalActor,
    PipelinedActor,
    refuse_pipeline,
    roll_back,
    scheduled,
    trained_groups,
)
from mcpagent.train.budget import RunBudget, ToolTotals
from mcpagent.train.build import (
    Loaded,
    build_canary,
    build_learner,
    grade_settings,
    is_deterministic,
    load,
    open_sampler,
    update_settings,
)
from mcpagent.train.grpo import train_grpo
from mcpagent.train.health import Callback, StepReport
from mcpagent.train.learner.learner import Learner
from mcpagent.train.run_state import (
    Actor,
    GrpoRun,
    GrpoSettings,
    GrpoState,
    Observers,
    TaskOrder,
    TrainingTasks,
)


@dataclass(frozen=True, kw_only=True)
class _Parts:
    """What the actor is made of."""

    config: TrainConfig
    loaded: Loaded
    learner: Learner
    run: RunFolder
    state: GrpoState
    tasks: TaskFile
    order: TaskOrder
    tools: Tools
    place: RunPlace
    watch: Watch


def run_grpo(
    config: TrainConfig,
    tasks: TaskFile,
    validation: Sequence[Task],
    measured: MeasuredTasks | None,
    tools: Tools,
    place: RunPlace,
    watch: Watch,
    callbacks: Sequence[Callback],
) -> TrainOutcome:
    """Each process plays its share of the episodes, and all make the same update."""
    loaded, processes = load(config), place.processes
    if config.rollout.max_staleness > 0:
        refuse_pipeline(config, loaded.device, processes)
    total = config.total_steps(n_tasks=len(tasks))
    updates = total * config.grpo.epochs_per_batch * config.grpo.minibatches
    learner = build_learner(loaded, config, total_optimizer_steps=updates, processes=processes)
    note_padding(learner, watch)
    run, saved = open_run(config, place, learner.restore, total_steps=total)
    state = (
        GrpoState.from_json(saved)
        if saved
        else GrpoState(kl_coef=config.grpo.kl_coef, ledger_bytes=place.ledger_start)
    )
    if place.ledger is not None and processes.is_first:
        # The calls of steps that are rolled back are counted again when those steps are.
        roll_back(place.ledger, state.ledger_bytes)
    order = TaskOrder(len(tasks), batch_size=config.prompts_per_step, seed=config.seed)
    parts = _Parts(
        config=config,
        loaded=loaded,
        learner=learner,
        run=run,
        state=state,
        tasks=tasks,
        order=order,
        tools=tools,
        place=place,
        watch=watch,
    )
    health = health_callback(config, run, watch)
    judged = None
    if measured is not None:
        judged = SelfEvaluation(config, measured, run=run, tools=tools, processes=processes, note=watch.note)
    with (
        _open_actor(parts, total=total) as (actor, local),
        tracked(config, run, state.step, watch, processes) as trackers,
    ):
        if judged is not None:
            judged.before(local, step=state.step)
        watch.on_start(state.step, total)

        def on_step(report: StepReport) -> None:
            trackers.log(report.step, report.metrics, report.trajectories)
            watch.on_step(report.metrics)

        reason = train_grpo(
            GrpoRun(
                learner=learner,
                actor=actor,
                tasks=TrainingTasks(train=tasks, validation=validation, order=order),
                folder=run,
                settings=_grpo_settings(config, total=total),
                state=state,
                observers=Observers(
                    health=health,
                    callbacks=(DriftCallback(loaded.renderer), *callbacks),
                    on_step=on_step,
                    note=watch.note,
                ),
            )
        )
        is_ill = health is not None and health.should_stop() is not None
        best = state.best_step if state.best_step is not None else state.good_step if is_ill else None
        if judged is not None:
            judged.after(local, learner, step=state.step, best_step=best)
    return outcome_of(run, state.step, best_step=best, stop_reason=reason)


@contextmanager
def _open_actor(parts: _Parts, *, total: int) -> Iterator[tuple[Actor, LocalActor]]:
    """What plays the episodes with the learner's weights, proved to have them; with `rollout.max_staleness`,
    while the learner works. The second one plays when it is told to, always."""
    config, loaded, learner, tools = parts.config, parts.loaded, parts.learner, parts.tools
    prompts = -(-config.prompts_per_step // parts.place.processes.count)
    concurrency = min(config.rollout.num_envs, max(prompts * config.rollout.group_size, 1))
    is_pipelined = config.rollout.max_staleness > 0
    canary = build_canary(loaded, config, learner=learner, tasks=parts.tasks, catalog=tools.pool.tools)
    totals = ToolTotals(parts.run.metrics())
    with open_sampler(
        loaded,
        config,
        model=learner.model,
        # Beside episodes that go on, evaluations and the canary need room of their own.
        slots=2 * concurrency + CANARY_ROWS if is_pipelined else max(concurrency, CANARY_ROWS),
        weights=parts.run.path / "weights" / parts.place.processes.folder_name,
        on_note=parts.watch.note,
    ) as sampler:
        actor = LocalActor(
            sampler,
            canary=canary,
            renderer=loaded.renderer,
            tools=tools,
            settings=ActorSettings(
                agent=agent_settings(config, max_context=loaded.max_context),
                group_size=config.rollout.group_size,
                concurrency=concurrency,
                deterministic=is_deterministic(config, loaded.device),
                seed=config.seed,
            ),
            records=ActorRecords(
                run=parts.run,
                processes=parts.place.processes,
                ledger=parts.place.ledger,
                tool_metrics=lambda: totals.joined(tools.take_metrics()),
                on_episode=parts.watch.on_episode,
            ),
            version=parts.state.step,
        )
        actor.prove()  # before a step is spent on it
        if not is_pipelined:
            yield actor, actor
            return
        pipelined = _pipelined(actor, parts, total=total)
        try:
            yield pipelined, actor
        finally:
            pipelined.close()


def _pipelined(actor: LocalActor, parts: _Parts, *, total: int) -> PipelinedActor:
    config, tasks = parts.config, parts.tasks
    groups = scheduled(
        ((step, [tasks[i] for i in parts.order.batch(step)]) for step in range(1, total + 1)),
        group_size=config.rollout.group_size,
        seed=config.seed,
        trained=trained_groups(parts.run),
    )
    pipeline = actor.pipeline(
        groups,
        batch=min(config.prompts_per_step, len(tasks)),
        max_staleness=config.rollout.max_staleness,
    )
    return PipelinedActor(actor, pipeline, io=parts.tools.io)


def _grpo_settings(config: TrainConfig, *, total: int) -> GrpoSettings:
    training = config.training
    return GrpoSettings(
        total_steps=total,
        save_every=training.save_frequency,
        keep_checkpoints=training.keep_checkpoints,
        eval_every=training.eval_every,
        patience=training.patience,
        resample_rounds=training.dynamic_sampling,
        seed=config.seed,
        penalty_after_success=config.reward.penalty_after_success,
        grading=grade_settings(config),
        update=update_settings(config),
        target_kl=config.grpo.target_kl if config.grpo.adaptive_kl else None,
        budget=RunBudget(**config.budget.model_dump()),
    )
