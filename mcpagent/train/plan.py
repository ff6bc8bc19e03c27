"""What a run would do, computed without loading a model: `mcpagent train --dry-run`."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import torch

from mcpagent.config.checks import refused_on_cpu
from mcpagent.config.named_parts import is_built
from mcpagent.config.schema import MAX_PASS_TOKENS, TrainConfig
from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.architecture import Architecture, find_architecture
from mcpagent.models.load import (
    check_weights,
    refuse_missing_attention,
    require_4bit,
    resolve_device,
    resolve_dtype,
)
from mcpagent.models.out_of_memory import Phase, what_to_lower
from mcpagent.policy.backend import BackendChoice, choose_backend
from mcpagent.reward.terms import load_reward
from mcpagent.storage.datasets import TaskFile
from mcpagent.tools.setup import configured_servers
from mcpagent.train.forecast import (
    AIR,
    GIB,
    Forecast,
    ModelShape,
    checkpoint_bytes,
    forecast,
    pass_tokens,
    shape_of,
    trained_parameters,
)
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import refuse_sharding, sharding
from mcpagent.train.learner.zero3 import read_options
from mcpagent.train.load import refuse_untrained
from mcpagent.train.sampler import refuse_shared_engine, refuse_temperature
from mcpagent.train.settings import is_deterministic
from mcpagent.train.trackers import require_tracker

_CGROUP_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")


@dataclass(frozen=True, kw_only=True)
class TargetDevice:
    """The device that a run is to train on. `memory` is bytes, None if it is not known; `is_here` is False
    for a device that is planned for on a machine without it, so that what is installed says nothing."""

    kind: str  # cpu, cuda or mps
    memory: int | None
    is_here: bool = True


@dataclass(frozen=True, kw_only=True)
class Preflight:
    """A run that nothing forbids so far. `shape` is None if the model's configuration cannot be had, and
    then there is no forecast; `notes` are for the user."""

    target: TargetDevice
    dtype: torch.dtype
    backend: BackendChoice
    architecture: str
    shape: ModelShape | None
    forecast: Forecast | None
    notes: tuple[str, ...]
    pass_tokens: int = MAX_PASS_TOKENS  # of one forward and backward pass

    def settled(self, config: TrainConfig) -> TrainConfig:
        """Return the settings of the run with those that the machine decides: what a resumed run goes on
        with, and what config.yaml shows."""
        config = _with(config, "training.micro_batch_tokens", self.pass_tokens)
        return _with(config, "model.dtype", str(self.dtype).removeprefix("torch."))

    @property
    def fits(self) -> bool | None:
        """Return whether the forecast fits the device; None if either is not known."""
        if self.forecast is None or self.target.memory is None:
            return None
        return self.forecast.peak <= AIR * self.target.memory


def target_device(config: TrainConfig, *, gpu_memory_gib: float | None = None) -> TargetDevice:
    """Return the device that `device` names. With `gpu_memory_gib` (0: not known) one that need not be here:
    a plan's. Raises UserError if it is neither here nor planned for."""
    planned = None if not gpu_memory_gib else int(gpu_memory_gib * GIB)
    if planned is not None and config.device == "cpu":
        raise UserError(
            f"a plan for a GPU of {gpu_memory_gib:g} GiB was asked for, but device is cpu",
            where="device",
            remedy="--set device=cuda, or leave --gpu-memory out",
        )
    if gpu_memory_gib is not None and config.device != "cpu":
        kind = "cuda" if config.device == "auto" else config.device
        if not _is_here(kind):
            return TargetDevice(kind=kind, memory=planned, is_here=False)
    device = resolve_device(config.device)
    memory = planned if planned is not None and device.type != "cpu" else _memory_of(device)
    return TargetDevice(kind=device.type, memory=memory)


def check_run(config: TrainConfig, target: TargetDevice, *, count: int | None = None) -> Preflight:
    """Raise UserError for whatever would end the run before or at its start, as far as it can be told
    without the weights and without starting a server. `count` is the number of its processes; None: those
    that a launcher started."""
    device = torch.device(target.kind)
    count = count or int(os.environ.get("WORLD_SIZE", "1"))
    parallel = sharding(config, Processes(count=count))
    if parallel is not None:
        refuse_sharding(config, parallel=parallel, device=device)
    zero3 = _zero3_settings(config, device) if parallel == "zero3" else None
    notes: list[str] = []
    if parallel is not None and config.training.parallel == "auto":
        notes.append(f"training.parallel auto: {parallel}, as accelerate launch asks")
    if target.kind == "cpu" and (refused := refused_on_cpu(config)) is not None:
        raise UserError(refused.message, where=refused.keys[0])
    if config.finetune.mode == "qlora":
        require_4bit(device, is_here=target.is_here)
    refuse_missing_attention(config.model.attn_implementation or "", device, is_here=target.is_here)
    played = config if config.algorithm == "grpo" else _with(config, "rollout.backend", "hf")
    backend = choose_backend(played, device=target.kind, is_here=target.is_here)
    refuse_temperature(config, backend)
    if config.algorithm == "grpo" and backend.backend == "vllm":
        refuse_shared_engine(config, count=count)
    for tracker in config.tracking.backends:
        require_tracker(tracker)
    notes += load_reward(config.reward).notes()
    described, shape = _shape(config)
    dtype = resolve_dtype(config.model.dtype, device, width=None if shape is None else shape.hidden)
    architecture = described.source
    if not target.is_here:
        notes.append(
            f"planned for a machine with a {target.kind} device, which this one is not: which packages are "
            "installed there is not known"
        )
    if target.memory is None:
        notes.append("the device's memory is not known: --gpu-memory GIB names it, and the plan compares")
    if shape is None:
        notes.append(f"memory is not known: {architecture}")
        expected = None
    else:
        checkpoints = config.model.checkpoints_on(target.kind, can=shape.can_checkpoint)
        config = _with(config, "model.gradient_checkpointing", checkpoints)
        if target.kind == "cpu" and config.training.micro_batch_tokens is None:
            tokens = pass_tokens(config, shape, itemsize=dtype.itemsize)
            config = _with(config, "training.micro_batch_tokens", tokens)
        expected = forecast(
            config,
            shape,
            itemsize=dtype.itemsize,
            backend=backend.backend,
            device_bytes=target.memory,
            shards=shards_of(config, count) if parallel else 1,
            zero3=zero3,
            has_own_memory=target.kind != "cpu",
        )
    checked = Preflight(
        target=target,
        dtype=dtype,
        backend=backend,
        architecture=architecture,
        shape=shape,
        forecast=expected,
        notes=tuple(notes),
        pass_tokens=config.training.pass_tokens,
    )
    return replace(checked, notes=(*notes, *_memory_notes(config, checked)))


def _zero3_settings(config: TrainConfig, device: torch.device) -> JsonObject:
    """Return DeepSpeed's settings of ZeRO-3, but for the run's own settings. Raises UserError."""
    options = read_options(config.training.deepspeed_config, dtype=resolve_dtype(config.model.dtype, device))
    return options.get("zero_optimization", {})


def shards_of(config: TrainConfig, count: int) -> int:
    """Return how many of `count` processes hold the weights once between them, if they are sharded."""
    return min(config.training.shard_size or count, count)


def _is_here(kind: str) -> bool:
    return {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available(), "cpu": True}[kind]


def _memory_of(device: torch.device) -> int | None:
    if device.type == "cuda":
        return torch.cuda.mem_get_info(device)[1]
    if device.type == "mps":
        return torch.mps.recommended_max_memory()
    limits = [psutil.virtual_memory().total]
    for path in map(Path, _CGROUP_LIMITS):
        if path.is_file() and (text := path.read_text().strip()).isdigit():
            limits.append(int(text))
    return min(limits)


def _shape(config: TrainConfig) -> tuple[Architecture, ModelShape | None]:
    """The architecture and its shape. Raises UserError for what cannot be trained as it is
    asked for."""
    name = config.model.name
    if config.algorithm == "grpo":
        refuse_untrained(name)
    architecture = find_architecture(name, trust_remote_code=config.model.trust_remote_code)
    if architecture.config is None:
        return architecture, None
    if not is_built(name):
        check_weights(name, architecture.config)
    shape = shape_of(architecture.config.get_text_config(), config.lora, where=architecture.source)
    if config.finetune.mode != "full" and not shape.adapters:
        raise UserError(
            f"lora.target_modules {config.lora.target_modules} fits no layer of the model",
            where="lora.target_modules",
            remedy=f"use all-linear, or names among {', '.join(shape.linear_names)}",
        )
    if config.model.gradient_checkpointing and not shape.can_checkpoint:
        raise UserError(
            f"{shape.class_name} does not support gradient checkpointing",
            where="model.gradient_checkpointing",
            remedy="set it to false; training.micro_batch_tokens bounds the memory of activations too",
        )
    return architecture, shape


def _memory_notes(config: TrainConfig, checked: Preflight) -> Iterator[str]:
    """Yield how many episodes there is room for, and what to lower if the forecast is larger than the device.
    Raises UserError if nothing that a batch is made of can change it: the weights, their gradients and
    moments alone are too large."""
    expected = checked.forecast
    if expected is not None and expected.episodes < expected.asked and checked.fits:
        yield (
            f"{expected.episodes} of {expected.asked} episodes are played at once: so many have room for "
            "their whole context (rollout.num_envs, rollout.max_context_tokens)"
        )
    if checked.fits is not False:
        return
    assert checked.forecast is not None and checked.target.memory is not None
    has, wants = checked.target.memory / GIB, checked.forecast.peak / GIB
    if checked.forecast.fixed > checked.target.memory:
        raise UserError(
            f"the run holds {checked.forecast.fixed / GIB:.1f} GiB of weights, gradients and optimiser "
            f"state whatever its batches are, and the {checked.target.kind} device has {has:.1f} GiB",
            where="model.name",
            remedy=what_to_lower(config, "loading the model"),
        )
    parts = checked.forecast.parts
    largest = max(parts, key=lambda name: parts[name])
    phase = _PHASE_OF.get(largest, "loading the model")
    yield (
        f"memory: the forecast is {wants:.1f} GiB and the {checked.target.kind} device has {has:.1f} GiB, of "
        f"which {largest} would take {parts[largest] / GIB:.1f}; {what_to_lower(config, phase)}"
    )


# When a part of the forecast is made; the others are there from the beginning.
_PHASE_OF: Mapping[str, Phase] = {
    "kv_cache": "sampling episodes",
    "activations": "updating the weights",
    "logits": "updating the weights",
}


def _with(config: TrainConfig, key: str, value: Any) -> TrainConfig:
    section, _, name = key.partition(".")
    changed = getattr(config, section).model_copy(update={name: value})
    return config.model_copy(update={section: changed})


def plan(
    config: TrainConfig, checked: Preflight, tasks: TaskFile, *, validation: Path | None, run_dir: Path
) -> JsonObject:
    """Return the document of `train --dry-run --json` for a run that passed `check_run`; `validation` is the
    file that it evaluates on, if it does. Sizes (memory and checkpoints in GiB) are None if the model's
    configuration cannot be had; `memory_gib` is the peak of one process, with its engine of vLLM if it has
    one on the same device, and `fits` compares it with `device_memory_gib`. Raises UserError if the servers'
    file is wrong."""
    shape, target, expected = checked.shape, checked.target, checked.forecast
    is_grpo = config.algorithm == "grpo"
    steps = config.total_steps(n_tasks=len(tasks))
    updates = config.grpo.epochs_per_batch * config.grpo.minibatches if is_grpo else 1
    itemsize = checked.dtype.itemsize
    return {
        "algorithm": config.method,
        "model": config.model.name,
        "architecture": checked.architecture,
        "mode": config.finetune.mode,
        "device": target.kind,
        "device_memory_gib": None if target.memory is None else target.memory / GIB,
        "dtype": str(checked.dtype).removeprefix("torch."),
        "mixed_precision": config.training.mixed_precision,
        "backend": checked.backend.backend,
        "backend_reason": checked.backend.why,
        "deterministic": is_deterministic(torch.device(target.kind)),
        "steps": steps,
        "optimizer_steps": steps * updates,
        "tasks": len(tasks),
        "validation": str(validation or "none"),
        "episodes_per_step": config.training.batch_size * (config.rollout.group_size if is_grpo else 1),
        "servers": tuple(server.name for server in configured_servers(config.tools)),
        "parameters": shape.parameters if shape else None,
        "trained_parameters": trained_parameters(config, shape) if shape else None,
        "memory_gib": expected.peak / GIB if expected else None,
        "memory_gib_by_part": {name: size / GIB for name, size in expected.parts.items()}
        if expected
        else None,
        "fits": checked.fits,
        "checkpoint_gib": checkpoint_bytes(config, shape, itemsize=itemsize) / GIB if shape else None,
        "kept_checkpoints": config.training.keep_checkpoints or "all",
        "run_dir": str(run_dir),
        "notes": checked.notes,
    }
