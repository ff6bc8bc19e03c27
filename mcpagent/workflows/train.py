"""A training run from a configuration: fresh or resumed, GRPO or supervised."""

from __future__ import annotations

import random
from collections.abc import Collection, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.errors import UserError
from mcpagent.policy.canary import CANARY_ROWS
from mcpagent.policy.vllm_choice import require_vllm
from mcpagent.rollout.setup import Tools, agent_settings, open_tools
from mcpagent.storage.jsonl import find_dataset
from mcpagent.storage.task_file import TaskFile
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.actor import LocalActor, roll_back
from mcpagent.train.budget import Budget
from mcpagent.train.callbacks import Callback, StepReport
from mcpagent.train.demonstrations import demonstrate, samples
from mcpagent.train.grpo import train_grpo
from mcpagent.train.grpo_run import Actor, GrpoRun, GrpoSettings, GrpoState
from mcpagent.train.learner import Learner
from mcpagent.train.order import TaskOrder
from mcpagent.train.pipelined import PipelinedActor, refuse_pipeline, scheduled, trained_groups
from mcpagent.train.processes import Processes
from mcpagent.train.setup import (
    as_loaded,
    build_canary,
    build_learner,
    grade_settings,
    is_deterministic,
    load,
    open_sampler,
    training_device,
    update_settings,
)
from mcpagent.train.sft import SftSettings, SftState, train_sft
from mcpagent.train.warm_start import embedded_model
from mcpagent.workflows.run_place import RunPlace, open_run
from mcpagent.workflows.run_watch import TrainOutcome, Watch, health_callback, outcome_of, tracked
from mcpagent.workflows.stage import catalog_note, open_tasks


def train(
    config: TrainConfig,
    *,
    run_dir: Path | None = None,
    resume: bool = False,
    ledger: Path | None = None,
    ledger_start: int = 0,
    manifest: JsonObject | None = None,
    beside: Collection[str] = (),
    callbacks: Sequence[Callback] = (),
    watch: Watch | None = None,
) -> TrainOutcome:
    """Run `config` to its end. `resume` continues the run folder from its last complete checkpoint, with the
    configuration it was started with. `ledger` is where the built-in servers count the calls they get;
    `ledger_start` bytes of it are older than this run. `beside` names what a new run folder may already hold;
    `callbacks` watch the steps of GRPO. Raises UserError before anything is written."""
    watch = watch or Watch()
    # Nothing here draws from these two, but libraries may; torch is seeded with its model.
    random.seed(derive_seed(config.seed, "python"))
    np.random.seed(derive_seed(config.seed, "numpy") % 2**32)
    if config.algorithm == "grpo" and config.rollout.backend == "vllm":
        require_vllm(has_servers=bool(config.vllm.servers))
    folder = run_dir or Path(config.output_dir) / config.name
    processes = Processes.join(training_device(config))
    if not processes.is_first:
        watch = Watch()
    with ExitStack() as stack:
        tasks = stack.enter_context(open_tasks(config, find_dataset(config.data.train, split="train")))
        validation = stack.enter_context(_validation(config))
        tools = stack.enter_context(
            open_tools(
                config.tools,
                ledger=ledger,
                log_dir=folder / "logs" / ("" if processes.is_first else f"process-{processes.index}"),
                on_note=watch.note,
            )
        )
        document = {
            **(manifest or {}),
            "seed": config.seed,
            "data": {"train": str(tasks.path), "tasks": len(tasks), "sha256": tasks.sha256},
            "catalog_hash": tools.pool.catalog_hash,
            "renamed_tools": dict(tools.pool.renamed),
            "server_versions": dict(tools.pool.versions),
        }
        changed = catalog_note(tasks, tools.pool)
        if changed is not None:
            watch.note(changed)
        place = RunPlace(
            folder=folder,
            resume=resume,
            manifest=document,
            beside=(*beside, "logs"),  # stdio servers log from their start, before there is a run
            ledger=ledger,
            ledger_start=ledger_start,
            processes=processes,
        )
        if config.algorithm == "sft":
            return _run_sft(config, tasks, tools, place, watch)
        return _run_grpo(config, tasks, validation, tools, place, watch, callbacks)


def _run_sft(
    config: TrainConfig,
    tasks: TaskFile,
    tools: Tools,
    place: RunPlace,
    watch: Watch,
) -> TrainOutcome:
    # The model is looked at before the run folder is made: a wrong name must leave nothing behind.
    loaded = None if config.model.name == "embedded" else load(config)
    all_tasks = list(tasks)
    by_id = {task.id: task for task in all_tasks}
    demonstrations = tools.io.run(
        demonstrate(
            all_tasks,
            tools=tools.pool,
            seed=config.seed,
            stop_early=config.sft.stop_early,
            wrong_tool=config.sft.wrong_tool,
            on_done=watch.on_episode,
        )
    )
    if (counts := tools.take_cassette_counts()) is not None:
        watch.note(f"cassette of the demonstrations: {counts}")
    if loaded is None:
        watch.note(f"training the embedded tokenizer for catalog {tools.pool.catalog_hash[:12]}")
        model, tokenizer = embedded_model(demonstrations, by_id, catalog=tools.pool.tools, seed=config.seed)
        loaded = as_loaded(model, tokenizer, config=config)
    total = _total_steps(config, tasks)
    learner = build_learner(
        loaded,
        config,
        total_optimizer_steps=total,
        decay_share=config.sft.decay_share,
        processes=place.processes,
    )
    _note_padding(learner, watch)
    run, saved = open_run(config, place, learner.restore)
    state = SftState.from_json(saved) if saved else SftState()
    watch.on_start(state.step, total)
    # A resumed run has made its demonstrations again: the same tokens, with the nonces of this time's calls.
    if place.processes.is_first:
        write_trajectories(run.trajectories / "demonstrations", demonstrations)
    with tracked(config, run, state.step, watch, place.processes) as trackers:

        def on_step(record: JsonObject) -> None:
            trackers.log(record["step"], record, ())
            watch.on_step(record)

        reason = train_sft(
            learner,
            list(samples(demonstrations, by_id, catalog=tools.pool.tools, renderer=loaded.renderer)),
            renderer=loaded.renderer,
            run=run,
            settings=SftSettings(
                total_steps=total,
                copy_steps=config.sft.copy_steps,
                copy_mix=config.sft.copy_mix,
                save_every=config.training.save_frequency,
                batch_size=config.training.batch_size,
                micro_batch_tokens=config.training.micro_batch_tokens,
                seed=config.seed,
                keep_checkpoints=config.training.keep_checkpoints,
                budget=Budget(**config.budget.model_dump()),
            ),
            state=state,
            on_step=on_step,
            note=watch.note,
        )
    return outcome_of(run, state.step, best_step=None, stop_reason=reason)


def _run_grpo(
    config: TrainConfig,
    tasks: TaskFile,
    validation: Any,
    tools: Tools,
    place: RunPlace,
    watch: Watch,
    callbacks: Sequence[Callback],
) -> TrainOutcome:
    loaded = load(config)
    total = _total_steps(config, tasks)
    per_step = config.grpo.epochs_per_batch * config.grpo.minibatches
    learner = build_learner(loaded, config, total_optimizer_steps=total * per_step, processes=place.processes)
    _note_padding(learner, watch)
    run, saved = open_run(config, place, learner.restore)
    state = (
        GrpoState.from_json(saved)
        if saved
        else GrpoState(kl_coef=config.grpo.kl_coef, ledger_bytes=place.ledger_start)
    )
    if place.ledger is not None and place.processes.is_first:
        # The calls of steps that are rolled back are counted again when those steps are.
        roll_back(place.ledger, state.ledger_bytes)
    prompts = -(-config.training.batch_size // place.processes.count)
    episodes = prompts * config.rollout.group_size
    concurrency = min(config.rollout.num_envs, max(episodes, 1))
    is_pipelined = config.rollout.max_staleness > 0
    if is_pipelined:
        refuse_pipeline(config, loaded.device)
        if place.processes.count > 1:
            raise UserError(
                f"rollout.max_staleness is {config.rollout.max_staleness}, but {place.processes.count} "
                "processes collect each step together",
                where="rollout.max_staleness",
                remedy="set it to 0, or train in one process",
            )
    canary = build_canary(loaded, config, learner=learner, tasks=tasks, catalog=tools.pool.tools)
    with ExitStack() as stack:
        sampler = stack.enter_context(
            open_sampler(
                loaded,
                config,
                model=learner.model,
                # Beside episodes that go on, evaluations and the canary need room of their own.
                slots=2 * concurrency + CANARY_ROWS if is_pipelined else max(concurrency, CANARY_ROWS),
                weights=run.path / "weights",
                on_note=watch.note,
            )
        )
        actor = LocalActor(
            sampler,
            canary=canary,
            renderer=loaded.renderer,
            tools=tools.pool,
            io=tools.io,
            settings=agent_settings(config, max_context=loaded.max_context),
            group_size=config.rollout.group_size,
            concurrency=concurrency,
            deterministic=is_deterministic(config, loaded.device),
            seed=config.seed,
            run=run,
            processes=place.processes,
            version=state.step,
            ledger=place.ledger,
            tool_metrics=tools.take_metrics,
            on_episode=watch.on_episode,
        )
        actor.prove()  # before a step is spent on it
        order = TaskOrder(len(tasks), batch_size=config.training.batch_size, seed=config.seed)
        collecting: Actor = actor
        if is_pipelined:
            begun = range(1, total + 1)
            collecting = PipelinedActor(
                actor,
                actor.pipeline(
                    scheduled(
                        ((step, [tasks[i] for i in order.batch(step)]) for step in begun),
                        group_size=config.rollout.group_size,
                        seed=config.seed,
                        trained=trained_groups(run),
                    ),
                    batch=min(config.training.batch_size, len(tasks)),
                    max_staleness=config.rollout.max_staleness,
                ),
                io=tools.io,
            )
            stack.callback(collecting.close)
        health = health_callback(config, run, watch)
        watch.on_start(state.step, total)
        trackers = stack.enter_context(tracked(config, run, state.step, watch, place.processes))

        def on_step(report: StepReport) -> None:
            trackers.log(report.step, report.metrics, report.trajectories)
            watch.on_step(report.metrics)

        reason = train_grpo(
            GrpoRun(
                learner=learner,
                actor=collecting,
                tasks=tasks,
                validation=validation,
                order=order,
                folder=run,
                settings=_grpo_settings(config, total=total),
                state=state,
                health=health,
                callbacks=callbacks,
                on_step=on_step,
                note=watch.note,
            )
        )
    is_ill = health is not None and health.should_stop() is not None
    best = state.best_step if state.best_step is not None else state.good_step if is_ill else None
    return outcome_of(run, state.step, best_step=best, stop_reason=reason)


def _note_padding(learner: Learner, watch: Watch) -> None:
    if learner.why_not_packed is not None:
        watch.note(
            f"the trainer pads samples and computes shared prompts once an attempt: {learner.why_not_packed}"
        )


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
        budget=Budget(**config.budget.model_dump()),
    )


def _total_steps(config: TrainConfig, tasks: TaskFile) -> int:
    copying = config.sft.copy_steps if config.algorithm == "sft" else 0
    return config.training.total_steps(n_tasks=len(tasks)) + copying


def _validation(config: TrainConfig) -> Any:
    """The validation tasks where the run evaluates; an empty list otherwise."""
    if config.algorithm == "sft" or not config.training.eval_every:
        return ExitStack()
    return open_tasks(config)
