"""What a checkpoint stands on: the model under its adapters, with proof that it is still the same one.

Adapters are nothing without the weights that they were trained on. A checkpoint says in `lineage.json` which
these are, by path and by hash, and what was merged into them. A base that lies in the run's own folder is
named relative to the checkpoint, so that a run folder may be moved or renamed.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from dataclasses import dataclass, field, replace
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.storage.checkpoints import (
    ADAPTER_FILE,
    MODEL_FILE,
    SEAL_FILE,
    STATE_FOLDER,
    run_of,
    verified,
    weights_sha256,
)

LINEAGE_FILE = "lineage.json"
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt")  # no loader reads them
_BLOCKS, _BLOCK_BYTES = 64, 1 << 16  # what is read of a large file: 4 MiB


@dataclass(frozen=True, kw_only=True)
class Base:
    """The model under the adapters of a checkpoint: a folder or hub id, with its `fingerprint` and, of a hub
    id, its revision; None if they are not recorded, and then `note` says what was assumed."""

    place: str
    sha256: str | None = None
    revision: str | None = None
    note: str | None = None

    @property
    def folder(self) -> Path | None:
        """The folder, if it is one on this machine."""
        path = Path(self.place).expanduser()
        return path if path.is_dir() else None


@dataclass(frozen=True, kw_only=True)
class Lineage:
    """`base` is None for a checkpoint of all weights. `merged` names the adapters that the weights began
    with, and what those stood on."""

    base: Base | None = None
    merged: list[JsonObject] = field(default_factory=list[JsonObject])


def fingerprint(folder: Path) -> str:
    """Return a SHA-256 over a model's configuration and its safetensors files: of each its name, its size and
    64 blocks of 64 KiB spread over it, the first of which holds the names and shapes of the tensors.

    Up to 4 MiB a file that is every byte. Of a larger one it proves that the tensors have the same names and
    shapes and the same values in every block, which other training changes; an edit between the blocks
    passes here, and the probe of the checkpoint is what may see it."""
    total = hashlib.sha256()
    names = [name for name in (MODEL_FILE, ADAPTER_FILE) if (folder / name).is_file()]
    for file in [*(folder / name for name in names), *sorted(folder.glob("*.safetensors"))]:
        size = file.stat().st_size
        total.update(f"{file.name} {size}\n".encode())
        last = max(0, size - _BLOCK_BYTES)
        places = range(0, size, _BLOCK_BYTES)
        if len(places) > _BLOCKS:
            places = [last * i // (_BLOCKS - 1) for i in range(_BLOCKS)]
        with file.open("rb") as stream:
            for place in places:
                stream.seek(place)
                total.update(stream.read(_BLOCK_BYTES))
    return total.hexdigest()


def write_lineage(folder: Path, lineage: Lineage) -> None:
    """Write `lineage` into a folder of weights, the place of its base as it is."""
    document: JsonObject = {"schema_version": 1, "merged": lineage.merged, "base": None}
    if (base := lineage.base) is not None:
        document["base"] = {"path": base.place, "sha256": base.sha256, "revision": base.revision}
    (folder / LINEAGE_FILE).write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")


def seen_from(checkpoint: Path, lineage: Lineage) -> Lineage:
    """Return the lineage as a `checkpoint` of a run names it: a base in the run's folder by a relative path,
    so that the folder may be moved, any other folder by its whole path."""
    base = lineage.base
    if base is None or base.folder is None:
        return lineage
    folder, place = base.folder.resolve(), checkpoint.parent.resolve() / checkpoint.name
    is_of_run = folder.is_relative_to(place.parent.parent)
    path = os.path.relpath(folder, place) if is_of_run else str(folder)
    return replace(lineage, base=replace(base, place=path))


def read_lineage(folder: Path) -> Lineage | None:
    """Return what the folder says of itself; None if it says nothing. Raises UserError if that is not
    readable."""
    path = folder / LINEAGE_FILE
    if not path.is_file():
        return None
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        merged, base = list(document["merged"]), document["base"]
        if base is None:
            return Lineage(merged=merged)
        place = str(base["path"])
        if place.startswith(".."):
            place = os.path.normpath(folder.resolve() / place)
        return Lineage(
            merged=merged, base=Base(place=place, sha256=base["sha256"], revision=base["revision"])
        )
    except (ValueError, KeyError, TypeError, AttributeError):
        raise UserError(
            "does not say what the checkpoint stands on", where=str(path), remedy="copy the folder again"
        ) from None


def base_of(folder: Path) -> Base | None:
    """Return the model under the adapters in `folder`; None for a folder of whole weights. Raises UserError
    if there is nothing to tell it by, or if it is not the model that the adapters were trained on."""
    if not (folder / ADAPTER_FILE).is_file():
        return None
    lineage = read_lineage(folder)
    base = _unrecorded_base(folder) if lineage is None else lineage.base
    if base is None:
        raise _nameless(folder)
    if base.folder is not None:
        verified(base.folder)
        refuse_other_base(folder, base, base.folder)
    elif base.place.startswith(("/", "~", ".")):
        raise UserError(
            f"the model that its adapters were trained on is not there: {base.place}",
            where=str(folder),
            remedy="copy the whole run folder, or bring that folder back to where it was (a link will do)",
        )
    return base


def refuse_other_base(checkpoint: Path, base: Base, folder: Path) -> None:
    """Raise UserError if the model in `folder` is not the `base` that was recorded."""
    if base.sha256 is not None and fingerprint(folder) != base.sha256:
        raise UserError(
            f"its adapters were trained on other weights than those that {base.place} holds now (their "
            "SHA-256 is another)",
            where=str(checkpoint),
            remedy="bring back the model that the run began with, or name another checkpoint",
        )


def _unrecorded_base(folder: Path) -> Base:
    """The base of adapters that another program wrote, whose PEFT configuration names it and no more."""
    if run_of(folder) is not None:
        raise UserError(
            "does not record what its adapters were trained on, as every checkpoint of a run does",
            where=str(folder),
            remedy=f"copy the whole run folder, {LINEAGE_FILE} of each checkpoint included",
        )
    try:
        document = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
    except ValueError:
        document = None
    if not isinstance(document, dict) or not document.get("base_model_name_or_path"):
        raise _nameless(folder)
    named = str(document["base_model_name_or_path"])
    note = f"{folder} does not say what its adapters were trained on but by name: {named} is taken for it"
    return Base(place=named, revision=document.get("revision"), note=note)


def _nameless(folder: Path) -> UserError:
    return UserError(
        f"{folder} is an adapter that does not name its model",
        where=f"{folder}/{ADAPTER_FILE}",
        remedy="write the folder or hub id of its model there as base_model_name_or_path",
    )


def model_identity(checkpoint: Path) -> JsonObject:
    """Return what was evaluated: the path, a hash of the weight files, and for adapters their base, hashed
    too if it is a folder. Raises what `base_of` does."""
    identity: JsonObject = {"path": str(checkpoint), "weights_sha256": weights_sha256(checkpoint)}
    if (base := base_of(checkpoint)) is not None:
        identity["base"] = {"path": base.place} if base.folder is None else model_identity(base.folder)
    return identity


def standing_on(folder: Path) -> list[Path]:
    """Return the folders of weights that a model is put together from: its own, then those under it that are
    on this machine. Raises what `base_of` does."""
    base = base_of(folder)
    return [folder, *([] if base is None or base.folder is None else standing_on(base.folder))]


def described(lineage: Lineage) -> list[JsonObject]:
    """Return what a lineage names, for the record of a model that is made from it."""
    base = [] if lineage.base is None else [{"path": lineage.base.place, "sha256": lineage.base.sha256}]
    return [*lineage.merged, *base]


def copy_model(source: Path, target: Path) -> None:
    """Copy a model without what only training needs. Adapters point to the folder of their base."""
    ignored = shutil.ignore_patterns(STATE_FOLDER, SEAL_FILE, "README.md", ".*", *_PICKLES)
    shutil.copytree(source, target, dirs_exist_ok=True, ignore=ignored)
    if (base := base_of(source)) is None:
        return
    place = base.place if base.folder is None else str(base.folder.resolve())
    document = json.loads((target / ADAPTER_FILE).read_text(encoding="utf-8"))
    document["base_model_name_or_path"] = place
    (target / ADAPTER_FILE).write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    lineage = read_lineage(source) or Lineage()
    write_lineage(target, replace(lineage, base=replace(base, place=place)))
