"""Checkpoints: whole or not at all, and exact.

A folder in Hugging Face or PEFT format with `trainer_state/` beside it: `optimizer.safetensors` (moments by
parameter name, so that another number of ranks can read them), `rng.safetensors`, `state.json`. No pickle.
The random state is that of every source: Python, NumPy, torch on the CPU and on each device.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mcpagent.core.records import JsonObject
from mcpagent.errors import RunError
from mcpagent.storage.checkpoints import STATE_FILE, STATE_FOLDER, verified


def save_trainer_state(
    folder: Path, *, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any], state: JsonObject
) -> None:
    """Write optimiser moments, random state and counters into `folder`/trainer_state."""
    target = folder / STATE_FOLDER
    target.mkdir()
    names = {id(p): n for n, p in named}
    tensors: dict[str, torch.Tensor] = {}
    scalars: dict[str, Any] = {}
    for number, optimizer in enumerate(optimizers):
        for parameter, moments in optimizer.state.items():
            for key, value in moments.items():
                place = f"{number}|{names[id(parameter)]}|{key}"
                if isinstance(value, torch.Tensor):
                    tensors[place] = value.detach().cpu().clone().contiguous()
                else:
                    scalars[place] = value
    save_file(tensors, target / "optimizer.safetensors")
    streams, places = _random_state()
    save_file(streams, target / "rng.safetensors")
    document = {"state": state, "optimizer_scalars": scalars, "rng": places}
    text = json.dumps(document, indent=1, sort_keys=True)
    (folder / STATE_FILE).write_text(text + "\n", encoding="utf-8")


def load_trainer_state(
    folder: Path, *, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any]
) -> JsonObject:
    """Put back what `save_trainer_state` wrote; returns `state`. Raises RunError if it does not fit,
    UserError where the folder is damaged."""
    source = verified(folder) / STATE_FOLDER
    parameters = dict(named)
    document = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    entries: dict[str, Any] = {**document["optimizer_scalars"]}
    entries.update(load_file(source / "optimizer.safetensors"))
    for place, value in entries.items():
        number, name, key = place.split("|")
        if name not in parameters or int(number) >= len(optimizers):
            raise RunError(
                f"the checkpoint has optimiser state for {name}, which this run does not train",
                where=str(folder),
                remedy="resume with the configuration that the run was started with",
            )
        parameter = parameters[name]
        # Step counters stay on the CPU, but for fused optimisers, whose kernels read them.
        is_fused = optimizers[int(number)].defaults.get("fused")
        if isinstance(value, torch.Tensor) and (value.ndim or is_fused):
            value = value.to(parameter.device)
        optimizers[int(number)].state.setdefault(parameter, {})[key] = value
    _set_random_state(load_file(source / "rng.safetensors"), document["rng"])
    return document["state"]


def _random_state() -> tuple[dict[str, torch.Tensor], JsonObject]:
    """The words of every generator, and the numbers beside them."""
    version, words, gauss = random.getstate()
    numpy_state: Any = np.random.get_state(legacy=False)
    streams = {
        "python": torch.tensor(words, dtype=torch.int64),
        "numpy": torch.from_numpy(numpy_state["state"]["key"].astype(np.int64)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_available():
        streams |= {f"cuda:{i}": state for i, state in enumerate(torch.cuda.get_rng_state_all())}
    if torch.backends.mps.is_available():
        streams["mps"] = torch.mps.get_rng_state()
    places: JsonObject = {
        "python": [version, gauss],
        "numpy": [
            int(numpy_state["state"]["pos"]),
            int(numpy_state["has_gauss"]),
            float(numpy_state["gauss"]),
        ],
    }
    return streams, places


def _set_random_state(streams: dict[str, torch.Tensor], places: JsonObject) -> None:
    version, gauss = places["python"]
    random.setstate((version, tuple(streams["python"].tolist()), gauss))
    position, has_gauss, numpy_gauss = places["numpy"]
    key = streams["numpy"].numpy().astype(np.uint32)
    np.random.set_state(("MT19937", key, position, has_gauss, numpy_gauss))
    torch.set_rng_state(streams["torch"])
    if torch.cuda.is_available():
        for index in range(torch.cuda.device_count()):
            if f"cuda:{index}" in streams:
                torch.cuda.set_rng_state(streams[f"cuda:{index}"], index)
    if torch.backends.mps.is_available() and "mps" in streams:
        torch.mps.set_rng_state(streams["mps"])


def load_weights(model: Any, folder: Path) -> None:
    """Weights of a checkpoint into a live model: its adapters, or all of them. Raises UserError where the
    folder is damaged."""
    verified(folder)
    if hasattr(model, "peft_config"):
        from peft import set_peft_model_state_dict

        set_peft_model_state_dict(model, load_file(folder / "adapter_model.safetensors"))
        return
    files = sorted(folder.glob("model*.safetensors"))
    weights = {name: tensor for file in files for name, tensor in load_file(file).items()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    tied = set(getattr(model, "_tied_weights_keys", None) or ())
    if unexpected or set(missing) - tied:
        raise RunError(
            f"the checkpoint does not fit the model: {len(missing)} weights missing, "
            f"{len(unexpected)} unknown",
            where=str(folder),
        )
