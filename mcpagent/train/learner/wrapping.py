"""How the weights lie on the processes of a run: whole in each of them, or in shards.

A wrapping is all that the update knows of this. Shards need every process at every pass, so that `agreed`
gives each the same number of micro-batches; they are read and written as whole tensors by name, one at a
time, so that a checkpoint says nothing of who wrote it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import torch
from safetensors.torch import save_file  # pyright: ignore[reportUnknownVariableType]
from torch import distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, OffloadPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor

from mcpagent.config.schema import TrainConfig
from mcpagent.errors import RunError, UserError
from mcpagent.models.adapters import causal_lm
from mcpagent.models.load import map_large_blocks, resolve_dtype, trim_heap
from mcpagent.models.weights import tensors_in
from mcpagent.policy.backend import choose_backend
from mcpagent.storage.packages import require
from mcpagent.train.batch.scoring import Batch
from mcpagent.train.learner.optim import Precision
from mcpagent.train.learner.processes import Processes

Source = Callable[[], torch.Tensor]  # gives a whole tensor, in the first process


class Wrapping:
    """The answers that the update, the checkpoint and the sampler need about how the weights lie. This one is
    of whole weights: every process holds all of them and adds up the gradients, once an optimiser step.
    Others answer the same questions for shards."""

    is_sharded = False

    def __init__(self, processes: Processes) -> None:
        self._processes = processes

    def prepare(
        self, scorer: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, limit: float
    ) -> nn.Module:
        """Return what to call in the place of a scorer whose weights the optimisers move, in steps of the
        norm `limit` at most: once, before the first pass."""
        return scorer

    def agreed(self, batches: Iterator[Batch], empty: Callable[[], Batch]) -> Iterator[Batch]:
        """Return micro-batches, of which shards need the same number in every process: one that has fewer
        gets `empty` ones."""
        return batches

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch."""
        loss.backward()

    def step(
        self,
        parameters: Sequence[nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        limit: float,
        precision: Precision,
    ) -> float | None:
        """Move the weights by the gradients of all processes, clipped to the norm `limit`. The norm before
        that, None if a gradient overflowed and nothing moved."""
        if not self.is_sharded:  # those of shards are the sums already
            self._processes.add_gradients(parameters)
        precision.unscale(optimizers)
        norm: Any = nn.utils.clip_grad_norm_(parameters, limit)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return float(norm) if precision.step(optimizers) else None

    @torch.no_grad()
    def gathered(self, tensors: Mapping[str, torch.Tensor], *, everywhere: bool = False) -> dict[str, Any]:
        """Return the whole of each tensor; shards are brought to the CPU of the first process alone, or
        `everywhere`, one after the other. Tensors that are one object stay one. Every process calls this."""
        if not self.is_sharded:
            return dict(tensors)
        keeps = everywhere or self._processes.is_first
        whole: dict[int, torch.Tensor] = {}
        for tensor in tensors.values():
            if id(tensor) not in whole:
                full = self._whole(tensor)
                whole[id(tensor)] = full.detach().cpu() if keeps else full.new_empty(0)
        return {name: whole[id(tensor)] for name, tensor in tensors.items()} if keeps else {}

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return all of a tensor of which this process holds a shard: every process calls this."""
        return tensor

    def put(self, tensor: torch.Tensor, source: Source) -> None:
        """Write what `source` gives into `tensor`; of shards, what it gives in the first process. Every
        process calls this. Raises RunError for another shape."""
        whole = source()
        if whole.shape != tensor.shape:
            raise RunError(
                f"the checkpoint does not fit: a tensor of shape {tuple(whole.shape)} stands where the run "
                f"has one of {tuple(tensor.shape)}",
                remedy="resume with the configuration that the run was started with",
            )
        tensor.copy_(whole)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return what this process holds of a tensor, to be read and written."""
        return tensor

    def copied(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
        """Return a copy that lies as the parameter does."""
        return parameter.detach().to(dtype, copy=True)

    def masters(self, trained: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor] | None:
        """Return the float32 weights that are kept next to the model's; None if they are still to be made."""
        return None

    def moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
        """Return what the optimiser keeps of a parameter: tensors that lie as it does, and scalars."""
        return optimizer.state.get(parameter, {})

    def new_moment(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, key: str) -> torch.Tensor:
        """Return the optimiser's tensor of that name for a parameter, to be written with `put`."""
        made = optimizer.state[parameter][key] = torch.zeros_like(parameter)
        return made

    def set_scalar(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, key: str, value: Any
    ) -> None:
        """Set what the optimiser keeps of a parameter under that name, if it is a scalar."""
        optimizer.state[parameter][key] = value

    def settle(self) -> None:
        """Give back what was gathered for a pass: the next one gathers what the shards hold then."""


class Fsdp(Wrapping):
    """FSDP2 (`torch.distributed.fsdp.fully_shard`): each process holds a row of every weight, of its gradient
    and moments, and gathers a layer while it is computed.

    Each decoder layer is a unit. The scorer is the root and not the model, since it calls trunk and head by
    themselves; so a tied head is gathered once.
    """

    is_sharded = True

    def __init__(
        self,
        processes: Processes,
        *,
        device: torch.device,
        shard_size: int | None = None,
        cpu_offload: bool = False,
    ) -> None:
        """Weights are spread over `shard_size` processes (None: over all) and repeated over groups of so
        many (HSDP). `cpu_offload` keeps shards and moments in the memory of the host."""
        super().__init__(processes)
        self._device = device
        size = shard_size or processes.count
        if size < processes.count:
            self.mesh = DeviceMesh.from_group(
                processes.split(size),
                device.type,
                mesh=torch.arange(processes.count).view(-1, size),
                mesh_dim_names=("replicate", "shard"),
            )
        else:
            self.mesh = init_device_mesh(device.type, (processes.count,), mesh_dim_names=("shard",))
        if device.type == "cpu":
            map_large_blocks()
        pin = device.type == "cuda"
        self._offload = CPUOffloadPolicy(pin_memory=pin) if cpu_offload else OffloadPolicy()
        self._home = torch.device("cpu") if cpu_offload else device
        self._units: list[FSDPModule] = []

    def wrap(self, scorer: Any) -> None:
        """Shard in place. Parameters on the meta device get memory for their shards, without values; those
        that have values, which are the same in every process, keep them."""
        parameters = dict(scorer.named_parameters())
        values = {n: p.detach() for n, p in parameters.items() if _has_values(p)}
        is_framed = len(values) < len(parameters)
        buffers = {n: b.detach() for n, b in scorer.named_buffers()}
        if is_framed:
            scorer.to("meta")
            causal_lm(scorer.model).tie_weights()
        for layer in causal_lm(scorer.model).get_decoder().layers:
            self._shard(layer)
        if scorer.value_head is not None:  # in float32, and the weights of a unit share one dtype
            self._shard(scorer.value_head)
        self._shard(scorer)
        units = [module for module in scorer.modules() if isinstance(module, FSDPModule)]
        self._units += units
        for unit in units:
            unit.set_gradient_divide_factor(1.0)  # losses are divided by the totals of all processes already
            if self._device.type == "cpu":
                unit.set_force_sum_reduction_for_comms(True)  # gloo cannot multiply while it sums
        if is_framed:
            scorer.to_empty(device=self._home)
            causal_lm(scorer.model).tie_weights()
            for name, buffer in buffers.items():
                module, _, key = name.rpartition(".")
                scorer.get_submodule(module).register_buffer(
                    key,
                    buffer.to(self._device),
                    persistent=name in scorer.state_dict(),
                )
            for name, parameter in scorer.named_parameters():
                if name in values:
                    self._keep(parameter, values[name])

    def _shard(self, module: nn.Module) -> None:
        fully_shard(module, mesh=self.mesh, offload_policy=self._offload)

    @torch.no_grad()
    def _keep(self, parameter: DTensor, whole: torch.Tensor) -> None:
        shard = distribute_tensor(whole.to(self._device), self.mesh, parameter.placements, src_data_rank=None)
        parameter.to_local().copy_(shard.to_local())

    def agreed(self, batches: Iterator[Batch], empty: Callable[[], Batch]) -> Iterator[Batch]:
        """Yield the batches of this process, then empty ones up to the largest number of any."""
        yield from padded_with_empty(batches, empty)

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        here = tensor.to(self._device)
        return here.full_tensor() if isinstance(here, DTensor) else here

    @torch.no_grad()
    def put(self, tensor: torch.Tensor, source: Source) -> None:
        """Scatter it from the first process."""
        if self._processes.is_first:
            whole = source().to(dtype=tensor.dtype, device=self._device)
        else:
            whole = torch.empty(tensor.shape, dtype=tensor.dtype, device=self._device)
        if isinstance(tensor, DTensor):
            shard = distribute_tensor(whole.contiguous(), self.mesh, tensor.placements)
            tensor.to_local().copy_(shard.to_local())
        else:
            distributed.broadcast(whole, src=0)
            tensor.copy_(whole)

    def local(self, tensor: torch.Tensor) -> torch.Tensor:
        """Return the shard of this process."""
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def settle(self) -> None:
        """The root keeps what it gathered for a pass without gradient, for a backward that does not come."""
        for unit in self._units:
            unit.reshard()
        if self._device.type == "cpu":
            trim_heap()


def padded_with_empty(batches: Iterator[Batch], empty: Callable[[], Batch]) -> list[Batch]:
    """Return the batches of this process, and empty ones up to the largest number of any: every process calls
    this."""
    here = list(batches)
    most = torch.tensor(len(here))
    distributed.all_reduce(most, op=distributed.ReduceOp.MAX)
    return here + [empty() for _ in range(int(most) - len(here))]


def _has_values(parameter: torch.Tensor) -> bool:
    """Return whether it has memory of its own for all places: see `models.load.empty_model`."""
    return not parameter.is_meta and parameter.untyped_storage().nbytes() >= parameter.nbytes


@torch.no_grad()
def put_stored(
    targets: Mapping[str, Any],
    stored: Mapping[str, Source] | None,
    *,
    wrapping: Wrapping,
    where: str,
) -> None:
    """Fill the `targets` of a state dict with what is stored under their names, of tied tensors under one of
    them; None in a process that need not read. Raises RunError if they do not fit."""
    names_of: dict[int, list[str]] = {}
    for name, tensor in targets.items():
        names_of.setdefault(id(tensor), []).append(name)
    if stored is not None:
        missing = [names[0] for names in names_of.values() if not stored.keys() & set(names)]
        unknown = stored.keys() - targets.keys()
        if missing or unknown:
            raise RunError(
                f"the checkpoint does not fit the model: {len(missing)} weights missing, "
                f"{len(unknown)} unknown",
                where=where,
            )
    for names in names_of.values():
        sources = [stored[name] for name in names if name in stored] if stored is not None else [_nothing]
        wrapping.put(targets[names[0]], sources[0])


def save_tensors(path: Path | None, tensors: Mapping[str, torch.Tensor], *, wrapping: Wrapping) -> None:
    """Write the whole of each tensor into a safetensors file. Every process calls this, those that do not
    write with None."""
    whole = wrapping.gathered(tensors)
    if path is not None:
        save_file({name: tensor.detach().cpu().contiguous() for name, tensor in whole.items()}, path)


@torch.no_grad()
def load_tensors(path: Path, tensors: Mapping[str, torch.Tensor], *, wrapping: Wrapping) -> None:
    """Put back what `save_tensors` wrote. Raises RunError if it does not fit."""
    saved = tensors_in(path)
    if saved.keys() != tensors.keys():
        raise RunError(
            f"the checkpoint's {path.stem} does not have the parameters that this run trains",
            where=str(path.parent),
            remedy="resume with the configuration that the run was started with",
        )
    for name, tensor in tensors.items():
        wrapping.put(tensor, saved[name])


def _nothing() -> torch.Tensor:
    raise AssertionError("only the first process reads")


Shards = Literal["fsdp", "zero3"]


def sharding(config: TrainConfig, processes: Processes) -> Shards | None:
    """Return how several processes share the weights; None if each holds all of them. `auto` is what the
    launcher asks for."""
    parallel = config.training.parallel
    if parallel == "auto" and os.environ.get("ACCELERATE_USE_DEEPSPEED") == "true":
        parallel = "zero3"
    if parallel == "auto":
        parallel = "fsdp" if os.environ.get("ACCELERATE_USE_FSDP") == "true" else "replicate"
    return None if parallel == "replicate" or processes.count == 1 else parallel


def refuse_sharding(config: TrainConfig, *, parallel: Shards, device: torch.device) -> None:
    """Raise UserError for what cannot be done with weights in shards, or not with what is installed."""
    where = "training.parallel"
    if config.finetune.mode == "qlora":
        raise UserError(
            "weights of 4 bits cannot be sharded",
            where=where,
            remedy="use training.parallel replicate, which sums the adapters' gradients, or "
            "--set finetune.mode=lora",
        )
    if config.training.mixed_precision == "fp16":
        raise UserError(
            "training.mixed_precision fp16 scales the loss by overflows, and these differ between shards",
            where="training.mixed_precision",
            remedy="use bf16, or training.parallel replicate",
        )
    if parallel == "zero3":
        _refuse_zero3(config, dtype=resolve_dtype(config.model.dtype, device))
    if config.algorithm != "grpo":
        return
    if choose_backend(config, device=device.type).backend == "hf":
        raise UserError(
            f"the hf backend samples with the trainer's own modules, which hold shards ({parallel})",
            where="rollout.backend",
            remedy="start vLLM servers and name them in vllm.servers, or use training.parallel replicate",
        )


def _refuse_zero3(config: TrainConfig, *, dtype: torch.dtype) -> None:
    has_value_head = config.algorithm == "grpo" and config.grpo.advantage == "gae"
    if has_value_head and dtype != torch.float32:
        name = str(dtype).removeprefix("torch.")
        raise UserError(
            f"the value head of grpo.advantage gae is float32 and the weights are {name}, but ZeRO-3 moves "
            "weights of one dtype only",
            where="model.dtype",
            remedy="use --set model.dtype=float32, or training.parallel fsdp",
        )
    if config.optimization.optimizer == "muon":
        raise UserError(
            "Muon orthogonalises whole matrices, and ZeRO-3 shows its optimiser nothing but flat stretches",
            where="optimization.optimizer",
            remedy="use adamw, or training.parallel fsdp",
        )
    if config.training.shard_size is not None:
        raise UserError(
            "ZeRO-3 spreads the weights over all processes",
            where="training.shard_size",
            remedy="leave it out, or use training.parallel fsdp",
        )
    require("deepspeed", use="training.parallel zero3")
