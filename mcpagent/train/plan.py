"""What a run would do, computed without loading a model: `mcpagent train --dry-run`."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal

from mcpagent.config.schema import TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.models.load import (
    refuse_missing_attention,
    require_4bit,
    resolve_device,
    resolve_dtype,
)
from mcpagent.policy.vllm_choice import choose_backend
from mcpagent.rollout.setup import chosen_servers
from mcpagent.storage.task_file import TaskFile
from mcpagent.train.setup import is_deterministic

_GIB = 2**30
_MOMENT_BYTES = 8  # two float32 moments a trained parameter
_4BIT_BYTES = 0.5 + 4 / 64  # half a byte a weight, and a float32 scale for each block of 64


@dataclass(frozen=True, kw_only=True)
class TrainPlan:
    """Sizes of a run. Parameters, memory and checkpoints (GiB, each) are None where the model's configuration
    cannot be read here. `memory_gib` leaves out activations, and an engine of vLLM, which has its own."""

    algorithm: str
    model: str
    mode: str
    device: str
    dtype: str
    backend: str
    backend_reason: str
    deterministic: bool
    steps: int
    optimizer_steps: int
    tasks: int
    episodes_per_step: int
    servers: tuple[str, ...]
    parameters: int | None
    trained_parameters: int | None
    memory_gib: float | None
    checkpoint_gib: float | None
    kept_checkpoints: int | Literal["all"]
    run_dir: str

    def as_json(self) -> JsonObject:
        return asdict(self)


def plan(config: TrainConfig, tasks: TaskFile) -> TrainPlan:
    """Resolve the configuration against this machine and dataset. Raises UserError where it cannot run."""
    device = resolve_device(config.device)
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
    group = config.rollout.group_size if config.algorithm == "grpo" else 1
    copying = config.sft.copy_steps if config.algorithm == "sft" else 0
    steps = config.training.total_steps(n_tasks=len(tasks)) + copying
    updates = config.grpo.epochs_per_batch * config.grpo.minibatches if config.algorithm == "grpo" else 1
    gib = _sizes(config, shape, dtype.itemsize, samples_here=choice.backend == "hf") if shape else None
    return TrainPlan(
        algorithm=config.algorithm,
        model=config.model.name,
        mode=config.finetune.mode,
        device=str(device),
        dtype=str(dtype).removeprefix("torch."),
        backend=choice.backend,
        backend_reason=choice.why,
        deterministic=is_deterministic(config, device),
        steps=steps,
        optimizer_steps=steps * updates,
        tasks=len(tasks),
        episodes_per_step=config.training.batch_size * group,
        servers=tuple(server.name for server in chosen_servers(config.tools)),
        parameters=shape.parameters if shape else None,
        trained_parameters=shape.trained if shape else None,
        memory_gib=gib.memory if gib else None,
        checkpoint_gib=gib.checkpoint if gib else None,
        kept_checkpoints=config.training.keep_checkpoints or "all",
        run_dir=str(Path(config.output_dir) / config.name),
    )


@dataclass(frozen=True)
class _Shape:
    parameters: int
    trained: int
    linear: int  # those inside the network: what 4 bits are for
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
    linear = {n: m for n, m in model.get_decoder().named_modules() if isinstance(m, torch.nn.Linear)}
    chosen = config.lora.target_modules
    adapted = [m for n, m in linear.items() if chosen == "all-linear" or n.rpartition(".")[2] in chosen]
    adapters = sum((m.in_features + m.out_features) * config.lora.r for m in adapted)
    heads = shape.num_key_value_heads or shape.num_attention_heads
    head_dim = getattr(shape, "head_dim", None) or shape.hidden_size // shape.num_attention_heads
    return _Shape(
        parameters=parameters,
        trained=parameters if config.finetune.mode == "full" else adapters,
        linear=sum(m.weight.numel() for m in linear.values()),
        cache_elements_per_token=2 * shape.num_hidden_layers * heads * head_dim,
        vocabulary=shape.vocab_size,
    )


@dataclass(frozen=True)
class _Sizes:
    """In GiB."""

    memory: float
    checkpoint: float


def _sizes(config: TrainConfig, shape: _Shape, itemsize: int, *, samples_here: bool) -> _Sizes:
    """Memory of weights, their second copy, gradients, moments, cache and a logits chunk; the activations of
    a micro-batch come on top."""
    mode = config.finetune.mode
    is_grpo = config.algorithm == "grpo"
    weights = float(shape.parameters * itemsize)
    if mode == "qlora":
        weights -= shape.linear * (itemsize - _4BIT_BYTES)
    # With adapters it is the merged copy that samples, with all weights it is the reference.
    is_doubled = samples_here if mode == "lora" else mode == "full" and config.grpo.reference != "none"
    if is_grpo and is_doubled:
        weights += shape.parameters * itemsize
    own = itemsize if mode == "full" else 4  # adapters are float32
    trained = shape.trained * (own + _MOMENT_BYTES) + (0 if mode == "full" else shape.trained * own)
    context = config.rollout.max_context_tokens or 2048
    episodes = min(config.rollout.num_envs, config.training.batch_size * config.rollout.group_size)
    cache = episodes * context * shape.cache_elements_per_token * itemsize if is_grpo and samples_here else 0
    logits = min(2**25, config.training.micro_batch_tokens * shape.vocabulary) * 4 * 3
    return _Sizes(
        memory=(weights + trained + cache + logits) / _GIB,
        checkpoint=shape.trained * (own + _MOMENT_BYTES) / _GIB,
    )
