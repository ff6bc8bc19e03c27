"""A supervised run: demonstrations made by the gold policy, then the steps on them."""

from __future__ import annotations

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.rollout.setup import Tools
from mcpagent.storage.task_file import TaskFile
from mcpagent.storage.trajectories import write_trajectories
from mcpagent.train.budget import Budget
from mcpagent.train.demonstrations import demonstrate, samples
from mcpagent.train.setup import as_loaded, build_learner, load
from mcpagent.train.sft import SftSettings, SftState, train_sft
from mcpagent.train.warm_start import embedded_model
from mcpagent.workflows.run_place import RunPlace, open_run
from mcpagent.workflows.run_watch import TrainOutcome, Watch, note_padding, outcome_of, tracked


def run_sft(
    config: TrainConfig,
    tasks: TaskFile,
    tools: Tools,
    place: RunPlace,
    watch: Watch,
) -> TrainOutcome:
    """Every process makes its share of the demonstrations, and all of them train on the whole."""
    # The model is looked at before the run folder is made: a wrong name must leave nothing behind.
    loaded = None if config.model.name == "embedded" else load(config)
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
        watch.note(f"training the embedded tokenizer for catalog {tools.pool.catalog_hash[:12]}")
        model, tokenizer = embedded_model(demonstrations, by_id, catalog=tools.pool.tools, seed=config.seed)
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
            list(samples(demonstrations, by_id, catalog=tools.pool.tools, renderer=loaded.renderer)),
            renderer=loaded.renderer,
            run=run,
            settings=SftSettings(
                total_steps=total,
                copy_steps=config.sft.copy_steps,
                copy_mix=config.sft.copy_mix,
                save_every=config.training.save_frequency,
                batch_size=config.prompts_per_step,
                micro_batch_tokens=config.training.micro_batch_tokens,
                seed=config.seed,
                keep_checkpoints=config.training.keep_checkpoints,
                budget=Budget(**config.budget.model_dump()),
            ),
            state=state,
            of_tools=of_tools,
            on_step=on_step,
            note=watch.note,
        )
    return outcome_of(run, state.step, best_step=None, stop_reason=reason)
