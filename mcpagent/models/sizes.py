"""Whether the sizes in config.json are those of the weights beside it.

transformers gives a layer that the weights lack random ones, and drops a layer that the configuration lacks;
it warns of both and goes on, with a model that nobody trained.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch

from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import MODEL_FILE
from mcpagent.storage.weights import weight_shapes

_LAYER = re.compile(r"(.*?)\.(\d+)\.")  # `model.layers` and the number of the layer
_REMEDY = "copy config.json and the weights from one place: they are of two models, or one of them was edited"

Shape = tuple[int, ...]


def meta_model(config: Any, *, where: str, trust_remote_code: bool = False) -> Any:
    """The architecture of a transformers configuration without weights. Raises UserError where it describes
    no model that can be built."""
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config, trust_remote_code=trust_remote_code)
    except Exception as error:  # a boundary: a wrong number fails wherever the library divides by it
        said = str(error).strip().splitlines() or [""]
        raise UserError(
            f"describes no language model that can be built: {type(error).__name__}: {said[0]}",
            where=where,
            remedy=_REMEDY,
        ) from error


def refuse_other_sizes(folder: Path, config: Any) -> None:
    """Compare the weights of a local model with its configuration, without reading them. Raises UserError
    where they are of two sizes, and what `weight_shapes` raises."""
    stored = weight_shapes(folder)
    if getattr(config, "quantization_config", None) is not None or getattr(config, "auto_map", None):
        return  # packed weights have other shapes, and code of the model's own is not run for this
    where = str(folder / MODEL_FILE)
    model = meta_model(config.get_text_config(), where=where)
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    kept = {n: shape for n, shape in stored.items() if not any(p.search(n) for p in ignored)}
    wrong = _other_shape(wanted, kept) or _other_count(model, wanted, kept) or _lacking(model, wanted, kept)
    if wrong is not None:
        raise UserError(f"its sizes are not those of the weights: {wrong}", where=where, remedy=_REMEDY)


def _other_shape(wanted: Mapping[str, Shape], stored: Mapping[str, Shape]) -> str | None:
    """The first weight of another size. As many numbers in another order may be a layout that is converted
    while it is read."""
    for name in sorted(wanted.keys() & stored.keys()):
        if math.prod(wanted[name]) != math.prod(stored[name]):
            return (
                f"{name} is {_shown(stored[name])} in the weights and {_shown(wanted[name])} by config.json"
            )
    return None


def _other_count(model: Any, wanted: Collection[str], stored: Collection[str]) -> str | None:
    """The first list of layers that is longer on one side."""
    ours, theirs = _layers(wanted), _layers(stored)
    lists = [name for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]
    for name in lists:
        here, there = ours.get(name, set()), theirs.get(name, set())
        if there and here != there:
            return f"the weights have {len(there)} of {name} and config.json asks for {len(here)}"
    return None


def _lacking(model: Any, wanted: Collection[str], stored: Collection[str]) -> str | None:
    """The first weight that nothing in the files is for. Where they have a name that the model has not, some
    are converted while they are read, and this cannot be told before that."""
    if not set(stored) <= set(wanted):
        return None
    optional = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_missing", None) or ()]
    names_of: dict[int, list[str]] = {}  # of tied weights one name is enough
    for name, parameter in model.named_parameters(remove_duplicate=False):
        names_of.setdefault(id(parameter), []).append(name)
    for names in names_of.values():
        if not any(name in stored or any(p.search(name) for p in optional) for name in names):
            return f"the weights lack {names[0]}"
    return None


def _layers(names: Collection[str]) -> dict[str, set[int]]:
    """The numbers of the layers in each list that the weights belong to."""
    found: dict[str, set[int]] = {}
    for name in names:
        if match := _LAYER.match(name):
            found.setdefault(match[1], set()).add(int(match[2]))
    return found


def refuse_incomplete(info: Mapping[str, Any], name: str) -> None:
    """What transformers found while it read the weights. Raises UserError where some of the model is not
    theirs."""
    missing = sorted(info["missing_keys"])
    if not missing:
        return
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    raise UserError(
        f"the weights lack {missing[0]}{more}, which config.json asks for", where=name, remedy=_REMEDY
    )


def _shown(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"
