"""How much of what AdamW moves reaches weights in bfloat16, with float32 master weights and without.

    python -m benchmarks.master_weights [--learning-rate 1e-6 ...] [--steps 1 --steps 100] [--json]

A matrix of 512 x 1,024 weights (standard deviation 0.02) under gradients of which half the variance is the
same at every step. The share is the projection on what the same steps do to float32 weights. `--adapters`:
the share of what LoRA (r=16) on a `q_proj` of 1,024 x 2,048 has learned that a sampler gets, merged into
bfloat16 weights and computed beside them, projected on the float32 masters of the adapter.
"""

from __future__ import annotations

import argparse
import json
from typing import Any

import torch
from torch import nn
from transformers import Qwen3ForCausalLM

from benchmarks.memory import config_of
from mcpagent.models.load import LoraShape, attach_lora
from mcpagent.train.learner.optim import MasterWeights, build_optimizers

ROWS, COLUMNS, SPREAD = 512, 1024, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learning-rate", type=float, action="append")
    parser.add_argument("--steps", type=int, action="append")
    parser.add_argument("--adapters", action="store_true", help="what a sampler gets of adapters")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.adapters:
        for steps in options.steps or (1, 10, 100):
            row = {"learning_rate": 2e-5, "steps": steps, **adapter_shares(2e-5, steps)}
            shown = "  ".join(f"{name} {value:<8.4g}" for name, value in row.items())
            print(json.dumps(row) if options.as_json else shown, flush=True)
        return
    for rate in options.learning_rate or (1e-6, 1e-5, 2e-5):
        for steps in options.steps or (1, 100):
            row = {"learning_rate": rate, "steps": steps, **shares(rate, steps)}
            shown = "  ".join(f"{name} {value:<8.4g}" for name, value in row.items())
            print(json.dumps(row) if options.as_json else shown, flush=True)


def shares(rate: float, steps: int) -> dict[str, float]:
    """Of the movement, what the weights have alone, with masters, and what the masters have."""
    in_full, _ = moved(rate, steps, dtype=torch.float32)
    alone, _ = moved(rate, steps, dtype=torch.bfloat16)
    rounded, masters = moved(rate, steps, dtype=torch.bfloat16, has_masters=True)

    def share(movement: torch.Tensor) -> float:
        return float((movement * in_full).sum() / in_full.square().sum())

    return {"alone": share(alone), "with_masters": share(rounded), "masters": share(masters)}


def moved(
    rate: float, steps: int, *, dtype: torch.dtype, has_masters: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """How far the weights are from where they began, and what the optimiser moves."""
    generator = torch.Generator().manual_seed(0)

    def noise() -> torch.Tensor:
        return torch.randn(ROWS, COLUMNS, generator=generator)

    weight = nn.Parameter((SPREAD * noise()).bfloat16().to(dtype))
    first, steady = weight.detach().float().clone(), noise()
    optimizers = build_optimizers(
        [("weight", weight)],
        kind="adamw",
        learning_rate=rate,
        muon_learning_rate=rate,
        betas=(0.9, 0.999),
        weight_decay=0.0,
    )
    masters = MasterWeights([("weight", weight)], optimizers) if has_masters else None
    for _ in range(steps):
        weight.grad = (steady + noise()).to(dtype)
        if masters is not None:
            masters.take_gradients()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        if masters is not None:
            masters.give_weights()
    own = weight if masters is None else masters.named[0][1]
    return weight.detach().float() - first, own.detach().float() - first


def adapter_shares(rate: float, steps: int) -> dict[str, float]:
    """Of what the masters of an adapter add to a weight, what arrives merged and what arrives beside it."""
    generator = torch.Generator().manual_seed(0)
    config = config_of("0.6b", 1)
    config.vocab_size = 64
    model: Any = Qwen3ForCausalLM(config).to(torch.bfloat16)
    base = model.model.layers[0].self_attn.q_proj
    with torch.no_grad():
        base.weight.copy_(SPREAD * torch.randn(base.weight.shape, generator=generator))
    shape = LoraShape(r=16, alpha=32, dropout=0.0, target_modules=("q_proj",))
    model = attach_lora(model, shape, seed=0)
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    optimizers = build_optimizers(
        trained,
        kind="adamw",
        learning_rate=rate,
        muon_learning_rate=rate,
        betas=(0.9, 0.999),
        weight_decay=0.0,
    )
    masters = MasterWeights(trained, optimizers)
    steady = [torch.randn(p.shape, generator=generator) for _, p in trained]
    for _ in range(steps):
        for (_, parameter), same in zip(trained, steady, strict=True):
            parameter.grad = (same + torch.randn(same.shape, generator=generator)).to(parameter.dtype)
        masters.take_gradients()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        masters.give_weights()
    learned, served = (
        _delta({name: p.detach().float() for name, p in own}) * shape.alpha / shape.r
        for own in (masters.named, trained)
    )
    weight = base.weight.detach().float()
    merged = (weight + served.bfloat16().float()).bfloat16().float() - weight

    def share(movement: torch.Tensor) -> float:
        return float((movement * learned).sum() / learned.square().sum())

    return {"merged": share(merged), "beside": share(served)}


def _delta(factors: dict[str, torch.Tensor]) -> torch.Tensor:
    (down,) = (value for name, value in factors.items() if "lora_A" in name)
    (up,) = (value for name, value in factors.items() if "lora_B" in name)
    return up @ down


if __name__ == "__main__":
    main()
