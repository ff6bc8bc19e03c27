"""How much of what AdamW moves reaches weights in bfloat16, with float32 master weights and without.

    python -m benchmarks.master_weights [--learning-rate 1e-6 ...] [--steps 1 --steps 100] [--json]

A matrix of 512 x 1,024 weights (standard deviation 0.02) under gradients of which half the variance is the
same at every step. The share is the projection on what the same steps do to float32 weights.
"""

from __future__ import annotations

import argparse
import json

import torch
from torch import nn

from mcpagent.train.learner.optim import MasterWeights, build_optimizers

ROWS, COLUMNS, SPREAD = 512, 1024, 0.02


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--learning-rate", type=float, action="append")
    parser.add_argument("--steps", type=int, action="append")
    parser.add_argument("--json", action="store_true", dest="as_json")
    options = parser.parse_args()
    torch.set_num_threads(1)
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


if __name__ == "__main__":
    main()
