"""What a run would do, computed without loading a model: `mcpagent train --dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.load import (
    load_config,
    refuse_missing_attention,
    require_4bit,
    resolve_dtype,
)
from mcpagent.policy.vllm_choice import choose_backend
from mcpagent.rollout.setup import chosen_servers
from mcpagent.storage.runs import planned_folder
from mcpagent.storage.task_file import TaskFile
from mcpagent.train.forecast import ModelShape, checkpoint, memory, shape_of, trained_parameters
from mcpagent.train.setup import is_deterministic, training_device

_GIB = 2**30


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """Sizes of a run. Parameters, memory and checkpoints (GiB, each) are None where the model's configuration
    cannot be read here. `memory_gib` is that of one process, without an engine of vLLM, which has its own."""

    algorithm: str
    model: str
    mode: str
    device: str
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
    checkpoint_gib: float | None
    kept_checkpoints: int | Literal["all"]
    run_dir: str

    def as_json(self) -> JsonObject:
        return asdict(self)


def plan(config: TrainConfig, tasks: TaskFile, *, validation: Path | None) -> TrainPlan:
    """Resolve the configuration against this machine and dataset; `validation` is the file that the run
    evaluates on, if it does. Raises UserError where it cannot run."""
    device = training_device(config)
    dtype = resolve_dtype(config.model.dtype, device)
    if config.finetune.mode == "qlora":
        require_4bit(device)
    refuse_missing_attention(config.model.attn_implementation or "", device)
    choice = choose_backend(
        config.rollout.backend if config.algorithm == "grpo" else "hf",
        is_lora=config.finetune.mode == "lora",
        has_gpu=device.type == "cuda",
        has_servers=bool(config.vllm.servers),
    )
    shape = _shape(config)
    parts = (
        memory(config, shape, itemsize=dtype.itemsize, samples_here=choice.backend == "hf") if shape else None
    )
    group = config.rollout.group_size if config.algorithm == "grpo" else 1
    steps = config.total_steps(n_tasks=len(tasks))
    updates = config.grpo.epochs_per_batch * config.grpo.minibatches if config.algorithm == "grpo" else 1
    return TrainPlan(
        algorithm=config.method,
        model=config.model.name,
        mode=config.finetune.mode,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        mixed_precision=config.training.mixed_precision,
        backend=choice.backend,
        backend_reason=choice.why,
        deterministic=is_deterministic(config, device),
        steps=steps,
        optimizer_steps=steps * updates,
        tasks=len(tasks),
        validation=str(validation or "none"),
        episodes_per_step=config.prompts_per_step * group,
        servers=tuple(server.name for server in chosen_servers(config.tools)),
        parameters=shape.parameters if shape else None,
        trained_parameters=trained_parameters(config, shape) if shape else None,
        memory_gib=sum(parts.values()) / _GIB if parts else None,
        memory_gib_by_part={name: size / _GIB for name, size in parts.items()} if parts else None,
        checkpoint_gib=checkpoint(config, shape, itemsize=dtype.itemsize) / _GIB if shape else None,
        kept_checkpoints=config.training.keep_checkpoints or "all",
        run_dir=str(planned_folder(Path(config.output_dir), config.name)),
    )


def _shape(config: TrainConfig) -> ModelShape | None:
    if config.model.name == "embedded":
        return None
    try:
        # A plan downloads nothing and waits for nobody.
        found = load_config(
            config.model.name, trust_remote_code=config.model.trust_remote_code, local_only=True
        )
    except UserError:
        return None  # not on this machine yet; the run itself will fetch it or tell
    return shape_of(found.get_text_config(), config.lora)
