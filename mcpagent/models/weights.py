"""The files of weights of a model folder: safetensors that are whole and fit config.json, never a pickle."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from threading import Lock
from typing import Any

from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import ADAPTER_FILE, MODEL_FILE, verified
from mcpagent.storage.json_stream import reading
from mcpagent.storage.packages import require

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_MOST_MAPPED = 1 << 26  # bytes that are read of a file before it is opened anew
_CONVERT = (
    "get it as safetensors; or, if you trust who made it, convert it where it can do no harm (load it with "
    "transformers or PEFT there and call save_pretrained) and name the new folder"
)


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """Return the shape of every tensor in the folder of a model or an adapter, read from the heads of its
    files. Raises UserError if the weights are a pickle, missing or cut short."""
    require("hf", use="reading weights")
    return {name: tuple(tensor.get_shape()) for name, tensor in stored_tensors(folder).items()}


def stored_tensors(folder: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a model or an adapter, which are read one at a time. Raises what `weight_files`
    and `tensors_in` do."""
    return {n: tensor for file in weight_files(folder) for n, tensor in tensors_in(file).items()}


def tensors_in(file: Path) -> dict[str, StoredTensor]:
    """Return the tensors of a safetensors file. Raises UserError if it is cut short or damaged."""
    from safetensors import SafetensorError

    try:
        opened = _OpenFile(file)
    except (SafetensorError, OSError) as error:
        raise UserError(
            f"the weights cannot be read (cut short or damaged): {error}",
            where=str(file),
            remedy="copy or download the file again",
        ) from None
    return {name: StoredTensor(name, opened) for name in opened.names}


class _OpenFile:
    """A safetensors file that is opened anew now and then: what was read of one that is open counts as
    memory of the process."""

    def __init__(self, path: Path) -> None:
        from safetensors import safe_open

        self._open, self._lock = partial(safe_open, path, framework="pt"), Lock()
        self._tensors: Any = self._open()
        self._read_bytes = 0
        self.names: tuple[str, ...] = tuple(self._tensors.keys())

    def __deepcopy__(self, _memo: dict[int, Any]) -> _OpenFile:
        return self  # AutoModelForCausalLM copies its options

    def part(self, name: str) -> Any:
        """Return the slice of `safe_open` that a tensor is."""
        with self._lock:
            if self._read_bytes > _MOST_MAPPED:
                self._tensors, self._read_bytes = self._open(), 0
            return self._tensors.get_slice(name)

    def read(self, name: str, index: Any) -> Any:
        """Return a part of a tensor."""
        tensor = self.part(name)[index]
        with self._lock:
            self._read_bytes += tensor.nbytes
        return tensor


@dataclass(frozen=True)
class StoredTensor:
    """A tensor in a file, read when it is called, or as the loader of transformers reads its slices."""

    name: str
    file: _OpenFile

    def __call__(self) -> Any:
        """Return the whole of it."""
        return self[...].clone()

    def __getitem__(self, index: Any) -> Any:
        return self.file.read(self.name, index)

    def get_shape(self) -> list[int]:
        """Return its shape."""
        return self.file.part(self.name).get_shape()

    def get_dtype(self) -> str:
        """Return the dtype that it is stored in, as safetensors calls it."""
        return self.file.part(self.name).get_dtype()


def weight_files(folder: Path) -> list[Path]:
    """Return the safetensors files that a loader of transformers or PEFT reads. Raises UserError if it
    would read a pickle, a file elsewhere, or nothing, or if the folder is not what a training run wrote."""
    verified(folder)
    is_adapter = (folder / ADAPTER_FILE).is_file()
    file_name = "adapter_model.safetensors" if is_adapter else _named_weights(folder) or "model.safetensors"
    if (folder / file_name).is_file():
        return [folder / file_name]
    index = folder / "model.safetensors.index.json"
    if not is_adapter and index.is_file():
        return [folder / name for name in _shards(index)]
    if pickles := pickled_files(folder):
        raise UserError(
            f"the weights are a pickle ({pickles[0]}), which can run any code when it is loaded; only "
            "safetensors are read",
            where=str(folder),
            remedy=_CONVERT,
        )
    raise UserError(
        f"there are no weights: {file_name} is missing",
        where=str(folder),
        remedy="copy or download the whole folder, or name another one",
    )


def pickled_files(folder: Path) -> list[str]:
    """Return the names of the pickles in a folder."""
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLES)


def holds_weights(folder: Path) -> bool:
    """Return whether there are any weights in it, of whatever kind."""
    return bool(pickled_files(folder)) or any(folder.glob("*.safetensors*"))


def _named_weights(folder: Path) -> str | None:
    """Return what `transformers_weights` of config.json names: transformers reads that file instead of
    others."""
    path = folder / MODEL_FILE
    if not path.is_file():
        return None
    with reading(path):
        text = path.read_text(encoding="utf-8", errors="replace")
    try:
        document = json.loads(text)
    except (ValueError, RecursionError):
        return None  # which the reader of the configuration says
    name = document.get("transformers_weights") if isinstance(document, dict) else None
    return None if name is None else _checked(str(name), where=f"{path}: transformers_weights")


def _shards(index: Path) -> list[str]:
    with reading(index):
        text = index.read_text(encoding="utf-8", errors="replace")
    try:
        names = set(json.loads(text)["weight_map"].values())
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError):
        raise UserError(
            "is not an index of weights", where=str(index), remedy="copy or download the file again"
        ) from None
    for name in sorted(map(str, names)):
        _checked(name, where=str(index))
        if not (index.parent / name).is_file():
            raise UserError(
                f"it names {name}, which is missing",
                where=str(index),
                remedy="copy or download the whole folder",
            )
    return sorted(map(str, names))


def _checked(name: str, *, where: str) -> str:
    if Path(name).suffix.lower() in PICKLES:
        raise UserError(
            f"it names the pickle {name}, which can run any code when it is loaded; only safetensors are "
            "read",
            where=where,
            remedy=_CONVERT,
        )
    if Path(name).name != name or not name.endswith((".safetensors", ".safetensors.index.json")):
        raise UserError(
            f"it names {name}, which is not a safetensors file of this folder",
            where=where,
            remedy="name a file such as model.safetensors",
        )
    return name


_LAYER = re.compile(r"(.*?)\.(\d+)\.")  # `model.layers` and the number of the layer
_REMEDY = "copy config.json and the weights from one place: they are of two models, or one of them was edited"

Shape = tuple[int, ...]


def meta_model(config: Any, *, where: str) -> Any:
    """Return the architecture of a transformers configuration without weights. Raises UserError if it
    describes no model that can be built."""
    import torch
    from transformers import AutoModelForCausalLM

    try:
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except Exception as error:  # a boundary: a wrong number fails wherever the library divides by it
        said = str(error).strip().splitlines() or [""]
        raise UserError(
            f"describes no language model that can be built: {type(error).__name__}: {said[0]}",
            where=where,
            remedy=_REMEDY,
        ) from error


def refuse_other_sizes(folder: Path, config: Any) -> None:
    """Compare the weights of a local model with its configuration, without reading them. Raises UserError
    if they are of two sizes, and what `weight_shapes` raises."""
    stored = weight_shapes(folder)
    if getattr(config, "quantization_config", None) is not None or getattr(config, "auto_map", None):
        return  # packed weights have other shapes, and code of the model's own is not run for this
    where = str(folder / MODEL_FILE)
    model = meta_model(config.get_text_config(), where=where)
    expected = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    ignored = [re.compile(p) for p in getattr(model, "_keys_to_ignore_on_load_unexpected", None) or ()]
    kept = {n: shape for n, shape in stored.items() if not any(p.search(n) for p in ignored)}
    wrong = (
        _other_shape(expected, kept) or _other_count(model, expected, kept) or _lacking(model, expected, kept)
    )
    if wrong is not None:
        raise UserError(f"its sizes are not those of the weights: {wrong}", where=where, remedy=_REMEDY)


def _other_shape(expected: Mapping[str, Shape], stored: Mapping[str, Shape]) -> str | None:
    """Return the first weight of another size. As many numbers in another order may be a layout that is
    converted while it is read."""
    for name in sorted(expected.keys() & stored.keys()):
        if math.prod(expected[name]) != math.prod(stored[name]):
            return (
                f"{name} is {_shown(stored[name])} in the weights and {_shown(expected[name])} by config.json"
            )
    return None


def _other_count(model: Any, expected: Collection[str], stored: Collection[str]) -> str | None:
    """Return the first list of layers that is longer on one side."""
    import torch

    ours, theirs = _layers(expected), _layers(stored)
    lists = [name for name, module in model.named_modules() if isinstance(module, torch.nn.ModuleList)]
    for name in lists:
        here, there = ours.get(name, set()), theirs.get(name, set())
        if there and here != there:
            return f"the weights have {len(there)} of {name} and config.json asks for {len(here)}"
    return None


def _lacking(model: Any, expected: Collection[str], stored: Collection[str]) -> str | None:
    """Return the first weight that nothing in the files is for. If they have a name that the model has
    not, some are converted while they are read, and this cannot be told before that."""
    if not set(stored) <= set(expected):
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
    """Return the numbers of the layers in each list that the weights belong to."""
    layers: dict[str, set[int]] = {}
    for name in names:
        if match := _LAYER.match(name):
            layers.setdefault(match[1], set()).add(int(match[2]))
    return layers


def refuse_incomplete(info: Mapping[str, Any], name: str) -> None:
    """Check what transformers found while it read the weights. Raises UserError if some of the model is not
    in them."""
    missing = sorted(info["missing_keys"])
    if not missing:
        return
    more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
    raise UserError(
        f"the weights lack {missing[0]}{more}, which config.json asks for", where=name, remedy=_REMEDY
    )


def _shown(shape: Shape) -> str:
    return " x ".join(map(str, shape)) or "one number"
