"""A supervised run: demonstrations made by the gold policy, then the steps on them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from mcpagent.config.registry import is_built, load_named, model_builder
from mcpagent.config.schema import SftConfig, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.policy.canary import CANARY_ROWS
from mcpagent.rollout.setup import Tools, agent_settings
from mcpagent.run.lifecycle import RunPlace, TrainOutcome, Watch, note_padding, open_run, outcome_of, tracked
from mcpagent.run.self_evaluation import MeasuredTasks, SelfEvaluation
from mcpagent.storage.datasets import TaskFile
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.actor import ActorRecords, ActorSettings, LocalActor
from mcpagent.train.budget import RunBudget
from mcpagent.train.build import (
    Loaded,
    as_loaded,
    build_canary,
    build_learner,
    is_deterministic,
    load,
    open_sampler,
)
from mcpagent.train.learner.learner import Learner
from mcpagent.train.sft import (
    Curriculum,
    SftSettings,
    SftState,
    demonstrate,
    demonstration_samples,
    train_sft,
)


def run_sft(
    config: TrainConfig,
    tasks: TaskFile,
    measured: MeasuredTasks | None,
    tools: Tools,
    place: RunPlace,
    watch: Watch,
) -> TrainOutcome:
    """Every process makes its share of the demonstrations, and all of them train on the whole."""
    # The model is looked at before the run folder is made: a wrong name must leave nothing behind.
    loaded = None if is_built(config.model.name) else load(config)
    all_tasks, processes = list(tasks), place.processes
    by_id = {task.id: task for task in all_tasks}
    own = tools.io.run(
        demonstrate(
            processes.share(all_tasks),
            tools=tools.pool,
            seed=config.seed,
            stop_early=config.sft.stop_early,
            wrong_tool=config.sft.wrong_tool,
            on_done=watch.on_episode,
        )
    )
    demonstrations, of_tools = processes.gather(own), tools.take_metrics()
    if "cassette" in of_tools:
        watch.note(f"cassette of the demonstrations: {of_tools['cassette']}")
    if loaded is None:
        name, catalog = config.model.name, tools.pool.tools
        watch.note(f"training the {name} tokenizer for catalog {tools.pool.catalog_hash[:12]}")
        model, tokenizer = model_builder(name).build(demonstrations, by_id, catalog=catalog, seed=config.seed)
        loaded = as_loaded(model, tokenizer, config=config)
    total = config.total_steps(n_tasks=len(tasks))
    learner = build_learner(
        loaded,
        config,
        total_optimizer_steps=total,
        decay_share=config.sft.decay_share,
        processes=processes,
    )
    note_padding(learner, watch)
    run, saved = open_run(config, place, learner.restore, total_steps=total)
    state = SftState.from_json(saved) if saved else SftState()
    judged = None
    if measured is not None:
        judged = SelfEvaluation(config, measured, run=run, tools=tools, processes=processes, note=watch.note)
        if state.step == 0:
            with _open_actor(config, loaded, learner, tasks, tools, run, judged) as actor:
                judged.before(actor, step=0)
    watch.on_start(state.step, total)
    # A resumed run has made its demonstrations again: the same tokens, with the nonces of this time's calls.
    if processes.is_first:
        write_trajectories(run.trajectories / "demonstrations", demonstrations)
    with tracked(config, run, state.step, watch, processes) as trackers:

        def on_step(record: JsonObject) -> None:
            trackers.log(record["step"], record, ())
            watch.on_step(record)

        reason = train_sft(
            learner,
            list(
                demonstration_samples(
                    demonstrations, by_id, catalog=tools.pool.tools, renderer=loaded.renderer
                )
            ),
            renderer=loaded.renderer,
            run=run,
            settings=SftSettings(
                total_steps=total,
                curriculum=_curriculum(config.sft),
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
    if judged is not None:
        with _open_actor(config, loaded, learner, tasks, tools, run, judged) as actor:
            judged.after(actor, learner, step=state.step, best_step=None)
    return outcome_of(run, state.step, best_step=None, stop_reason=reason)


def _curriculum(sft: SftConfig) -> Curriculum | None:
    if sft.curriculum is None:
        return None
    make = load_named(sft.curriculum, where="sft.curriculum")
    return Curriculum(make, steps=sft.curriculum_steps, mix=sft.curriculum_mix)


@contextmanager
def _open_actor(
    config: TrainConfig,
    loaded: Loaded,
    learner: Learner,
    tasks: TaskFile,
    tools: Tools,
    run: RunFolder,
    judged: SelfEvaluation,
) -> Iterator[LocalActor]:
    """What plays episodes with the learner's weights as they are, in this process: the steps need no
    sampler, so it is there for an evaluation only."""
    here = config.model_copy(update={"rollout": config.rollout.model_copy(update={"backend": "hf"})})
    slots = max(judged.episodes_at_once, CANARY_ROWS)
    was_training = learner.model.training
    learner.model.eval()
    with open_sampler(loaded, here, model=learner.model, slots=slots) as sampler:
        canary = build_canary(loaded, here, learner=learner, tasks=tasks, catalog=tools.pool.tools)
        yield LocalActor(
            sampler,
            canary=canary,
            renderer=loaded.renderer,
            tools=tools,
            settings=ActorSettings(
                agent=agent_settings(config, max_context=loaded.max_context),
                group_size=1,
                concurrency=judged.episodes_at_once,
                deterministic=is_deterministic(config, loaded.device),
                seed=config.seed,
            ),
            records=ActorRecords(run=run, processes=learner.processes),
        )
    learner.model.train(was_training)
