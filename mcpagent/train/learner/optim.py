"""Optimisers, their float32 master weights, learning-rate schedules, and the precision of computation."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.optim._muon import _adjust_lr

from mcpagent.train.objective.value import VALUE_HEAD

_LEAST_RATE = 0.05  # of the learning rate, at the end of its decay
_NO_MUON = ("embed", "lm_head", VALUE_HEAD)  # names of matrices that are not linear maps inside the network


def build_optimizers(
    named: Iterable[tuple[str, nn.Parameter]],
    *,
    kind: str,
    learning_rate: float,
    muon_learning_rate: float = 0.02,
    betas: tuple[float, float],
    weight_decay: float,
    value_learning_rate: float | None = None,
) -> list[torch.optim.Optimizer]:
    """`adamw`: one AdamW. `muon`: Muon (Keller Jordan 2024) on the weight matrices inside the network, AdamW
    on embeddings, heads, norms and biases, which are not the linear maps that Muon is for. A value head has
    its own `value_learning_rate`, if one is given."""
    trainable = [(n, p) for n, p in named if p.requires_grad]
    adamw: dict[str, Any] = {
        "lr": learning_rate,
        "betas": betas,
        "weight_decay": weight_decay,
        # One kernel for all tensors on CUDA; elsewhere a few for lists of them.
        **({"fused": True} if any(p.is_cuda for _, p in trainable) else {"foreach": True}),
    }
    if kind == "adamw":
        return [torch.optim.AdamW(_groups(trainable, value_learning_rate), **adamw)]
    matrices = [p for n, p in trainable if p.ndim == 2 and not any(part in n for part in _NO_MUON)]
    matrix_ids = {id(p) for p in matrices}
    rest = [(n, p) for n, p in trainable if id(p) not in matrix_ids]
    optimizers: list[torch.optim.Optimizer] = []
    if matrices:
        muon = BatchedMuon(matrices, lr=muon_learning_rate, momentum=0.95, weight_decay=weight_decay)
        optimizers.append(muon)
    if rest:  # adapters alone are all matrices
        optimizers.append(torch.optim.AdamW(_groups(rest, value_learning_rate), **adamw))
    return optimizers


class BatchedMuon(torch.optim.Muon):
    """torch's Muon with the matrices of one shape orthogonalised together, and in float32 on a CPU: torch
    takes them one by one in bfloat16, which for the small matrices of the embedded model costs twice to three
    times as much there, and far more if the processor has no bfloat16."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """One Muon step on every matrix. Raises ValueError for a closure."""
        if closure is not None:
            raise ValueError("a closure is not evaluated here")
        for group in self.param_groups:
            parameters: list[torch.Tensor] = []
            gradients: list[torch.Tensor] = []
            momenta: list[torch.Tensor] = []
            self._init_group(group, parameters, gradients, momenta)
            if not parameters:
                continue
            updates = momenta
            for momentum, gradient in zip(momenta, gradients, strict=True):
                momentum.lerp_(gradient, 1 - group["momentum"])
            if group["nesterov"]:
                updates = [g.lerp(m, group["momentum"]) for g, m in zip(gradients, momenta, strict=True)]
            for parameter in parameters:
                parameter.mul_(1 - float(group["lr"]) * group["weight_decay"])
            for same in _by_shape(parameters):
                made = _orthogonalised(torch.stack([_whole(updates[i]) for i in same]), group)
                rate = _adjust_lr(float(group["lr"]), group["adjust_lr_fn"], made.shape[1:])
                for i, update in zip(same, made, strict=True):
                    parameters[i].add_(_sharded_as(parameters[i], update), alpha=-rate)


def _whole(matrix: torch.Tensor) -> torch.Tensor:
    """Return the whole matrix of a shard: orthogonality is a property of the whole."""
    return matrix.full_tensor() if isinstance(matrix, DTensor) else matrix


def _sharded_as(parameter: torch.Tensor, update: torch.Tensor) -> torch.Tensor:
    """The part of a whole update that is this process's."""
    if not isinstance(parameter, DTensor):
        return update
    return distribute_tensor(update, parameter.device_mesh, parameter.placements, src_data_rank=None)


def _by_shape(matrices: Sequence[torch.Tensor]) -> list[list[int]]:
    places: dict[torch.Size, list[int]] = {}
    for place, matrix in enumerate(matrices):
        places.setdefault(matrix.shape, []).append(place)
    return list(places.values())


def _orthogonalised(matrices_B: torch.Tensor, group: dict[str, Any]) -> torch.Tensor:
    """Newton-Schulz iterations on [B, m, n], as `torch.optim._muon` does them on one matrix."""
    a, b, c = group["ns_coefficients"]
    is_tall = matrices_B.shape[1] > matrices_B.shape[2]
    x = matrices_B.mT if is_tall else matrices_B
    x = x.float() if x.device.type == "cpu" else x.bfloat16()
    x = x / x.norm(dim=(1, 2), keepdim=True).clamp(min=group["eps"])
    for _ in range(group["ns_steps"]):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if is_tall else x


def _groups(
    named: Iterable[tuple[str, nn.Parameter]], value_learning_rate: float | None
) -> list[dict[str, Any]]:
    """Return the groups of parameters, those of a value head apart if they have a learning rate of their
    own."""
    policy: list[nn.Parameter] = []
    value: list[nn.Parameter] = []
    for name, parameter in named:
        is_apart = value_learning_rate is not None and name.startswith(f"{VALUE_HEAD}.")
        (value if is_apart else policy).append(parameter)
    groups: list[dict[str, Any]] = [{"params": policy}] if policy else []
    return [*groups, {"params": value, "lr": value_learning_rate}] if value else groups


class MasterWeights:
    """Float32 copies of the trained weights that the model holds in half precision. Gradients add up in them
    and the optimisers move them; the model gets them rounded after each step (Micikevicius et al. 2018,
    arXiv 1710.03740, section 3.1). Without them bfloat16, which has 8 bits, rounds nearly all of a step of
    1e-6 away, and the rest of a gradient's micro-batches with it. Weights of 32 bits are their own."""

    def __init__(
        self,
        named: Iterable[tuple[str, nn.Parameter]],
        optimizers: Sequence[torch.optim.Optimizer],
        *,
        kept: Mapping[str, torch.Tensor] | None = None,
        local: Callable[[torch.Tensor], torch.Tensor] = lambda tensor: tensor,
    ) -> None:
        """Puts the copies into the groups of fresh `optimizers`, in place of the model's parameters; if
        others have done so already, `kept` are theirs. `local` gives what this process holds of a tensor."""
        trained = {n: p for n, p in named if p.requires_grad}
        self._local = local
        self._held = {n: p for n, p in trained.items() if p.dtype.itemsize < torch.float32.itemsize}
        if kept is not None:
            self.copies: dict[str, Any] = {n: kept[n] for n in self._held}
            self.named = list(trained.items())
            return
        self.copies = {n: nn.Parameter(p.detach().float()) for n, p in self._held.items()}
        self.named = [(n, self.copies.get(n, p)) for n, p in trained.items()]
        master_of = {id(p): self.copies[n] for n, p in self._held.items()}
        for group in (group for optimizer in optimizers for group in optimizer.param_groups):
            group["params"] = [master_of.get(id(p), p) for p in group["params"]]

    @torch.no_grad()
    def take_gradients(self) -> None:
        """Add the model's gradients to those of the copies, and free them: to be called after each backward
        pass."""
        for name, parameter in self._held.items():
            if (gradient := parameter.grad) is not None:
                master = self.copies[name]
                master.grad = gradient.float() if master.grad is None else master.grad.add_(gradient)
                parameter.grad = None

    @torch.no_grad()
    def give_weights(self) -> None:
        """Round the copies into the model: to be called after each step."""
        for name, parameter in self._held.items():
            self._local(parameter).copy_(self._local(self.copies[name]))


def linear_schedule(*, total: int, warmup: int = 0, decay_share: float = 0.0) -> Callable[[int], float]:
    """Return the factor of the learning rate at step 1..total: linear warm-up, constant, then linear decay to
    `_LEAST_RATE` over the last `decay_share` of the steps."""
    decay = decay_share * total

    def factor(step: int) -> float:
        rising = min(1.0, step / warmup) if warmup else 1.0
        falling = max(_LEAST_RATE, (total - step) / decay) if decay and total - step < decay else 1.0
        return rising * falling

    return factor


class Schedule:
    """Sets the learning rate of every parameter group as a function of the step: nothing to save."""

    def __init__(self, optimizers: list[Any], factor: Callable[[int], float]) -> None:
        self.optimizers = optimizers
        self._groups = [(g, g["lr"]) for o in optimizers for g in o.param_groups]
        self._factor = factor

    def set(self, step: int) -> float:
        """Apply the factor of `step` (1-based); returns it."""
        factor = self._factor(step)
        for group, base in self._groups:
            group["lr"] = base * factor
        return factor


_DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16}
_FILE = "loss_scale.json"


class Precision:
    """`no` computes in the weights' dtype. `bf16` and `fp16` are autocast: matrix products in that dtype,
    weights and sums as they are. float16 has five bits of exponent, so that small gradients become 0: with
    `fp16` the loss is multiplied by a scale that falls when a gradient overflows and slowly grows otherwise
    (Micikevicius et al. 2018, arXiv 1710.03740, section 3.2)."""

    def __init__(self, name: str = "no", *, device: torch.device | None = None) -> None:
        self._device = (device or torch.device("cpu")).type
        self.dtype = _DTYPES.get(name)
        self._scaler = torch.amp.GradScaler(self._device, enabled=name == "fp16")

    def autocast(self) -> AbstractContextManager[object]:
        """Around a forward pass."""
        return nullcontext() if self.dtype is None else torch.autocast(self._device, dtype=self.dtype)

    def scaled(self, loss: torch.Tensor) -> torch.Tensor:
        """Return what to call `backward` on."""
        return self._scaler.scale(loss)

    def unscale(self, optimizers: Sequence[torch.optim.Optimizer]) -> None:
        """The gradients are those of the loss again, to be clipped."""
        for optimizer in optimizers:
            self._scaler.unscale_(optimizer)

    def step(self, optimizers: Sequence[torch.optim.Optimizer]) -> bool:
        """One step of each after `unscale`; False if a gradient overflowed, and then no weight moved."""
        before = self._scaler.get_scale()
        for optimizer in optimizers:
            self._scaler.step(optimizer)
        self._scaler.update()
        return self._scaler.get_scale() >= before

    def save(self, folder: Path) -> None:
        """Into a folder of trainer state."""
        if self._scaler.is_enabled():
            (folder / _FILE).write_text(json.dumps(self._scaler.state_dict()) + "\n", encoding="utf-8")

    def load(self, folder: Path) -> None:
        """Put back what `save` wrote."""
        if self._scaler.is_enabled():
            self._scaler.load_state_dict(json.loads((folder / _FILE).read_text(encoding="utf-8")))
