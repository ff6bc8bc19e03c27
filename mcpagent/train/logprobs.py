"""Log-softmax at chosen tokens, with as little memory traffic as the vocabulary allows."""

from __future__ import annotations

from typing import Any

import torch

_CPU_BLOCK = 1 << 16  # elements that stay in a core's cache while a block is worked on


def selected_logprobs(
    logits: torch.Tensor, targets: torch.Tensor, *, temperature: float = 1.0, entropy_gradient: bool = False
) -> tuple[torch.Tensor, torch.Tensor]:
    """Logprobs of `targets` [N] and entropies [N] (nats) under softmax(logits / temperature), logits [N, V].

    `logits` is used up: its memory holds the probabilities afterwards, which are all that the backward pass
    needs. Entropies carry a gradient only if `entropy_gradient`.
    """
    return _Selected.apply(logits, targets, 1.0 / temperature, entropy_gradient)[:2]  # type: ignore[return-value]


class _Selected(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, logits: torch.Tensor, targets: torch.Tensor, scale: float, entropy_gradient: bool
    ) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        chosen, entropy = logits.new_empty(2, logits.shape[0])
        for rows in _blocks(logits):
            block = logits[rows]
            if scale != 1.0:
                block.mul_(scale)
            block.sub_(block.amax(-1, keepdim=True))
            weights = block.exp()
            total = weights.sum(-1)
            log_total = total.log()
            chosen[rows] = block.gather(1, targets[rows, None])[:, 0] - log_total
            entropy[rows] = log_total - torch.linalg.vecdot(weights, block) / total
            torch.div(weights, total[:, None], out=block)
        ctx.mark_dirty(logits)
        if not entropy_gradient:
            ctx.mark_non_differentiable(entropy)
        ctx.save_for_backward(logits, targets, entropy if entropy_gradient else None)
        ctx.scale = scale
        return chosen, entropy, logits

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor | None) -> tuple[torch.Tensor, None, None, None]:
        probabilities, targets, entropy = ctx.saved_tensors
        chosen, of_entropy, _ = gradients
        assert chosen is not None
        out = torch.empty_like(probabilities)
        for rows in _blocks(probabilities):
            torch.mul(probabilities[rows], -chosen[rows, None], out=out[rows])
        out.scatter_add_(1, targets[:, None], chosen[:, None])
        if entropy is not None and of_entropy is not None:
            # d entropy / d logit = -p (log p + entropy), with 0 log 0 = 0.
            surprise = torch.special.xlogy(probabilities, probabilities)
            out -= of_entropy[:, None] * (surprise + probabilities * entropy[:, None])
        return out.mul_(ctx.scale) if ctx.scale != 1.0 else out, None, None, None


def _blocks(matrix: torch.Tensor) -> list[slice]:
    """Slices of rows: small enough for the cache on a CPU, everything at once elsewhere."""
    rows, width = matrix.shape
    step = max(1, _CPU_BLOCK // width) if matrix.device.type == "cpu" else max(1, rows)
    return [slice(start, start + step) for start in range(0, rows, step)]
