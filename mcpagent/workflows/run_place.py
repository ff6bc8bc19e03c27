"""Where a training run is kept: a new folder, or an old one rolled back to its last checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from pathlib import Path

from mcpagent.config.loader import dump_config, load_train_config, public_settings
from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import last_good_checkpoint
from mcpagent.storage.run_folder import RunFolder, step_of
from mcpagent.storage.runs import RunSession
from mcpagent.train.processes import Processes

# What may change between the parts of a run: where it is kept, how long it goes on, who watches it, and what
# decides about memory alone.
_FREE_SECTIONS = {"output_dir", "name", "budget", "health", "tracking", "vllm"}
_FREE_KEYS = {"model.gradient_checkpointing", "rollout.num_envs", "training.micro_batch_tokens"}
_FREE_TRAINING = {
    "max_steps",
    "max_epochs",
    "steps_per_epoch",
    "save_frequency",
    "keep_checkpoints",
    "patience",
    "eval_samples",
}


@dataclass(frozen=True, kw_only=True)
class RunPlace:
    """Where a run is kept and what it starts from."""

    folder: Path
    session: RunSession | None  # of the process that writes
    resume: bool
    manifest: JsonObject
    beside: Collection[str]
    ledger: Path | None
    ledger_start: int
    processes: Processes


def open_run(
    config: TrainConfig, place: RunPlace, restore: Callable[[Path], JsonObject], *, total_steps: int
) -> tuple[RunFolder, JsonObject]:
    """A new run folder, or the old one rolled back to its last checkpoint with that checkpoint's state.
    The first process makes or rolls back the folder. Raises UserError where that checkpoint is damaged."""
    checkpoint = place.processes.from_first(lambda: _make_ready(config, place))
    if place.session is not None:
        place.session.begin(total_steps)
    return RunFolder.open(place.folder), restore(checkpoint) if checkpoint else {}


def _make_ready(config: TrainConfig, place: RunPlace) -> Path | None:
    """The folder as the run is to find it, and the checkpoint that the run begins with."""
    if not place.resume:
        RunFolder.create(
            place.folder, config_yaml=dump_config(config), manifest=place.manifest, beside=place.beside
        )
        return None
    run = RunFolder.open(place.folder)
    _check_same(config, run)
    checkpoint = last_good_checkpoint(run)
    run.truncate_after((step_of(checkpoint) or 0) if checkpoint else 0)
    return checkpoint


def _check_same(config: TrainConfig, run: RunFolder) -> None:
    """A run continues as it began; only its length may change."""
    began = load_train_config([run.config_path]).config.model_dump()
    now = public_settings(config)
    changed = [
        f"{section}.{key}" if key else section
        for section in now.keys() - _FREE_SECTIONS
        for key in (now[section] if isinstance(now[section], dict) else [""])
        if (now[section][key] != began[section][key] if key else now[section] != began[section])
        and not (section == "training" and key in _FREE_TRAINING)
        and f"{section}.{key}" not in _FREE_KEYS
    ]
    if changed:
        raise UserError(
            f"the run was started with other settings of {', '.join(sorted(changed))}",
            where=str(run.config_path),
            remedy="resume with that file (--config), or start a new run under another name",
        )
