"""The weight files of a model folder: safetensors that are whole, never a pickle, which runs code when it is
loaded."""

from __future__ import annotations

import json
from pathlib import Path

from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import ADAPTER_FILE, MODEL_FILE, verified
from mcpagent.storage.packages import require
from mcpagent.storage.records import reading

PICKLES = (".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt")
_CONVERT = (
    "get it as safetensors; or, if you trust who made it, convert it where it can do no harm (load it with "
    "transformers or PEFT there and call save_pretrained) and name the new folder"
)


def weight_shapes(folder: Path) -> dict[str, tuple[int, ...]]:
    """The shape of every tensor in the folder of a model or an adapter, read from the heads of its files.
    Raises UserError where the weights are a pickle, missing or cut short."""
    require("hf", use="reading weights")
    from safetensors import SafetensorError, safe_open

    shapes: dict[str, tuple[int, ...]] = {}
    for file in weight_files(folder):
        try:
            with safe_open(file, framework="numpy") as tensors:
                shapes |= {name: tuple(tensors.get_slice(name).get_shape()) for name in tensors.keys()}  # noqa: SIM118
        except (SafetensorError, OSError) as error:
            raise UserError(
                f"the weights cannot be read (cut short or damaged): {error}",
                where=str(file),
                remedy="copy or download the file again",
            ) from None
    return shapes


def weight_files(folder: Path) -> list[Path]:
    """The safetensors files that a loader of transformers or PEFT reads. Raises UserError where it would read
    a pickle, a file elsewhere, or nothing, or where the folder is not what a training run wrote."""
    verified(folder)
    is_adapter = (folder / ADAPTER_FILE).is_file()
    wanted = "adapter_model.safetensors" if is_adapter else _named_weights(folder) or "model.safetensors"
    if (folder / wanted).is_file():
        return [folder / wanted]
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
        f"there are no weights: {wanted} is missing",
        where=str(folder),
        remedy="copy or download the whole folder, or name another one",
    )


def pickled_files(folder: Path) -> list[str]:
    """The names of the pickles in a folder."""
    return sorted(path.name for path in folder.iterdir() if path.suffix.lower() in PICKLES)


def holds_weights(folder: Path) -> bool:
    """Whether there are any weights in it, of whatever kind."""
    return bool(pickled_files(folder)) or any(folder.glob("*.safetensors*"))


def _named_weights(folder: Path) -> str | None:
    """What `transformers_weights` of config.json names: transformers reads that file instead of others."""
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
