"""The state of training next to the weights: optimiser moments and random generators, saved and put back."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import nn

from mcpagent.core.records import JsonObject
from mcpagent.errors import RunError
from mcpagent.storage.checkpoints import STATE_FILE, STATE_FOLDER, verified
from mcpagent.train.learner.wrapping import Wrapping


def optimizer_state(
    named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any], wrapping: Wrapping
) -> tuple[dict[str, torch.Tensor], JsonObject]:
    """Return what the optimisers keep, by number, parameter and key: tensors, which a wrapping knows where
    they belong, and scalars."""
    tensors: dict[str, torch.Tensor] = {}
    scalars: JsonObject = {}
    for number, optimizer in enumerate(optimizers):
        for name, parameter in named:
            for key, value in wrapping.moments(optimizer, parameter).items():
                kept = tensors if isinstance(value, torch.Tensor) else scalars
                kept[f"{number}|{name}|{key}"] = value
    return tensors, scalars


def load_trainer_state(
    folder: Path,
    *,
    named: Sequence[tuple[str, nn.Parameter]],
    optimizers: Sequence[Any],
    wrapping: Wrapping,
) -> JsonObject:
    """Put back optimiser moments and random state of the checkpoint `folder`; returns the counters that were
    saved with them. Raises RunError if it does not fit, UserError if the folder is damaged."""
    source = verified(folder) / STATE_FOLDER
    parameters = dict(named)
    document = json.loads((folder / STATE_FILE).read_text(encoding="utf-8"))
    with safe_open(source / "optimizer.safetensors", framework="pt") as tensors:
        stored: dict[str, Any] = {place: tensors.get_slice(place) for place in tensors.keys()}  # noqa: SIM118
        for place, value in (document["optimizer_scalars"] | stored).items():
            number, name, key = place.split("|")
            if name not in parameters or int(number) >= len(optimizers):
                raise RunError(
                    f"the checkpoint has optimiser state for {name}, which this run does not train",
                    where=str(folder),
                    remedy="resume with the configuration that the run was started with",
                )
            parameter, optimizer = parameters[name], optimizers[int(number)]
            if place in stored and value.get_shape():
                moment = wrapping.new_moment(optimizer, parameter, key)
                wrapping.put(moment, lambda place=place: tensors.get_tensor(place))
                continue
            if place in stored:
                # Step counters stay on the CPU, but for fused optimisers, whose kernels read them.
                is_fused = optimizer.defaults.get("fused")
                value = tensors.get_tensor(place).to(parameter.device if is_fused else "cpu")
            wrapping.set_scalar(optimizer, parameter, key, value)
    _set_random_state(load_file(source / "rng.safetensors"), document["rng"])
    return document["state"]


def random_state() -> tuple[dict[str, torch.Tensor], JsonObject]:
    """Return the words of every generator, and the numbers next to them."""
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
