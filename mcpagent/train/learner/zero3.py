"""Weights in shards by DeepSpeed's ZeRO-3, the `wrapping.Wrapping` for memory beyond the devices'.

Each process holds a stretch of every flattened weight. DeepSpeed gathers a module's weights while it
computes, sums and scatters gradients as they come, and moves its stretches by the run's own optimiser, which
sees nothing but flat vectors. What is saved is whole tensors by name, as everywhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from math import isinf
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.models.adapters import causal_lm
from mcpagent.models.load import map_large_blocks
from mcpagent.train.batch.scoring import Batch
from mcpagent.train.forecast import ZERO3_BUCKET
from mcpagent.train.learner.optim import Precision
from mcpagent.train.learner.processes import Processes
from mcpagent.train.learner.wrapping import Source, Wrapping, padded_with_empty

_OWNER = "zero3_owner"  # of a stretch of a moment or of a float32 weight: the parameter that it belongs to
# What the run decides and no file may contradict: DeepSpeed's key, the setting of the run.
_DECIDED = {
    "train_batch_size": "training.batch_size",
    "train_micro_batch_size_per_gpu": "training.micro_batch_tokens",
    "gradient_accumulation_steps": "training.micro_batch_tokens",
    "gradient_clipping": "optimization.gradient_clip",
    "optimizer": "the section optimization",
    "scheduler": "the sections optimization and training",
    "amp": "training.mixed_precision",
    "torch_autocast": "training.mixed_precision",
}


class Zero3(Wrapping):
    """`wrap` makes stretches of the weights of a model, `prepare` hands them and the optimiser to DeepSpeed.

    Weights may be bfloat16; DeepSpeed then keeps float32 ones, which the optimiser moves. Sums of gradients
    are float32 in any case, on the way between processes too.
    """

    is_sharded = True

    def __init__(
        self,
        processes: Processes,
        *,
        device: torch.device,
        cpu_offload: bool = False,
        deepspeed_config: str | None = None,
    ) -> None:
        """`cpu_offload` keeps weights and moments in the memory of the host; `deepspeed_config` is a file of
        DeepSpeed's own settings, see `read_options`."""
        super().__init__(processes)
        self._device, self._file = device, deepspeed_config
        self._cpu_offload = cpu_offload
        self._deepspeed = _open(processes, device)
        if device.type == "cpu":
            map_large_blocks()
        self._engine: Any = None

    def wrap(self, scorer: Any) -> None:
        """Make stretches of the weights, in place and one weight at a time. Those without values (see
        `models.load.empty_model`) get memory for them alone; of the others the first process's count."""
        dtype = next(scorer.parameters()).dtype
        config = self._config(limit=float("inf"), dtype=dtype)
        convert: Any = None
        for parameter in scorer.parameters():
            parameter.data = parameter.data.to(self._device).contiguous()
            if convert is None:
                alone = nn.Module()
                alone.weight = parameter
                self._deepspeed.zero.Init(module=alone, config_dict_or_path=config, dtype=dtype)
                convert = parameter.convert_to_zero_parameters
            else:
                convert(param_list=[parameter])
        for module in scorer.modules():
            for name, buffer in module.named_buffers(recurse=False):
                setattr(module, name, buffer.to(self._device))
        self._hold_head(scorer)

    def _hold_head(self, scorer: Any) -> None:
        """Gather the output head with the scorer, once for all chunks of logits: every process must make the
        same calls of modules with hooks. Raises UserError for a head that is made of modules itself."""
        head = causal_lm(scorer.model).get_output_embeddings()
        if any(head.children()):
            raise UserError(
                "ZeRO-3 cannot train adapters of the output head",
                where="lora.target_modules",
                remedy="leave the head out, or use training.parallel fsdp",
            )
        scorer.holds_head = True
        for parameter in head.parameters():
            self._deepspeed.zero.register_external_parameter(scorer, parameter)

    def prepare(
        self, scorer: nn.Module, optimizers: Sequence[torch.optim.Optimizer], *, limit: float
    ) -> nn.Module:
        """Return what to call in the scorer's place; steps are clipped to the norm `limit`."""
        (optimizer,) = optimizers
        dtype = optimizer.param_groups[0]["params"][0].dtype
        config = self._config(limit=limit, dtype=dtype)
        self._engine, *_ = self._deepspeed.initialize(model=scorer, optimizer=optimizer, config=config)
        return self._engine

    def _config(self, *, limit: float, dtype: torch.dtype) -> JsonObject:
        """DeepSpeed's configuration: what its file says, and what the run decides."""
        on_host = {"device": "cpu", "pin_memory": self._device.type == "cuda"}
        offload = {"offload_optimizer": on_host, "offload_param": on_host} if self._cpu_offload else {}
        options = read_options(self._file, dtype=dtype)
        zero = {"reduce_bucket_size": ZERO3_BUCKET, **options.get("zero_optimization", {}), **offload}
        return {
            "communication_data_type": "fp32",
            "data_types": {"grad_accum_dtype": "fp32"},
            **options,
            "train_micro_batch_size_per_gpu": 1,  # counts nothing here: losses are divided by their totals
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 0.0 if isinf(limit) else limit,
            "bf16": {"enabled": dtype == torch.bfloat16},
            "zero_allow_untested_optimizer": True,
            "zero_force_ds_cpu_optimizer": False,  # torch's AdamW runs on CPUs, and compiles nothing
            "zero_optimization": {**zero, "stage": 3},
        }

    def agreed(self, batches: Iterator[Batch], empty: Callable[[], Batch]) -> Iterator[Batch]:
        """Yield the batches of this process, then empty ones up to the largest number of any."""
        here = padded_with_empty(batches, empty)
        for place, batch in enumerate(here, start=1):
            self._engine.set_gradient_accumulation_boundary(place == len(here))
            yield batch

    def backward(self, loss: torch.Tensor) -> None:
        """Add the gradient of one micro-batch, summed over the processes as it comes."""
        self._engine.backward(loss * self._processes.count)  # DeepSpeed takes means over them

    def step(
        self,
        parameters: Sequence[nn.Parameter],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        limit: float,
        precision: Precision,
    ) -> float | None:
        """Clip, move; None if a gradient is no number, and then nothing moved."""
        self._engine.step()
        return float(self._engine.get_global_grad_norm()) if self._engine.was_step_applied() else None

    def _whole(self, tensor: torch.Tensor) -> torch.Tensor:
        owner = _owner(tensor)
        if owner is None:
            return tensor
        stretch = self.local(tensor).to(self._device)
        full = stretch.new_empty(self._processes.count * stretch.numel())
        distributed.all_gather_into_tensor(full, stretch)
        return full[: owner.ds_numel].view(owner.ds_shape).clone()

    @torch.no_grad()
    def put(self, tensor: torch.Tensor, source: Source) -> None:
        """Send it from the first process; each keeps its stretch."""
        owner = _owner(tensor)
        shape = tensor.shape if owner is None else owner.ds_shape
        if self._processes.is_first:
            whole = source().to(dtype=tensor.dtype, device=self._device).contiguous()
        else:
            whole = torch.empty(shape, dtype=tensor.dtype, device=self._device)
        distributed.broadcast(whole, src=0)
        if owner is None:
            tensor.copy_(whole)
            return
        for stretch in (self.local(tensor), self._master(tensor)):
            if stretch is not None:
                start = self._processes.index * stretch.numel()
                part = whole.flatten()[start : start + stretch.numel()]
                stretch[: len(part)].copy_(part)  # the last stretch may be longer than what is left

    def local(self, tensor: Any) -> torch.Tensor:
        """Return the stretch of this process."""
        return tensor.ds_tensor if hasattr(tensor, "ds_tensor") else tensor

    def copied(self, parameter: nn.Parameter, dtype: torch.dtype) -> torch.Tensor:
        """Return a stretch for itself."""
        return _owned(self.local(parameter).detach().to(dtype, copy=True), parameter)

    def masters(self, trained: Mapping[str, nn.Parameter]) -> dict[str, torch.Tensor]:
        """Return the float32 stretches that DeepSpeed keeps of weights in half precision."""
        return {n: m for n, p in trained.items() if (m := self._master(p)) is not None}

    def moments(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter) -> dict[str, Any]:
        """Return those of its stretch."""
        flat, place = self._place(parameter)
        return {
            # One step counter for all that lie in a vector, and a file holds no tensor twice.
            key: _owned(value[place], parameter) if value.shape else value.clone()
            for key, value in optimizer.state.get(flat, {}).items()
        }

    def new_moment(self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, key: str) -> torch.Tensor:
        """Return the place of its stretch in that of all parameters."""
        flat, place = self._place(parameter)
        state = optimizer.state[flat]
        if key not in state:
            state[key] = torch.zeros_like(flat)
        return _owned(state[key][place], parameter)

    def set_scalar(
        self, optimizer: torch.optim.Optimizer, parameter: nn.Parameter, key: str, value: Any
    ) -> None:
        """Set it for all parameters that lie in one vector: they have made the same steps."""
        flat, _ = self._place(parameter)
        if isinstance(value, torch.Tensor) and optimizer.defaults.get("fused"):
            value = value.to(flat.device)
        optimizer.state[flat][key] = value

    def _master(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """Return the tensor that the optimiser moves for a weight; None if it moves none."""
        if self._engine is None or not (hasattr(tensor, "ds_tensor") and tensor.requires_grad):
            return None
        flat, place = self._place(tensor)
        return _owned(flat.detach()[place], tensor)

    def _place(self, parameter: Any) -> tuple[torch.Tensor, slice]:
        """Return the vector of a trained parameter's group, and the stretch of the parameter in it."""
        zero = self._engine.optimizer
        group, start, count = zero.grad_position[zero.get_param_id(parameter)]
        return zero.fp32_partitioned_groups_flat[group], slice(start, start + count)

    def settle(self) -> None:
        """Small weights, and those of a pass that was not followed by another, stay gathered."""
        self._engine.optimizer.parameter_offload.partition_all_parameters()


def _owner(tensor: Any) -> Any:
    return tensor if hasattr(tensor, "ds_tensor") else getattr(tensor, _OWNER, None)


def _owned(stretch: torch.Tensor, parameter: Any) -> torch.Tensor:
    setattr(stretch, _OWNER, parameter)
    return stretch


def _open(processes: Processes, device: torch.device) -> Any:
    """The package, on the process group that is there already."""
    if device.type == "cpu":
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed
    from deepspeed.utils import groups, logger

    logger.handlers.clear()  # they write to stdout, which is the result's
    logger.propagate = True
    # Nothing is compiled: gloo does what a library of DeepSpeed's own would do between processes on CPUs.
    setattr(deepspeed.ops, "__compatible_ops__", {})  # noqa: B010
    deepspeed.init_distributed()
    if groups._WORLD_GROUP is None:
        # DeepSpeed's own would let collectives wait for half an hour.
        groups._WORLD_GROUP = distributed.new_group(timeout=processes.timeout)
    return deepspeed


def read_options(file: str | None, *, dtype: torch.dtype) -> JsonObject:
    """DeepSpeed's settings from its JSON file, else from what `accelerate launch` was told; "auto" is the
    run's to say. Raises UserError for what contradicts the run, whose weights have the `dtype`."""
    file = file or os.environ.get("ACCELERATE_DEEPSPEED_CONFIG_FILE")
    if file is None:
        options, where = _of_accelerate(), "accelerate launch"
    else:
        options, where = _of_file(Path(file)), file
    stage = options.get("zero_optimization", {}).get("stage", 3)
    is_half = options.get("bf16", {}).get("enabled")
    wrong = [
        f"{key} is not DeepSpeed's to say: {_DECIDED[key]} decides it" for key in options if key in _DECIDED
    ]
    if stage != 3:
        wrong.append(f"zero_optimization.stage is {stage}, and only stage 3 has shards of the weights")
    if options.get("fp16", {}).get("enabled"):
        wrong.append("fp16 scales the loss by overflows, and these differ between shards")
    if is_half is not None and is_half != (dtype == torch.bfloat16):
        name = str(dtype).removeprefix("torch.")
        wrong.append(f"bf16.enabled is {str(is_half).lower()}, but model.dtype makes the weights {name}")
    if wrong:
        raise UserError(
            "; ".join(wrong), where=where, remedy='write "auto" for what the run decides, or leave it out'
        )
    return options


def _of_file(path: Path) -> JsonObject:
    try:
        options = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(
            f"the DeepSpeed configuration cannot be read: {error}",
            where=str(path),
            remedy="name a JSON file, such as configs/deepspeed/zero3.json",
        ) from error
    if not isinstance(options, dict):
        raise UserError("a DeepSpeed configuration is a JSON object", where=str(path))
    return _without_auto(options)


def _of_accelerate() -> JsonObject:
    """Return what accelerate's own configuration file says of ZeRO, if it started the run."""
    zero: JsonObject = {"stage": int(os.environ.get("ACCELERATE_DEEPSPEED_ZERO_STAGE", "3"))}
    for part in ("optimizer", "param"):
        device = os.environ.get(f"ACCELERATE_DEEPSPEED_OFFLOAD_{part.upper()}_DEVICE", "none")
        if device != "none":
            zero[f"offload_{part}"] = {"device": device}
    return {"zero_optimization": zero}


def _without_auto(value: Any) -> Any:
    if isinstance(value, dict):
        return {k: _without_auto(v) for k, v in value.items() if v != "auto"}
    return value
