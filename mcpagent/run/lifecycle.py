"""A training run around its loop: where it is kept, who watches it, and how it ended."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import psutil

from mcpagent.config.loader import dump_config, load_train_config, public_settings
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.models.load import load_model, resolve_device, resolve_dtype
from mcpagent.reward.answer.verdict import GRADER
from mcpagent.reward.terms import grader_of
from mcpagent.run.self_evaluation import SelfEvaluation
from mcpagent.storage.checkpoints import last_good_checkpoint
from mcpagent.storage.datasets import TaskFile
from mcpagent.storage.lineage import standing_on
from mcpagent.storage.run_folder import RunFolder, RunLog, step_of
from mcpagent.storage.runs import RunSession, success_of
from mcpagent.tools.setup import Tools
from mcpagent.train.health import Callback, HealthMonitor
from mcpagent.train.learner.processes import Processes
from mcpagent.train.trackers import TrackedRun, Trackers, open_trackers

_FEW_STEPS = 40  # a run of so few steps that succeeds at nothing says nothing about the model


@dataclass(frozen=True, kw_only=True)
class Watch:
    """The functions that a run reports to while it goes on; every part may be left out. `on_folder` gets the
    run folder once that is settled, `on_start` the steps that are done already and those of the whole run,
    `on_part` how much is done of a part that takes long: episodes, an update, an evaluation, the
    demonstrations."""

    on_folder: Callable[[Path], None] = lambda _: None
    on_start: Callable[[int, int], None] = lambda _done, _total: None
    on_step: Callable[[JsonObject], None] = lambda _: None
    on_part: Callable[[str, int, int], None] = lambda _what, _done, _total: None
    note: Callable[[str], None] = lambda _: None


def logged(watch: Watch, log: RunLog) -> Watch:
    """Return what `watch` reports, in the run's log too."""

    def note(text: str) -> None:
        log.write(text)
        watch.note(text)

    def on_start(done: int, total: int) -> None:
        log.step = done
        log.write(f"begins after step {done} of {total}")
        watch.on_start(done, total)

    def on_step(record: JsonObject) -> None:
        log.step = record["step"]
        watch.on_step(record)

    return replace(watch, note=note, on_start=on_start, on_step=on_step)


@dataclass(frozen=True, kw_only=True)
class TrainOutcome:
    """The outcome of a run. `best_checkpoint` is the last one if nothing was evaluated; `success` is what
    `mcpagent runs` shows."""

    run_dir: Path
    steps: int
    best_checkpoint: Path
    last_checkpoint: Path
    metrics: JsonObject
    stop_reason: str
    success: float | None = None

    @property
    def advice(self) -> str | None:
        """Return what to do about a run that was too short to teach anything; None if it was not."""
        if self.success != 0.0 or self.steps >= _FEW_STEPS:
            return None
        return (
            f"nothing succeeds yet: {self.steps} steps show that the loop runs, and teach next to nothing. "
            "Leave training.max_steps out, or raise it and go on with --resume"
        )

    @property
    def is_ill(self) -> bool:
        """Return True if the health callback ended the run."""
        return self.stop_reason.startswith("health: ")


def outcome_of(run: RunFolder, steps: int, *, best_step: int | None, stop_reason: str) -> TrainOutcome:
    """Return how the run in this folder ended after `steps`."""
    last = run.checkpoint_dir(steps)
    metrics = run.metrics()
    return TrainOutcome(
        run_dir=run.path,
        steps=steps,
        best_checkpoint=last if best_step is None else run.checkpoint_dir(best_step),
        last_checkpoint=last,
        metrics=metrics[-1] if metrics else {},
        stop_reason=stop_reason,
        success=success_of(run)[0],
    )


def prove_checkpoints(outcome: TrainOutcome, config: TrainConfig, *, note: Callable[[str], None]) -> None:
    """Open the checkpoints that the run leaves as any command would, which scores their probes: on the CPU,
    since the device is still full of the run, or if weights of 4 bits were trained, on it. Raises UserError
    if one is not the model that was trained."""
    in_4bit = config.finetune.mode == "qlora"
    device = resolve_device(config.device if in_4bit else "cpu")
    for checkpoint in dict.fromkeys((outcome.best_checkpoint, outcome.last_checkpoint)):
        files = [file for part in standing_on(checkpoint) for file in part.glob("*.safetensors")]
        if sum(file.stat().st_size for file in files) > 0.5 * psutil.virtual_memory().available:
            note(f"{checkpoint.name} was not opened again to prove it: memory has no room for it and the run")
            continue
        load_model(
            str(checkpoint),
            dtype=resolve_dtype(config.model.dtype, resolve_device(config.device)),
            device=device,
            trust_remote_code=config.model.trust_remote_code,
            in_4bit=in_4bit,
            on_note=note,
        )


def health_callback(config: TrainConfig, run: RunFolder, watch: Watch) -> HealthMonitor | None:
    """Return what watches over the run, with all that it saw before a resume."""
    health = config.health
    if not health.enabled:
        return None
    callback = HealthMonitor(health.model_dump(exclude_none=True, exclude={"enabled"}), note=watch.note)
    callback.replay(run.metrics())
    return callback


def tracked(
    config: TrainConfig, run: RunFolder, step: int, watch: Watch, processes: Processes
) -> closing[Trackers]:
    """The trackers of the run, which goes on from `step`; closed at its end."""
    backends = config.tracking.backends if processes.is_first else ()
    return closing(open_trackers(backends, TrackedRun.of(config, run, begins_at=step), note=watch.note))


# Sections and keys that may change between the parts of a run: where it is kept, how long it goes on, who
# watches it, and what decides about memory alone.
_FREE = {
    *("output_dir", "name", "api", "budget", "health", "tracking", "vllm"),
    *("judge.check", "judge.min_kappa", "model.gradient_checkpointing", "rollout.num_envs"),
    *("training.max_steps", "training.max_epochs", "training.save_frequency", "training.keep_checkpoints"),
    *("training.patience", "training.eval_samples", "training.eval_tasks"),
    *("training.collective_timeout_s", "training.cpu_offload", "training.deepspeed_config"),
    *("training.micro_batch_tokens", "training.parallel", "training.shard_size"),
}


@dataclass(frozen=True, kw_only=True)
class RunInputs:
    """Everything that a run needs before weights are loaded. `validation` is empty if the run never
    evaluates, `judge` plays held-out tasks before and after training, None if there are none; `callbacks`
    watch the steps of GRPO; `session` is that of the process that writes."""

    config: TrainConfig
    tasks: TaskFile
    validation: Sequence[Task]
    judge: SelfEvaluation | None
    tools: Tools
    watch: Watch
    callbacks: Sequence[Callback]
    processes: Processes

    folder: Path
    session: RunSession | None
    resume: bool
    manifest: JsonObject
    beside: Collection[str]
    ledger: Path | None
    ledger_start: int

    def open_run(
        self, config: TrainConfig, restore: Callable[[Path], JsonObject], *, total_steps: int
    ) -> tuple[RunFolder, JsonObject]:
        """Return a new run folder with the settled `config`, or the old one rolled back to its last
        checkpoint with that checkpoint's state. The first process makes or rolls back the folder. Raises
        UserError if that checkpoint is damaged."""
        checkpoint = self.processes.broadcast_from_rank0(lambda: self._make_ready(config))
        if self.session is not None:
            self.session.begin(total_steps)
        return RunFolder.open(self.folder), restore(checkpoint) if checkpoint else {}

    def _make_ready(self, config: TrainConfig) -> Path | None:
        """Return the checkpoint that the run begins with, its folder made or rolled back."""
        if not self.resume:
            settings = dump_config(config)
            RunFolder.create(self.folder, config_yaml=settings, manifest=self.manifest, beside=self.beside)
            return None
        run = RunFolder.open(self.folder)
        check_same(config, run)
        check_same_grader(run)
        _check_same_reward(run.manifest, self.manifest, where=run.path / "manifest.json")
        checkpoint = last_good_checkpoint(run)
        run.truncate_after((step_of(checkpoint) or 0) if checkpoint else 0)
        return checkpoint


def check_same(config: TrainConfig, run: RunFolder) -> None:
    """Raise UserError if the run would not continue as it began; only its length may change."""
    began = load_train_config(inherited=run.config_path).config.model_dump()
    changed = [
        f"{section}.{key}" if key else section
        for section, now in public_settings(config).items()
        for key in (now if isinstance(now, dict) else [""])
        if (now[key] != began[section][key] if key else now != began[section])
        and not {section, f"{section}.{key}"} & _FREE
    ]
    if changed:
        raise UserError(
            f"the run was started with other settings of {', '.join(sorted(changed))}",
            where=str(run.config_path),
            remedy="resume with that file (--config), or start a new run under another name",
        )


def check_same_grader(run: RunFolder) -> None:
    """Raise UserError if the episodes of the run were graded by another version of the grader."""
    if (before := grader_of(run.manifest)) == GRADER:
        return
    raise UserError(
        f"the run began under grader {before} and this is grader {GRADER}, whose verdicts are others",
        where=f"{run.path / 'manifest.json'}: reward.grader",
        remedy="start a new run, from its weights if you like (--set model.name=RUN); grade the evaluations "
        f"of this one anew: mcpagent eval regrade {run.evaluations / 'NAME.json'} --out FILE.json",
    )


def _check_same_reward(began: JsonObject, now: JsonObject, *, where: Path) -> None:
    """The functions of `reward.terms` and the judge's prompt are those that the run began with: hashes say
    so."""
    if began.get("judge", {}).get("identity") != now.get("judge", {}).get("identity"):
        raise UserError(
            "this version of mcpagent asks a judge otherwise than the one that the run began with",
            where=f"{where}: judge",
            remedy="resume with that version, or start a new run under another name",
        )
    old, new = began["reward"]["terms"], now["reward"]["terms"]
    changed = [name for name, term in new.items() if old.get(name) != term]
    if changed:
        raise UserError(
            f"the file of the reward term {', '.join(changed)} is not what it was when the run began",
            where=f"{where}: reward.terms",
            remedy="bring that file back, or start a new run under another name",
        )
