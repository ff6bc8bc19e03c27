"""Logprobs of chosen tokens under the model, without ever holding the logits of a whole batch."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from mcpagent.models.load import causal_lm

_MAX_LOGITS = 1 << 25  # elements of one chunk of logits: 128 MB in float32
_MIN_SHARED = 16  # tokens


class TokenScorer(nn.Module):
    """A causal LM as a function from sequences to the logprobs of their chosen tokens.

    This is the module that accelerate wraps, so that its forward pass is what data parallelism hooks into.
    """

    def __init__(self, model: Any, *, max_logits: int = _MAX_LOGITS) -> None:
        super().__init__()
        self.model = model
        self._max_logits = max_logits

    def forward(
        self,
        input_ids: torch.Tensor,
        loss_mask: torch.Tensor,
        temperature: float = 1.0,
        *,
        entropy_gradient: bool = False,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Logprobs and entropies [N] (nats, at `temperature`) of the N tokens of [B, T] where `loss_mask` is
        True, row by row. The first token of a row is never chosen: nothing precedes it. The entropies carry
        a gradient only if `entropy_gradient`: it costs another pass over the logits."""
        inner = causal_lm(self.model)
        shared = shared_prefix(input_ids, loss_mask) if self._can_share(inner) else 0
        hidden = _decode(inner.get_decoder(), input_ids, shared)
        chosen = loss_mask[:, shared + 1 :]
        hidden_N = hidden[:, :-1][chosen]
        targets_N = input_ids[:, shared + 1 :][chosen]
        head = inner.get_output_embeddings()
        step = max(1, self._max_logits // head.weight.shape[0])
        if len(targets_N) <= step:
            return _score(head, hidden_N, targets_N, temperature, entropy_gradient)
        parts = [
            checkpoint(_score, head, h, t, temperature, entropy_gradient, use_reentrant=False)
            for h, t in zip(hidden_N.split(step), targets_N.split(step), strict=True)
        ]
        return torch.cat([p[0] for p in parts]), torch.cat([p[1] for p in parts])

    def _can_share(self, inner: Any) -> bool:
        """Sharing needs a cache of plain keys and values, which gradient checkpointing and recurrent or
        sliding-window layers do not have; dropout would give every row the same mask on the prefix."""
        kinds = set(getattr(inner.config, "layer_types", None) or ("full_attention",))
        if inner.is_gradient_checkpointing or kinds != {"full_attention"}:
            return False
        return not any(isinstance(m, nn.Dropout) and m.p > 0 for m in self.model.modules() if m.training)


def shared_prefix(input_ids: torch.Tensor, loss_mask: torch.Tensor) -> int:
    """Length of the prefix that all rows of [B, T] have in common and that carries no loss: the system prompt
    of a batch, or the whole prompt of a group. 0 where sharing would save next to nothing."""
    if input_ids.shape[0] < 2:
        return 0
    differs = (input_ids != input_ids[:1]).any(0) | loss_mask.any(0)
    first = int(differs.int().argmax()) if bool(differs.any()) else input_ids.shape[1]
    # The position before the first chosen token predicts it, so it stays with the rows.
    length = first - 1
    return length if length >= _MIN_SHARED else 0


def _decode(decoder: nn.Module, input_ids: torch.Tensor, shared: int) -> torch.Tensor:
    """Hidden states of [B, T] from position `shared` on; the prefix is computed once, with its gradient."""
    if not shared:
        return decoder(input_ids=input_ids, use_cache=False).last_hidden_state
    cache = DynamicCache()
    decoder(input_ids=input_ids[:1, :shared], past_key_values=cache, use_cache=True)
    for layer in cache.layers:
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            layer.keys = layer.keys.expand(input_ids.shape[0], -1, -1, -1)
            layer.values = layer.values.expand(input_ids.shape[0], -1, -1, -1)
    return decoder(input_ids=input_ids[:, shared:], past_key_values=cache, use_cache=True).last_hidden_state


def _score(
    head: nn.Module,
    hidden: torch.Tensor,
    targets: torch.Tensor,
    temperature: float,
    entropy_gradient: bool,
) -> tuple[torch.Tensor, torch.Tensor]:
    logits = head(hidden)
    # At least float32: in bfloat16 a sum over the vocabulary loses what the ratio needs.
    dtype = torch.promote_types(logits.dtype, torch.float32)
    if temperature != 1.0:
        logits = logits.to(dtype) / temperature
    logprobs = logits.log_softmax(-1, dtype=dtype)
    with torch.set_grad_enabled(entropy_gradient and torch.is_grad_enabled()):
        entropy = -(logprobs.exp() * logprobs).sum(-1)
    return logprobs.gather(1, targets[:, None])[:, 0], entropy
