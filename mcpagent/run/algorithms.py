"""The two algorithms of a run, GRPO and supervised: parts made from the configuration, then the loop."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import count
from pathlib import Path

from mcpagent.config.named_parts import is_built, load_named, model_builder
from mcpagent.config.schema import SftConfig, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.offer import discovery
from mcpagent.errors import UserError
from mcpagent.policy.canary import CANARY_ROWS
from mcpagent.run.lifecycle import (
    RunInputs,
    TrainOutcome,
    health_callback,
    outcome_of,
    tracked,
)
from mcpagent.run.policies import at_once, open_agent
from mcpagent.run.self_evaluation import SelfEvaluation, store_validation
from mcpagent.storage.datasets import DiskList
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import ById, write_trajectories
from mcpagent.train.actor import ActorRecords, ActorSettings, DriftCallback, LocalActor, roll_back
from mcpagent.train.batch.samples import TrainSample
from mcpagent.train.grpo import train_grpo
from mcpagent.train.health import StepReport
from mcpagent.train.learner.build import build_learner
from mcpagent.train.learner.learner import Learner
from mcpagent.train.load import Loaded, as_loaded, load_start
from mcpagent.train.run_state import GrpoRun, GrpoSettings, GrpoState, Observers
from mcpagent.train.sampler import build_canary, open_sampler, why_corrected
from mcpagent.train.settings import grpo_settings, is_deterministic, sft_settings
from mcpagent.train.sft import (
    Augmentation,
    Curriculum,
    RewrittenDemonstrations,
    SftState,
    demonstrate,
    demonstration_samples,
    train_sft,
    writable,
)
from mcpagent.train.task_order import in_proportion, kind_of, order_of


def run_grpo(inputs: RunInputs) -> TrainOutcome:
    """Train with GRPO: each process plays its share of the episodes, and all make the same update."""
    config, tasks, watch, processes = inputs.config, inputs.tasks, inputs.watch, inputs.processes
    loaded = load_start(config, inputs.folder, processes=processes, on_note=watch.note)
    total = config.total_steps(n_tasks=len(tasks))
    updates = total * config.grpo.epochs_per_batch * config.grpo.minibatches
    learner, run, saved = _begin(inputs, loaded, total_steps=total, updates=updates)
    state = (
        GrpoState.from_json(saved)
        if saved
        else GrpoState(kl_coef=config.grpo.kl_coef, ledger_bytes=inputs.ledger_start)
    )
    if inputs.ledger is not None and processes.is_first:
        # The calls of steps that are rolled back are counted again when those steps are.
        roll_back(inputs.ledger, state.ledger_bytes)
    order = order_of(tasks, batch_size=config.training.batch_size, seed=config.seed)
    health, judge = health_callback(config, run, watch), inputs.judge
    with (
        _open_grpo_actor(inputs, loaded, learner, run, version=state.step) as actor,
        tracked(config, run, state.step, watch, processes) as trackers,
    ):
        if judge is not None:
            judge.before(actor, step=state.step)
        watch.on_start(state.step, total)

        def on_step(report: StepReport) -> None:
            trackers.log(report.step, report.metrics, report.trajectories)
            watch.on_step(report.metrics)

        reason = train_grpo(
            GrpoRun(
                learner=learner,
                actor=actor,
                tasks=tasks,
                order=order,
                validation=inputs.validation,
                folder=run,
                settings=_grpo_settings(inputs, loaded, learner, total=total),
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
            judge.after(actor, learner, step=state.step, best_step=best)
    return outcome_of(run, state.step, best_step=best, stop_reason=reason)


def _begin(
    inputs: RunInputs, loaded: Loaded, *, total_steps: int, updates: int
) -> tuple[Learner, RunFolder, JsonObject]:
    """Return what learns, the run's folder, and the state that a resumed run goes on from, else {}."""
    config, watch = inputs.config, inputs.watch
    learner = build_learner(loaded, config, total_optimizer_steps=updates, processes=inputs.processes)
    if loaded.why_format is not None:
        watch.note(loaded.why_format)
    if (why := learner.why_not_packed) is not None:
        watch.note(f"the trainer pads samples and computes shared prompts once an attempt: {why}")
    learner.on_samples = partial(watch.on_part, "updating")
    run, saved = inputs.open_run(loaded.settled(config), learner.restore, total_steps=total_steps)
    return learner, run, saved


@contextmanager
def _open_actor(
    inputs: RunInputs,
    config: TrainConfig,
    loaded: Loaded,
    learner: Learner,
    *,
    records: ActorRecords,
    concurrency: int,
    weights: Path | None = None,
    group_size: int = 1,
    version: int = 0,
) -> Iterator[LocalActor]:
    """Open what plays episodes of `config` with the learner's weights: at most `concurrency` at once,
    `group_size` attempts at each task. `weights` is where they are handed to servers as they change; None if
    they do not while this is open. `version` counts the updates that they have seen."""
    tools, note = inputs.tools, inputs.watch.note
    with (
        open_sampler(
            loaded,
            config,
            model=learner.model,
            slots=max(concurrency, CANARY_ROWS),
            weights=weights,
            learner=learner,
            on_note=note,
        ) as engine,
        open_agent(config, max_context=loaded.max_context, io=tools.io, on_note=note) as (agent, _),
    ):
        yield LocalActor(
            engine,
            canary=build_canary(
                loaded, config, learner=learner, tasks=inputs.tasks, catalog=tools.pool.tools
            ),
            renderer=loaded.renderer,
            tools=tools,
            settings=ActorSettings(
                agent=agent,
                group_size=group_size,
                concurrency=at_once(engine.episodes, asked=concurrency, on_note=note),
                deterministic=is_deterministic(loaded.device),
                seed=config.seed,
            ),
            records=records,
            version=version,
        )


@contextmanager
def _open_grpo_actor(
    inputs: RunInputs, loaded: Loaded, learner: Learner, run: RunFolder, *, version: int
) -> Iterator[LocalActor]:
    """Open what plays the episodes with the learner's weights, proved to have them."""
    config, tools, watch = inputs.config, inputs.tools, inputs.watch
    prompts = -(-config.training.batch_size // inputs.processes.count)
    concurrency = min(config.rollout.num_envs, max(prompts * config.rollout.group_size, 1))
    records = ActorRecords(
        processes=inputs.processes,
        ledger=inputs.ledger,
        tool_metrics=tools.take_metrics,
        on_part=watch.on_part,
        on_validation=partial(store_validation, run, inputs.manifest["reward"]),
    )
    with _open_actor(
        inputs,
        config,
        loaded,
        learner,
        records=records,
        concurrency=concurrency,
        weights=run.path / "weights" / inputs.processes.folder_name,
        group_size=config.rollout.group_size,
        version=version,
    ) as actor:
        actor.prove()  # before a step is spent on it
        yield actor


def _grpo_settings(inputs: RunInputs, loaded: Loaded, learner: Learner, *, total: int) -> GrpoSettings:
    config = inputs.config
    why = why_corrected(loaded, config, model=learner.model)
    settings = grpo_settings(config, total_steps=total, is_corrected=why is not None)
    if config.grpo.tis_cap == "auto" and settings.update.tis_cap is not None:
        inputs.watch.note(
            f"tokens are weighted by the ratio of trainer and sampler, at most "
            f"{settings.update.tis_cap:g}, since {why} (grpo.tis_cap)"
        )
    return settings


def run_sft(inputs: RunInputs) -> TrainOutcome:
    """Train on demonstrations: every process plays its share of them with the gold policy, and all train on
    the whole."""
    config, tools, watch = inputs.config, inputs.tools, inputs.watch
    # The model is looked at before the run folder is made: a wrong name must leave nothing behind.
    loaded = None
    if not is_built(config.model.name):
        loaded = load_start(config, inputs.folder, processes=inputs.processes, on_note=watch.note)
    tasks, processes = in_proportion(inputs.tasks, config.sft.max_tasks, seed=config.seed), inputs.processes
    by_id = ById(tasks)
    share, played = processes.share(tasks), count(1)
    planned = len(share) * config.sft.demonstrations_per_task
    local_demonstrations = tools.io.run(
        demonstrate(
            share,
            tools=tools.pool,
            seed=config.seed,
            stop_early=config.sft.stop_early,
            wrong_tool=config.sft.wrong_tool,
            discovery=discovery(config.tools),
            per_task=config.sft.demonstrations_per_task,
            on_done=lambda _: watch.on_part("demonstrating", next(played), planned),
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
    demonstrations, left_out = _writable(demonstrations, by_id, inputs, loaded)
    of_tools |= {"demonstrations_left_out": left_out} if left_out else {}
    total = config.total_steps(n_tasks=len(inputs.tasks))
    learner, run, saved = _begin(inputs, loaded, total_steps=total, updates=total)
    state = SftState.from_json(saved) if saved else SftState()
    judge = inputs.judge
    if judge is not None and learner.wrapping.is_sharded:
        watch.note("the run is not measured on held-out tasks: no sampler reads weights in shards")
        judge = None
    if judge is not None and state.step == 0:
        with _open_sft_actor(inputs, loaded, learner, judge) as actor:
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
            times=-(-total * config.training.batch_size // len(demonstrations)),
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
            kinds=(kind_of(by_id[each.task_id]) for each in demonstrations),
            renderer=loaded.renderer,
            run=run,
            settings=sft_settings(
                config, total_steps=total, curriculum=_curriculum(config.sft, augmentation)
            ),
            state=state,
            of_tools=of_tools,
            on_step=on_step,
            note=watch.note,
            health=health_callback(config, run, watch),
        )
    if judge is not None:
        with _open_sft_actor(inputs, loaded, learner, judge) as actor:
            judge.after(actor, learner, step=state.step, best_step=None)
    return outcome_of(run, state.step, best_step=None, stop_reason=reason)


def _writable(
    demonstrations: Sequence[Trajectory], by_id: ById, inputs: RunInputs, loaded: Loaded
) -> tuple[Sequence[Trajectory], int]:
    """Return the demonstrations that the model's tool format can write, and how many it cannot. Raises
    UserError if there are none."""
    tool_format = loaded.renderer.tool_format
    kept = DiskList(writable(demonstrations, by_id, catalog=inputs.tools.pool.tools, tool_format=tool_format))
    left_out = len(demonstrations) - len(kept)
    if left_out:
        inputs.watch.note(
            f"{left_out} of {len(demonstrations)} demonstrations are left out: they hold a value that "
            f"{tool_format} would read as another one than it writes"
        )
    if demonstrations and not kept:
        raise UserError(
            f"no demonstration can be written in the tool format {tool_format}",
            where="rollout.tool_format",
            remedy="--set rollout.tool_format=hermes writes any value",
        )
    return kept, left_out


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
    inputs: RunInputs, loaded: Loaded, learner: Learner, judge: SelfEvaluation
) -> Iterator[LocalActor]:
    """Open what plays episodes with the learner's weights as they are, in this process: the steps need no
    sampler, so it is there for an evaluation only."""
    config, asked = inputs.config.with_settings(rollout={"backend": "hf"}), judge.episodes_at_once
    records = ActorRecords(processes=learner.processes, on_part=inputs.watch.on_part)
    was_training = learner.model.training
    learner.model.eval()
    with _open_actor(inputs, config, loaded, learner, records=records, concurrency=asked) as actor:
        yield actor
    learner.model.train(was_training)
