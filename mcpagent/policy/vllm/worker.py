"""What runs inside vLLM's worker: new weights, complete.

Named as `worker_extension_cls`, so vLLM mixes the class into its worker, in this process or in a server's.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

import torch

EXTENSION = "mcpagent.policy.vllm.worker.WeightLoading"


class WeightLoading:
    """Methods that `collective_rpc` calls by name; `self` is vLLM's worker."""

    def mcpagent_load_weights(self: Any, weights: Iterable[tuple[str, torch.Tensor]]) -> None:
        """Replace every weight by the named tensors, in the names of the checkpoint."""
        self.reload_weights(weights_iterator=weights)
        repack_heads(self.get_model())

    def mcpagent_load_folder(self: Any, folder: str) -> None:
        """The same from a checkpoint folder that this machine can read."""
        from safetensors.torch import load_file

        parts = sorted(Path(folder).glob("*.safetensors"))
        if not parts:
            raise FileNotFoundError(f"no *.safetensors in {folder}")
        self.mcpagent_load_weights([item for part in parts for item in load_file(part).items()])


def repack_heads(model: Any) -> None:
    """On CPU vLLM multiplies by a packed copy of the output head. A reload renews the copies of the layers
    that it loads; a head tied to the embedding is not among them and would go on with its old weights."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        head = getattr(module, "lm_head", None)
        if head is not None:
            dispatch_cpu_unquantized_gemm(getattr(head, "base_layer", head), remove_weight=False)
