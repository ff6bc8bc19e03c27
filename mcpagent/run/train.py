"""A training run from a configuration: fresh or resumed, GRPO or supervised."""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from mcpagent.config.loader import load_train_config
from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.seeds import derive_seed
from mcpagent.core.threads import limit_threads
from mcpagent.judge.tasks import judge_rules, require_judge_check
from mcpagent.models.out_of_memory import memory_reported
from mcpagent.reward.terms import load_reward
from mcpagent.run.algorithms import run_grpo, run_sft
from mcpagent.run.episodes import check_catalog, evaluated_file, open_tasks
from mcpagent.run.lifecycle import RunInputs, TrainOutcome, Watch, logged, prove_checkpoints
from mcpagent.run.policies import pinned_model
from mcpagent.run.self_evaluation import MeasuredTasks, SelfEvaluation, open_measured
from mcpagent.storage.checkpoints import find_model
from mcpagent.storage.datasets import TaskFile, find_dataset
from mcpagent.storage.lineage import model_identity
from mcpagent.storage.run_folder import RunFolder, run_log
from mcpagent.storage.runs import RunSession, last_run, new_session, planned_folder, run_session
from mcpagent.tools.setup import open_tools
from mcpagent.train.health import Callback
from mcpagent.train.learner.processes import Processes
from mcpagent.train.plan import Preflight, check_run, plan, target_device


def run_training(
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
    """Run `config` to its end, in `run_dir`, else `output_dir/name`; without a name a new run names itself.

    `resume` continues the run folder from its last complete checkpoint, with the configuration it was started
    with; without a name the last run of this algorithm that named itself. `ledger` is where the built-in
    servers count the calls they get; `ledger_start` bytes of it are older than this run. `beside` names what
    a new run folder may already hold; `callbacks` watch the steps of GRPO. Raises UserError before anything
    is written, InUseError if another process writes to the folder."""
    watch = watch or Watch()
    limit_threads()
    config = pinned_model(config, on_note=watch.note)
    # Nothing here draws from these two, but libraries may; torch is seeded with its model.
    random.seed(derive_seed(config.seed, "python"))
    np.random.seed(derive_seed(config.seed, "numpy") % 2**32)
    with memory_reported(config), ExitStack() as stack:
        ready = stack.enter_context(prepared(config))
        is_open = config.model.dtype == "auto"
        config = ready.checked.settled(config)
        tasks = ready.tasks
        measured = stack.enter_context(open_measured(config, n_tasks=len(tasks), on_note=watch.note))
        processes = Processes.join(
            torch.device(ready.checked.target.kind), timeout_s=config.training.collective_timeout_s
        )
        stack.enter_context(processes.failing_together())
        if not processes.is_first:
            watch = Watch()
        session = (
            stack.enter_context(open_session(config, run_dir, resume=resume, beside=beside))
            if processes.is_first
            else None
        )
        folder = processes.broadcast_from_rank0(lambda: session.folder if session else Path())
        if resume and is_open:
            began = load_train_config(inherited=RunFolder.open(folder).config_path).config
            config = config.with_settings(model={"dtype": began.model.dtype})
        watch.on_folder(folder)
        if processes.is_first:
            watch = logged(watch, stack.enter_context(run_log(folder)))
        config = config.model_copy(update={"output_dir": str(folder.parent), "name": folder.name})
        for note in ready.checked.notes:
            watch.note(note)
        tools = stack.enter_context(
            open_tools(
                config.tools,
                ledger=ledger,
                log_dir=folder / "logs" / processes.folder_name,
                on_note=watch.note,
            )
        )
        rules = judge_rules(config)
        document = {
            **(manifest or {}),
            "seed": config.seed,
            "data": {"train": str(tasks.path), "tasks": len(tasks), "sha256": tasks.sha256},
            **tools.as_json(),
            "reward": load_reward(config.reward).as_json(),
            **({} if rules is None else {"judge": rules.as_json()}),
            **({} if ready.judge_check is None else {"judge_check": ready.judge_check}),
            **_registered(config, measured),
        }
        if config.algorithm == "sft" and config.sft.curriculum is not None:
            document["curriculum"] = config.sft.curriculum
        check_catalog(tasks, tools.pool, on_change=config.tools.on_catalog_change, on_note=watch.note)
        judge = None
        if measured is not None:
            judge = SelfEvaluation(
                config=config,
                measured=measured,
                run=RunFolder(folder),
                tools=tools,
                processes=processes,
                note=watch.note,
            )
        inputs = RunInputs(
            config=config,
            tasks=tasks,
            validation=ready.validation or (),
            judge=judge,
            tools=tools,
            watch=watch,
            callbacks=callbacks,
            processes=processes,
            folder=folder,
            session=session,
            resume=resume,
            manifest=document,
            beside=beside,
            ledger=ledger,
            ledger_start=ledger_start,
        )
        outcome = run_sft(inputs) if config.algorithm == "sft" else run_grpo(inputs)
        processes.broadcast_from_rank0(lambda: prove_checkpoints(outcome, config, note=watch.note))
        if session is not None:
            session.end(outcome.stop_reason, has_failed=outcome.is_ill)
        return outcome


def _registered(config: TrainConfig, measured: MeasuredTasks | None) -> JsonObject:
    """Return what the run begins with and is to be judged on, as it stands before the first step."""
    facts: JsonObject = {}
    if not is_built(config.model.name) and (model := find_model(config.model.name)) is not None:
        facts["model"] = model_identity(model.path)
    if measured is not None:
        tasks = measured.tasks
        facts["heldout"] = {"path": str(tasks.path), "tasks": len(tasks), "sha256": tasks.sha256}
    return facts


def open_session(
    config: TrainConfig, run_dir: Path | None, *, resume: bool, beside: Collection[str]
) -> AbstractContextManager[RunSession]:
    """Lock the folder that the run is kept in, and how the run stands there."""
    parent, name = Path(config.output_dir), config.name
    if run_dir is not None:
        parent, name = run_dir.parent, run_dir.name
    if not resume:
        return new_session(parent, name, kind=config.method, beside=beside)
    folder = last_run(parent, kind=config.method) if name is None else parent / name
    return run_session(RunFolder.open(folder).path, kind=config.method)


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """Everything that a run needs other than servers and weights, all of it checked. `validation` is None if
    the run never evaluates."""

    tasks: TaskFile
    validation: TaskFile | None
    checked: Preflight
    judge_check: JsonObject | None


@contextmanager
def prepared(
    config: TrainConfig, *, gpu_memory_gib: float | None = None, count: int | None = None
) -> Iterator[Prepared]:
    """Check everything that a run and its dry run refuse alike: the data, the device, the model's
    architecture, what fits into each of `count` processes (None: those that a launcher started). Loads no
    weights, starts no server, writes nothing. Raises UserError."""
    target = target_device(config, gpu_memory_gib=gpu_memory_gib)
    with ExitStack() as stack:
        notes: list[str] = []
        train_file = find_dataset(config.data.train, split="train")
        tasks = stack.enter_context(open_tasks(config, train_file, on_note=notes.append))
        path = evaluated_file(config)
        validation = (
            None if path is None else stack.enter_context(open_tasks(config, path, on_note=notes.append))
        )
        checked = check_run(config, target, count=count)
        yield Prepared(
            tasks=tasks,
            validation=validation,
            checked=replace(checked, notes=(*checked.notes, *notes)),
            judge_check=require_judge_check(config, tasks) if config.algorithm == "grpo" else None,
        )


def plan_run(
    config: TrainConfig,
    *,
    gpu_memory_gib: float | None = None,
    count: int | None = None,
    on_note: Callable[[str], None] = lambda _: None,
) -> JsonObject:
    """Return what `run_training` would do in `count` processes, or what it would refuse (UserError): with
    `gpu_memory_gib`, 0 if it is not known, on GPUs that need not be here."""
    config = pinned_model(config, on_note=on_note)
    with prepared(config, gpu_memory_gib=gpu_memory_gib, count=count) as ready:
        return plan(
            config,
            ready.checked,
            ready.tasks,
            validation=None if ready.validation is None else ready.validation.path,
            run_dir=planned_folder(Path(config.output_dir), config.name),
        )
