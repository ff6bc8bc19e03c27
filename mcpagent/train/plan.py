"""What a run would do, computed without loading a model: `mcpagent train --dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.models.load import resolve_device, resolve_dtype
from mcpagent.rollout.setup import chosen_servers
from mcpagent.storage.task_file import TaskFile
from mcpagent.train.setup import is_deterministic

_GIB = 2**30
_STATE_BYTES = 8  # two float32 moments a trained parameter


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """Sizes of a run. Parameters and memory are None where the model's configuration cannot be read here."""

    algorithm: str
    model: str
    mode: str
    device: str
    dtype: str
    backend: str
    deterministic: bool
    steps: int
    tasks: int
    episodes_per_step: int
    servers: tuple[str, ...]
    parameters: int | None
    trained_parameters: int | None
    memory_gib: float | None
    run_dir: str

    def as_json(self) -> JsonObject:
        return asdict(self)


def plan(config: TrainConfig, tasks: TaskFile) -> TrainPlan:
    """Resolve the configuration against this machine and dataset. Raises UserError where it cannot run."""
    device = resolve_device(config.device)
    dtype = resolve_dtype(config.model.dtype, device)
    shape = _shape(config)
    group = config.rollout.group_size if config.algorithm == "grpo" else 1
    steps = config.training.total_steps(n_tasks=len(tasks))
    return TrainPlan(
        algorithm=config.algorithm,
        model=config.model.name,
        mode=config.finetune.mode,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        backend="hf",
        deterministic=is_deterministic(config, device),
        steps=steps + (config.sft.copy_steps if config.algorithm == "sft" else 0),
        tasks=len(tasks),
        episodes_per_step=config.training.batch_size * group,
        servers=tuple(server.name for server in chosen_servers(config.tools)),
        parameters=shape.parameters if shape else None,
        trained_parameters=shape.trained if shape else None,
        memory_gib=_memory(config, shape, dtype.itemsize) / _GIB if shape else None,
        run_dir=str(Path(config.output_dir) / config.name),
    )


@dataclass(frozen=True)
class _Shape:
    parameters: int
    trained: int
    cache_elements_per_token: int
    vocabulary: int


def _shape(config: TrainConfig) -> _Shape | None:
    """Counted on the meta device: the architecture is built, no weight exists."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    if config.model.name == "embedded":
        return None
    try:
        shape = AutoConfig.from_pretrained(
            config.model.name,
            trust_remote_code=config.model.trust_remote_code,
            local_files_only=True,  # a plan downloads nothing and waits for nobody
        ).get_text_config()
    except (OSError, ValueError):
        return None  # not on this machine yet; the run itself will fetch it or tell
    with torch.device("meta"):
        model = AutoModelForCausalLM.from_config(shape)
    parameters = sum(p.numel() for p in model.parameters())
    linear = [m for m in model.get_decoder().modules() if isinstance(m, torch.nn.Linear)]
    adapters = sum((m.in_features + m.out_features) * config.lora.r for m in linear)
    heads = shape.num_key_value_heads or shape.num_attention_heads
    head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return _Shape(
        parameters=parameters,
        trained=adapters if config.finetune.mode == "lora" else parameters,
        cache_elements_per_token=2 * shape.num_hidden_layers * heads * head_dim,
        vocabulary=shape.vocab_size,
    )


def _memory(config: TrainConfig, shape: _Shape, itemsize: int) -> float:
    """Bytes of weights, a merged sampling copy or reference, gradients, moments, cache and a logits chunk;
    the activations of a micro-batch come on top."""
    copies = 2 if config.algorithm == "grpo" else 1
    context = config.rollout.max_context_tokens or 2048
    episodes = min(config.rollout.num_envs, config.training.batch_size * config.rollout.group_size)
    cache = episodes * context * shape.cache_elements_per_token * itemsize
    logits = min(2**25, config.training.micro_batch_tokens * shape.vocabulary) * 4 * 3
    weights = copies * shape.parameters * itemsize
    return weights + shape.trained * (itemsize + _STATE_BYTES) + cache + logits
