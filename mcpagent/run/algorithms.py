"""The two algorithms of a run, GRPO and supervised: parts made from the configuration, then the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from mcpagent.config.named_parts import is_built, load_named, model_builder
from mcpagent.config.schema import SftConfig, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.offer import discovery
from mcpagent.policy.canary import CANARY_ROWS
from mcpagent.rollout.setup import agent_settings
from mcpagent.run.api import open_judge, open_user
from mcpagent.run.episodes import at_once
from mcpagent.run.lifecycle import (
    RunInputs,
    TrainOutcome,
    health_callback,
    note_kernels,
    open_run,
    outcome_of,
    tracked,
)
from mcpagent.run.self_evaluation import SelfEvaluation
from mcpagent.storage.datasets import DiskList
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import ById, write_trajectories
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
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.budget import RunBudget, ToolTotals
from mcpagent.train.build import (
    Loaded,
    as_loaded,
    build_canary,
    build_learner,
    grade_settings,
    is_deterministic,
    load,
    open_sampler,
    update_settings,
    why_corrected,
)
from mcpagent.train.grpo import train_grpo
from mcpagent.train.health import StepReport
from mcpagent.train.learner.learner import Learner
from mcpagent.train.run_state import (
    Actor,
    CalibratedOrder,
    GrpoRun,
    GrpoSettings,
    GrpoState,
    Observers,
    TaskOrder,
    TrainingTasks,
)
from mcpagent.train.sft import (
    Augmentation,
    Curriculum,
    RewrittenDemonstrations,
    SftSettings,
    SftState,
    demonstrate,
    demonstration_samples,
    train_sft,
)


@dataclass(frozen=True, kw_only=True)
class _GrpoParts:
    """What the actor is made of."""

    inputs: RunInputs
    loaded: Loaded
    learner: Learner
    run: RunFolder
    state: GrpoState
    order: TaskOrder | CalibratedOrder


def run_grpo(inputs: RunInputs) -> TrainOutcome:
    """Each process plays its share of the episodes, and all make the same update."""
    config, tasks, place, watch = inputs.config, inputs.tasks, inputs.place, inputs.watch
    processes = place.processes
    loaded = load(config, processes=processes)
    if config.rollout.max_staleness > 0:
        refuse_pipeline(config, loaded.device, processes)
    total = config.total_steps(n_tasks=len(tasks))
    updates = total * config.grpo.epochs_per_batch * config.grpo.minibatches
    learner = build_learner(loaded, config, total_optimizer_steps=updates, processes=processes)
    note_kernels(loaded, learner, watch)
    run, saved = open_run(config, place, learner.restore, total_steps=total)
    state = (
        GrpoState.from_json(saved)
        if saved
        else GrpoState(kl_coef=config.grpo.kl_coef, ledger_bytes=place.ledger_start)
    )
    if place.ledger is not None and processes.is_first:
        # The calls of steps that are rolled back are counted again when those steps are.
        roll_back(place.ledger, state.ledger_bytes)
    order = _task_order(config, tasks, state)
    parts = _GrpoParts(inputs=inputs, loaded=loaded, learner=learner, run=run, state=state, order=order)
    health, judge = health_callback(config, run, watch), inputs.judge(run)
    with (
        _open_grpo_actor(parts, total=total) as (actor, local),
        tracked(config, run, state.step, watch, processes) as trackers,
    ):
        if judge is not None:
            judge.before(local, step=state.step)
        watch.on_start(state.step, total)

        def on_step(report: StepReport) -> None:
            trackers.log(report.step, report.metrics, report.trajectories)
            watch.on_step(report.metrics)

        reason = train_grpo(
            GrpoRun(
                learner=learner,
                actor=actor,
                tasks=TrainingTasks(train=tasks, validation=inputs.validation, order=order),
                folder=run,
                settings=_grpo_settings(parts, total=total),
                state=state,
                observers=Observers(
                    health=health,
                    callbacks=(DriftCallback(loaded.renderer), *inputs.callbacks),
                    on_step=on_step,
                    note=watch.note,
                ),
            )
        )
        is_ill = health is not None and health.should_stop() is not None
        best = state.best_step if state.best_step is not None else state.good_step if is_ill else None
        if judge is not None:
            judge.after(local, learner, step=state.step, best_step=best)
    return outcome_of(run, state.step, best_step=best, stop_reason=reason)


def _task_order(config: TrainConfig, tasks: Sequence[Task], state: GrpoState) -> TaskOrder | CalibratedOrder:
    """The order of `training.curriculum`, where `state` left it."""
    if config.training.curriculum == "uniform":
        return TaskOrder(len(tasks), batch_size=config.prompts_per_step, seed=config.seed)
    order = CalibratedOrder(
        tasks,
        batch_size=min(config.prompts_per_step, len(tasks)),
        seed=config.seed,
        group_size=config.rollout.group_size,
        bound=config.training.useful_share,
    )
    if state.curriculum is not None:
        order.restore(state.curriculum)
    return order


@contextmanager
def _open_grpo_actor(parts: _GrpoParts, *, total: int) -> Iterator[tuple[Actor, LocalActor]]:
    """What plays the episodes with the learner's weights, proved to have them; with `rollout.max_staleness`,
    while the learner works. The second one plays when it is told to, always."""
    config, tools, place = parts.inputs.config, parts.inputs.tools, parts.inputs.place
    loaded, learner = parts.loaded, parts.learner
    prompts = -(-config.prompts_per_step // place.processes.count)
    concurrency = min(config.rollout.num_envs, max(prompts * config.rollout.group_size, 1))
    is_pipelined = config.rollout.max_staleness > 0
    canary = build_canary(loaded, config, learner=learner, tasks=parts.inputs.tasks, catalog=tools.pool.tools)
    totals = ToolTotals(parts.run.metrics())
    with (
        open_sampler(
            loaded,
            config,
            model=learner.model,
            # Beside episodes that go on, evaluations and the canary need room of their own.
            slots=2 * concurrency + CANARY_ROWS if is_pipelined else max(concurrency, CANARY_ROWS),
            weights=parts.run.path / "weights" / place.processes.folder_name,
            learner=learner,
            on_note=parts.inputs.watch.note,
        ) as sampler,
        open_user(config, io=tools.io, on_note=parts.inputs.watch.note) as user,
        open_judge(config, io=tools.io, on_note=parts.inputs.watch.note) as opened,
    ):
        actor = LocalActor(
            sampler,
            canary=canary,
            renderer=loaded.renderer,
            tools=tools,
            settings=ActorSettings(
                agent=agent_settings(
                    config, max_context=loaded.max_context, user=user, judge=opened and opened.judge
                ),
                group_size=config.rollout.group_size,
                concurrency=at_once(sampler.episodes, asked=concurrency, on_note=parts.inputs.watch.note),
                deterministic=is_deterministic(config, loaded.device),
                seed=config.seed,
            ),
            records=ActorRecords(
                run=parts.run,
                processes=place.processes,
                ledger=place.ledger,
                tool_metrics=lambda: totals.joined(tools.take_metrics()),
                on_episode=parts.inputs.watch.on_episode,
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


def _pipelined(actor: LocalActor, parts: _GrpoParts, *, total: int) -> PipelinedActor:
    config, tasks = parts.inputs.config, parts.inputs.tasks
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
    return PipelinedActor(actor, pipeline, io=parts.inputs.tools.io)


def _grpo_settings(parts: _GrpoParts, *, total: int) -> GrpoSettings:
    config, training = parts.inputs.config, parts.inputs.config.training
    why = why_corrected(parts.loaded, config, model=parts.learner.model)
    update = update_settings(config, is_corrected=why is not None)
    if config.grpo.tis_cap == "auto" and update.correction is not None:
        parts.inputs.watch.note(
            f"tokens are weighted by the ratio of trainer and sampler, at most {update.correction.cap:g}, "
            f"since {why} (grpo.tis_cap)"
        )
    return GrpoSettings(
        total_steps=total,
        save_every=training.save_frequency,
        keep_checkpoints=training.keep_checkpoints,
        eval_every=training.eval_every,
        patience=training.patience,
        resample_rounds=training.dynamic_sampling,
        seed=config.seed,
        penalty_after_success=config.reward.penalty_after_success,
        penalty_weight=config.reward.penalty_weight,
        grading=grade_settings(config),
        update=update,
        target_kl=config.grpo.target_kl if config.grpo.adaptive_kl else None,
        budget=RunBudget(**config.budget.model_dump()),
    )


def run_sft(inputs: RunInputs) -> TrainOutcome:
    """Every process makes its share of the demonstrations by the gold policy, and all of them train on the
    whole."""
    config, tools, place, watch = inputs.config, inputs.tools, inputs.place, inputs.watch
    # The model is looked at before the run folder is made: a wrong name must leave nothing behind.
    loaded = None if is_built(config.model.name) else load(config, processes=place.processes)
    tasks, processes = inputs.tasks, place.processes
    by_id = ById(tasks)
    local_demonstrations = tools.io.run(
        demonstrate(
            processes.share(tasks),
            tools=tools.pool,
            seed=config.seed,
            stop_early=config.sft.stop_early,
            wrong_tool=config.sft.wrong_tool,
            discovery=discovery(config.tools),
            per_task=config.sft.demonstrations_per_task,
            on_done=watch.on_episode,
        )
    )
    processes.meet()
    demonstrations, of_tools = processes.gather(local_demonstrations), tools.take_metrics()
    if "cassette" in of_tools:
        watch.note(f"cassette of the demonstrations: {of_tools['cassette']}")
    augmentation = _augmentation(config.sft, demonstrations, tools.pool.tools)
    if loaded is None:
        name, catalog = config.model.name, tools.pool.tools
        watch.note(f"training the {name} tokenizer for catalog {tools.pool.catalog_hash[:12]}")
        seen = demonstrations if augmentation is None else _rewritten(demonstrations, augmentation)
        wording = None if augmentation is None else augmentation.wording
        model, tokenizer = model_builder(name).build(
            seen, by_id, catalog=catalog, seed=config.seed, wording=wording
        )
        loaded = as_loaded(model, tokenizer, config=config)
    total = config.total_steps(n_tasks=len(tasks))
    learner = build_learner(
        loaded,
        config,
        total_optimizer_steps=total,
        decay_share=config.sft.decay_share,
        processes=processes,
    )
    note_kernels(loaded, learner, watch)
    run, saved = open_run(config, place, learner.restore, total_steps=total)
    state = SftState.from_json(saved) if saved else SftState()
    judge = inputs.judge(run)
    if judge is not None and learner.wrapping.is_sharded:
        watch.note("the run is not measured on held-out tasks: no sampler reads weights in shards")
        judge = None
    if judge is not None and state.step == 0:
        with _open_sft_actor(inputs, loaded, learner, run, judge) as actor:
            judge.before(actor, step=0)
    watch.on_start(state.step, total)
    encoded = partial(
        demonstration_samples,
        tasks=by_id,
        catalog=tools.pool.tools,
        renderer=loaded.renderer,
        discovery=discovery(config.tools),
    )
    samples: Sequence[TrainSample] = (
        DiskList(encoded(demonstrations))
        if augmentation is None
        else RewrittenDemonstrations(
            demonstrations,
            augmentation=augmentation,
            encoded=encoded,
            times=-(-total * config.prompts_per_step // len(demonstrations)),
            seed=config.seed,
        )
    )
    # A resumed run has made its demonstrations again: the same tokens, with the nonces of this time's calls.
    if processes.is_first:
        write_trajectories(run.trajectories / "demonstrations", demonstrations)
    with tracked(config, run, state.step, watch, processes) as trackers:

        def on_step(record: JsonObject) -> None:
            trackers.log(record["step"], record, ())
            watch.on_step(record)

        reason = train_sft(
            learner,
            samples,
            renderer=loaded.renderer,
            run=run,
            settings=SftSettings(
                total_steps=total,
                curriculum=_curriculum(config.sft, augmentation),
                save_every=config.training.save_frequency,
                batch_size=config.prompts_per_step,
                micro_batch_tokens=config.training.micro_batch_tokens,
                seed=config.seed,
                keep_checkpoints=config.training.keep_checkpoints,
                budget=RunBudget(**config.budget.model_dump()),
            ),
            state=state,
            of_tools=of_tools,
            on_step=on_step,
            note=watch.note,
        )
    if judge is not None:
        with _open_sft_actor(inputs, loaded, learner, run, judge) as actor:
            judge.after(actor, learner, step=state.step, best_step=None)
    return outcome_of(run, state.step, best_step=None, stop_reason=reason)


def _augmentation(
    sft: SftConfig, demonstrations: Sequence[Trajectory], catalog: Mapping[str, ToolSpec]
) -> Augmentation | None:
    if sft.augmentation is None:
        return None
    return load_named(sft.augmentation, where="sft.augmentation")(demonstrations, catalog)


def _rewritten(demonstrations: Sequence[Trajectory], augmentation: Augmentation) -> Sequence[Trajectory]:
    return DiskList(augmentation.rewritten(each, seed=place) for place, each in enumerate(demonstrations))


def _curriculum(sft: SftConfig, augmentation: Augmentation | None) -> Curriculum | None:
    if sft.curriculum is None:
        return None
    make = load_named(sft.curriculum, where="sft.curriculum")
    make = make if augmentation is None else augmentation.curriculum
    return Curriculum(make, steps=sft.curriculum_steps, mix=sft.curriculum_mix)


@contextmanager
def _open_sft_actor(
    inputs: RunInputs, loaded: Loaded, learner: Learner, run: RunFolder, judge: SelfEvaluation
) -> Iterator[LocalActor]:
    """What plays episodes with the learner's weights as they are, in this process: the steps need no
    sampler, so it is there for an evaluation only."""
    config, tools = inputs.config, inputs.tools
    here = config.model_copy(update={"rollout": config.rollout.model_copy(update={"backend": "hf"})})
    slots = max(judge.episodes_at_once, CANARY_ROWS)
    was_training = learner.model.training
    learner.model.eval()
    with (
        open_sampler(loaded, here, model=learner.model, slots=slots) as sampler,
        open_user(config, io=tools.io, on_note=inputs.watch.note) as user,
        open_judge(config, io=tools.io, on_note=inputs.watch.note) as opened,
    ):
        canary = build_canary(loaded, here, learner=learner, tasks=inputs.tasks, catalog=tools.pool.tools)
        yield LocalActor(
            sampler,
            canary=canary,
            renderer=loaded.renderer,
            tools=tools,
            settings=ActorSettings(
                agent=agent_settings(
                    config, max_context=loaded.max_context, user=user, judge=opened and opened.judge
                ),
                group_size=1,
                concurrency=at_once(sampler.episodes, asked=judge.episodes_at_once),
                deterministic=is_deterministic(config, loaded.device),
                seed=config.seed,
            ),
            records=ActorRecords(run=run, processes=learner.processes),
        )
    learner.model.train(was_training)
