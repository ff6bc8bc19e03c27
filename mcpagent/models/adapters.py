"""Low-rank adapters on a model in memory: put on it, found in it, merged into a copy of it."""

from __future__ import annotations

import copy
import itertools
import warnings
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from mcpagent.errors import UserError


@dataclass(frozen=True, kw_only=True)
class LoraShape:
    """Low-rank adapters: rank, scale alpha / r, dropout, and which linear layers carry them."""

    r: int
    alpha: float
    dropout: float
    target_modules: str | Sequence[str]


def causal_lm(model: Any) -> Any:
    """Return the transformers model inside a PEFT model, or the model itself."""
    return model.get_base_model() if hasattr(model, "peft_config") else model


def model_device(model: Any) -> torch.device:
    """Return the device that the model computes on. Shards may lie in the memory of the host, and buffers do
    not."""
    return next(itertools.chain(model.buffers(), model.parameters())).device


@contextmanager
def evaluation_mode(model: Any) -> Generator[None, None, None]:
    """Score without dropout inside; afterwards the model is in the mode that it was in."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def attach_lora(model: Any, shape: LoraShape, *, seed: int) -> Any:
    """Return the model with fresh adapters; their random half depends on `seed` alone. They are in the
    dtype that the model computes in: for others PEFT casts the input of every adapted layer and keeps the
    copy for the backward pass, two thirds of what a pass would keep (`train.learner.optim.MasterWeights`
    keeps steps that the dtype does not resolve). Raises UserError if no layer has one of the names."""
    from peft import LoraConfig, get_peft_model

    target: Any = shape.target_modules
    if target == "all-linear" and has_stacked_experts(model):
        target = _linear_beside_experts(model)
    config = LoraConfig(
        r=shape.r,
        lora_alpha=int(shape.alpha),
        lora_dropout=shape.dropout,
        target_modules=target if isinstance(target, str) else list(target),
        task_type="CAUSAL_LM",
    )
    with torch.random.fork_rng(devices=[]), warnings.catch_warnings():
        # PEFT gives stacked experts a rank of their own, and then says that it matched nothing.
        warnings.filterwarnings("ignore", message=r"The following \w+ keys did not match", module="peft")
        torch.manual_seed(seed)
        try:
            adapted: Any = get_peft_model(model, config, autocast_adapter_dtype=True)
        except ValueError as error:
            linear = {
                n.rpartition(".")[2] for n, m in model.named_modules() if isinstance(m, torch.nn.Linear)
            }
            raise UserError(
                f"lora.target_modules {shape.target_modules} fits no layer of the model",
                where="lora.target_modules",
                remedy=f"use all-linear, or names among {', '.join(sorted(linear))}",
            ) from error
    for parameter in adapted.parameters():
        if parameter.requires_grad:
            parameter.data = parameter.data.to(causal_lm(adapted).dtype)
    return adapted


# PEFT takes these names to mean the stacked weights of a mixture's experts, and its router.
_NAMES_OF_EXPERTS = frozenset({"gate_proj", "up_proj", "down_proj", "w1", "w2", "w3", "gate"})


def has_stacked_experts(model: Any) -> bool:
    """Return whether it is a mixture whose experts are one tensor."""
    return any(parameter.ndim == 3 for parameter in causal_lm(model).parameters())


def _linear_beside_experts(model: Any) -> list[str]:
    """Return the names of a mixture's linear layers, but for those that PEFT would carry over to the
    experts and the router: a router that moves makes the trainer and the sampler choose other experts for
    the same token."""
    head = causal_lm(model).get_output_embeddings()
    linear = {n for n, m in model.named_modules() if isinstance(m, torch.nn.Linear) and m is not head}
    return sorted({n.rpartition(".")[2] for n in linear} - _NAMES_OF_EXPERTS)


def adapted_beside_linear(model: Any) -> list[str]:
    """Return the adapted modules of a LoRA model that are not linear layers: stacked experts, embeddings."""
    from peft.tuners.lora.layer import Linear, LoraLayer

    return [n for n, m in model.named_modules() if isinstance(m, LoraLayer) and not isinstance(m, Linear)]


class MergedCopy:
    """A plain copy of a LoRA model for sampling, with the adapters of its linear layers merged into its
    weights at each `sync`; for float32 weights, since narrower ones round most of an update away.

    Each merge starts again from the frozen base, so nothing accumulates. What has no adapter is the model's
    own; the merged weights are held from `sync` to `rest`.
    """

    def __init__(self, model: Any) -> None:
        self._source = model
        frozen = {id(p): p for p in model.parameters() if not p.requires_grad}
        with torch.no_grad():
            self.model = copy.deepcopy(model, frozen).unload()
        self.model.requires_grad_(False).eval()
        self.sync()

    @torch.no_grad()
    def sync(self) -> None:
        """Bring the copy up to date with the adapters."""
        for name, layer in self._adapted():
            self._set(name, _merged(layer))

    def rest(self) -> None:
        """Let go of the merged weights; `sync` makes them again."""
        for name, _ in self._adapted():
            self._set(name, torch.empty(0))

    @torch.no_grad()
    def layers(self) -> Iterator[tuple[str, bool]]:
        """Yield each adapted layer, and whether the copy has what the adapters say now."""
        for name, layer in self._adapted():
            yield name, torch.equal(self.model.get_submodule(name).weight, _merged(layer))

    def _adapted(self) -> Iterator[tuple[str, Any]]:
        from peft.tuners.lora.layer import Linear

        for name, layer in self._source.named_modules():
            if isinstance(layer, Linear):
                yield name.removeprefix("base_model.model."), layer

    def _set(self, name: str, weight: torch.Tensor) -> None:
        self.model.get_submodule(name).weight = torch.nn.Parameter(weight, requires_grad=False)


def _merged(layer: Any) -> torch.Tensor:
    """The weight of an adapted layer with its adapter."""
    weight: torch.Tensor = layer.get_base_layer().weight
    return weight + layer.get_delta_weight("default").to(weight.dtype)
