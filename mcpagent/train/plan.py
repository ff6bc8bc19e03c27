"""What a run would do, computed without loading a model: `mcpagent train --dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

import torch

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.rollout.setup import chosen_servers
from mcpagent.storage.task_file import TaskFile
from mcpagent.train.forecast import checkpoint, trained_parameters
from mcpagent.train.preflight import Preflight
from mcpagent.train.setup import is_deterministic

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """Sizes of a run. Parameters, memory and checkpoints (GiB, each) are None where the model's configuration
    cannot be had. `memory_gib` is the peak of one process, with its engine of vLLM where it has one on the
    same device; `fits` compares it with `device_memory_gib`, and `notes` say what to lower."""

    algorithm: str
    model: str
    architecture: str
    mode: str
    device: str
    device_memory_gib: float | None
    dtype: str
    mixed_precision: str
    backend: str
    backend_reason: str
    deterministic: bool
    steps: int
    optimizer_steps: int
    tasks: int
    validation: str
    episodes_per_step: int
    servers: tuple[str, ...]
    parameters: int | None
    trained_parameters: int | None
    memory_gib: float | None
    memory_gib_by_part: dict[str, float] | None
    fits: bool | None
    checkpoint_gib: float | None
    kept_checkpoints: int | Literal["all"]
    run_dir: str
    notes: tuple[str, ...]

    def as_json(self) -> JsonObject:
        return asdict(self)


def plan(
    config: TrainConfig, checked: Preflight, tasks: TaskFile, *, validation: Path | None, run_dir: Path
) -> TrainPlan:
    """The plan of a run that passed `preflight.check`; `validation` is the file that it evaluates on, if it
    does. Raises UserError where the servers' file is wrong."""
    shape, target, expected = checked.shape, checked.target, checked.forecast
    is_grpo = config.algorithm == "grpo"
    steps = config.total_steps(n_tasks=len(tasks))
    updates = config.grpo.epochs_per_batch * config.grpo.minibatches if is_grpo else 1
    itemsize = checked.dtype.itemsize
    return TrainPlan(
        algorithm=config.method,
        model=config.model.name,
        architecture=checked.architecture,
        mode=config.finetune.mode,
        device=target.kind,
        device_memory_gib=None if target.memory is None else target.memory / _GIB,
        dtype=str(checked.dtype).removeprefix("torch."),
        mixed_precision=config.training.mixed_precision,
        backend=checked.backend.backend,
        backend_reason=checked.backend.why,
        deterministic=is_deterministic(config, torch.device(target.kind)),
        steps=steps,
        optimizer_steps=steps * updates,
        tasks=len(tasks),
        validation=str(validation or "none"),
        episodes_per_step=config.prompts_per_step * (config.rollout.group_size if is_grpo else 1),
        servers=tuple(server.name for server in chosen_servers(config.tools)),
        parameters=shape.parameters if shape else None,
        trained_parameters=trained_parameters(config, shape) if shape else None,
        memory_gib=expected.peak / _GIB if expected else None,
        memory_gib_by_part={name: size / _GIB for name, size in expected.parts.items()} if expected else None,
        fits=checked.fits,
        checkpoint_gib=checkpoint(config, shape, itemsize=itemsize) / _GIB if shape else None,
        kept_checkpoints=config.training.keep_checkpoints or "all",
        run_dir=str(run_dir),
        notes=checked.notes,
    )
