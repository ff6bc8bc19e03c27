"""What runs inside vLLM's worker: new weights, complete, and what of them is there.

Named as `worker_extension_cls`, so vLLM mixes the class into its worker, in this process or in a server's.
The checksums are computed here and by the trainer alike.
"""
# pyright: reportMissingImports=false

from __future__ import annotations

import hashlib
import os
import re
import secrets
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import torch

EXTENSION = "mcpagent.policy.vllm.worker.WeightLoading"
TOKEN = "VLLM_API_KEY"  # the environment variable of the token
_COLUMNS = 16  # of a packed weight that are read back
_CHUNK = 1 << 22  # elements that are summed at once
_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes of an element
_LAYER = re.compile(r"\.(\d+)\.")


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

    def mcpagent_adapter(self: Any, adapter: int | None = None) -> dict[str, Any]:
        """Digests of the adapter with this id, or of the one that came last, as it lies in the slot that the
        layers compute with: of every matrix, in no order, with the scale in the second one of each layer.
        `digests` is empty if the adapter is not there."""
        manager = self.model_runner.lora_manager._adapter_manager
        loaded = manager.list_adapters()
        number = adapter if adapter is not None else max(loaded, default=-1)
        dtype = str(manager.lora_config.lora_dtype).removeprefix("torch.")
        if number not in loaded or number not in manager.lora_index_to_id:
            return {"dtype": dtype, "digests": []}
        slot, lora = manager.lora_index_to_id.index(number), loaded[number]
        layers = _slot_matrices(manager, slot, rank=lora.rank)
        if self.parallel_config.tensor_parallel_size > 1:  # a slot holds a shard
            layers = _loaded_matrices(lora)
        return {"dtype": dtype, "digests": sorted(map(digest, layers))}

    def mcpagent_weights(self: Any) -> dict[str, Any]:
        """`weight_sums` of the weights that this worker computes with; `columns` says of how many of each,
        None for all, and `dtype` in which dtype they are held."""
        model, columns = self.get_model(), None
        packed = [m for m in model.modules() if hasattr(m, "cpu_linear")]
        if packed:  # on CPU the layers keep a copy of their own, which only a product can read
            columns = _COLUMNS
        dtype = self.model_config.dtype
        named = [(n, p) for n, p in model.named_parameters() if p.numel()]
        sums = weight_sums(named, dtype=dtype, columns=columns)
        for name, module in model.named_modules():
            if hasattr(module, "cpu_linear") and (part := _packed_columns(module, dtype)) is not None:
                is_head = module.weight.numel() > 0
                _add(sums, "head" if is_head else group_of(f"{name}.weight"), part)
        return {"dtype": str(dtype).removeprefix("torch."), "columns": columns, "sums": sums}


class TokenGuard:
    """Asks every request for the token of the environment, development routes included, which vLLM's own
    `--api-key` leaves open. An ASGI class for vLLM's `--middleware`."""

    def __init__(self, app: Any) -> None:
        self._app, self._token = app, os.environ.get(TOKEN, "")
        if not self._token:
            raise RuntimeError(f"{TOKEN} is not set, so there is nothing to guard with")

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        """Pass on what has the token and what is no request; answer 401 to the rest."""
        given = dict(scope.get("headers") or ()).get(b"authorization", b"")
        if scope["type"] == "http" and not secrets.compare_digest(given, f"Bearer {self._token}".encode()):
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b""})
            return
        await self._app(scope, receive, send)


def digest(matrix: torch.Tensor) -> str:
    """Return a digest of the matrix's bytes, in whatever memory it is."""
    whole = matrix.detach().cpu().contiguous().view(-1).view(torch.uint8)
    return hashlib.blake2b(whole.numpy().tobytes(), digest_size=16).hexdigest()


def weight_sums(
    named: Iterable[tuple[str, torch.Tensor]], *, dtype: torch.dtype, columns: int | None
) -> dict[str, list[int]]:
    """Return by layer two sums over the bits of all weights with two dimensions or more: the same however an
    engine joins, orders, pads or shards them. `columns` takes so many evenly spaced columns of each."""
    sums: dict[str, list[int]] = {}
    for name, weight in named:
        if weight.ndim >= 2:
            part = weight.detach()
            if columns is not None:
                part = part[..., column_indices(part.shape[-1], columns)]
            _add(sums, group_of(name), part.to(dtype))
    return sums


def group_of(name: str) -> str:
    """Return the number of the layer that a parameter belongs to; `other` for what belongs to none."""
    layer = _LAYER.search(name)
    return layer[1] if layer else "other"


def column_indices(width: int, columns: int) -> list[int]:
    """Evenly spaced ones of `width`."""
    return sorted({i * width // columns for i in range(columns)})


def _add(sums: dict[str, list[int]], group: str, weight: torch.Tensor) -> None:
    """Add the weight to its group's sums, modulo 2^63."""
    total, squares = sums.get(group, [0, 0])
    flat = (weight + 0).reshape(-1)  # -0.0 becomes 0.0, which a product gives too
    for chunk in flat.view(_BITS[flat.element_size()]).split(_CHUNK):
        bits = chunk.to(torch.int64)
        total += int(bits.sum())
        squares += int((bits * (bits >> 3)).sum())
    sums[group] = [total % 2**63, squares % 2**63]


def _slot_matrices(manager: Any, slot: int, *, rank: int) -> Iterator[torch.Tensor]:
    for module in manager.modules.values():
        first, second = getattr(module, "lora_a_stacked", ()), getattr(module, "lora_b_stacked", ())
        if isinstance(first, torch.Tensor):  # embeddings and heads have no list
            first, second = (first,), (second,)
        for a, b in zip(first, second, strict=True):
            if a[slot].any():  # zeros: the adapter leaves this layer as it is
                yield a[slot].squeeze(0)[:rank]
                yield b[slot].squeeze(0)[:, :rank]


def _loaded_matrices(lora: Any) -> Iterator[torch.Tensor]:
    for layer in lora.loras.values():
        first, second = layer.lora_a, layer.lora_b
        pairs = zip(first, second, strict=True) if isinstance(first, list) else [(first, second)]
        for a, b in pairs:
            if a is not None:
                yield a
                yield b


def _packed_columns(module: Any, dtype: torch.dtype) -> torch.Tensor | None:
    """Columns of the weight that `cpu_linear` multiplies by: of an identity matrix the products are exact."""
    weight = module.weight
    width = getattr(module, "input_size_per_partition", None) or getattr(module, "input_size", None)
    width = width or getattr(module, "embedding_dim", None)
    if width is None or weight.is_meta:
        return None
    rows = torch.eye(width, dtype=dtype)[column_indices(width, _COLUMNS)]
    return module.cpu_linear(rows, weight, None)


def repack_heads(model: Any) -> None:
    """Pack the output head anew: on CPU vLLM multiplies by a packed copy. A reload renews those of the
    layers that it loads; a head tied to the embedding is not among them and would keep its old weights."""
    from vllm.model_executor.layers.utils import dispatch_cpu_unquantized_gemm
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    for module in model.modules():
        head = getattr(module, "lm_head", None)
        if head is not None:
            dispatch_cpu_unquantized_gemm(getattr(head, "base_layer", head), remove_weight=False)
