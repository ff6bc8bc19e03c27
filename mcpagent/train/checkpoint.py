"""Checkpoints: whole or not at all, and exact.

A folder in Hugging Face or PEFT format with `trainer_state/` beside it: `optimizer.safetensors` (moments by
parameter name, so that another number of ranks can read them), `rng.safetensors`, `state.json`. No pickle.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from mcpagent.core.records import JsonObject
from mcpagent.errors import RunError

_STATE = "trainer_state"


def save_trainer_state(
    folder: Path, *, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any], state: JsonObject
) -> None:
    """Write optimiser moments, random state and counters into `folder`/trainer_state."""
    target = folder / _STATE
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
    rng = {"torch": torch.get_rng_state()}
    if torch.cuda.is_available():
        rng["cuda"] = torch.cuda.get_rng_state()
    save_file(rng, target / "rng.safetensors")
    text = json.dumps({"state": state, "optimizer_scalars": scalars}, indent=1, sort_keys=True)
    (target / "state.json").write_text(text + "\n", encoding="utf-8")


def load_trainer_state(
    folder: Path, *, named: Sequence[tuple[str, nn.Parameter]], optimizers: Sequence[Any]
) -> JsonObject:
    """Put back what `save_trainer_state` wrote; returns `state`. Raises RunError if it does not fit."""
    source = folder / _STATE
    parameters = dict(named)
    document = json.loads((source / "state.json").read_text(encoding="utf-8"))
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
        if isinstance(value, torch.Tensor) and value.ndim:
            value = value.to(parameter.device)
        optimizers[int(number)].state.setdefault(parameter, {})[key] = value
    rng = load_file(source / "rng.safetensors")
    torch.set_rng_state(rng["torch"])
    if "cuda" in rng and torch.cuda.is_available():
        torch.cuda.set_rng_state(rng["cuda"])
    return document["state"]


def load_weights(model: Any, folder: Path) -> None:
    """Weights of a checkpoint into a live model: its adapters, or all of them."""
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
