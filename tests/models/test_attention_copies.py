"""The attention that mcpagent gives to models, where no model is needed to try it."""

from __future__ import annotations

from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from mcpagent.models import attention


class CopiedBytes(TorchDispatchMode):
    """Adds up what operations write that only copy."""

    total = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        out = func(*args, **(kwargs or {}))
        if func.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten._to_copy):
            self.total += out.numel() * out.element_size()
        return out


def test_sampling_copies_nothing_of_the_cache_whatever_the_device() -> None:
    """A layer of a 4B model, 64 rows of 4,096 tokens, on the meta device. Repeated for its 32 heads, the
    keys and values of 8 heads are 64 x 32 x 4096 x 128 x 2 B x 2 = 4.3 GB a layer and token: 155 GB in 36
    layers, written and read again."""
    rows, heads, shared, length, width = 64, 32, 8, 4096, 128
    query = torch.empty(rows, heads, 1, width, dtype=torch.bfloat16, device="meta")
    cache = torch.empty(rows, shared, length + 512, width, dtype=torch.bfloat16, device="meta")
    keys = values = cache[:, :, :length]  # as a slot cache gives them: with gaps between the rows
    mask = torch.empty(rows, 1, 1, length, dtype=torch.bfloat16, device="meta")
    module = torch.nn.Module()
    module.num_key_value_groups, module.is_causal = heads // shared, True
    with CopiedBytes() as before:
        sdpa_attention_forward(module, query, keys, values, mask, scaling=0.1)
    assert before.total >= rows * heads * length * width * 2 * 2
    with CopiedBytes() as now:
        attention._attend(module, query, keys, values, mask, scaling=0.1)
    assert now.total <= rows * heads * length * (4 + 2)  # the weights, to float32 for the softmax and back
