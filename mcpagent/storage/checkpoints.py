"""Checkpoints as files: which folder is meant, the run around it, whether it is whole, and which are kept."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.storage.atomic import TEMPORARY_PREFIX, atomic_dir
from mcpagent.storage.run_folder import RunFolder, step_of

MODEL_FILE, ADAPTER_FILE = "config.json", "adapter_config.json"
SEAL_FILE = "sha256.json"  # the other files of a checkpoint by name
_WEIGHTS = ("*.safetensors", "*.bin")


def find_checkpoint(path: Path) -> Path:
    """`path` where it holds a model in Hugging Face or PEFT format; the latest checkpoint where it is a run
    folder. Raises UserError for anything else."""
    if not path.is_dir():
        raise UserError(
            "there is no such checkpoint or run folder",
            where=str(path),
            remedy="name the folder that mcpagent train printed, such as outputs/NAME",
        )
    if _is_model(path):
        return path
    latest = RunFolder(path).latest_checkpoint()
    if latest is not None and _is_model(latest):
        return latest
    raise UserError(
        f"is no checkpoint (it lacks {MODEL_FILE} and {ADAPTER_FILE}) and no run folder with one",
        where=str(path),
        remedy="name a folder such as outputs/NAME/checkpoints/step-000010, or a run folder such as "
        "outputs/NAME",
    )


@contextmanager
def sealed_dir(final: Path) -> Iterator[Path]:
    """`atomic_dir` for a checkpoint: the SHA-256 of every file is written last, for `damage` to compare."""
    with atomic_dir(final) as draft:
        yield draft
        hashes = {path.relative_to(draft).as_posix(): _sha256(path) for path in _files(draft)}
        (draft / SEAL_FILE).write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def damage(checkpoint: Path) -> str | None:
    """What is wrong with a checkpoint of a training run; None where every file is as it was written."""
    seal = checkpoint / SEAL_FILE
    try:
        hashes: dict[str, str] = json.loads(seal.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it lacks {SEAL_FILE}"
    except ValueError:
        return f"{SEAL_FILE} is no JSON"
    for name, wanted in hashes.items():
        path = checkpoint / name
        if not path.is_file():
            return f"it lacks {name}"
        if _sha256(path) != wanted:
            return f"{name} is not what was written (truncated or changed)"
    added = {path.relative_to(checkpoint).as_posix() for path in _files(checkpoint)} - hashes.keys()
    weights = sorted(name for name in added if any(Path(name).match(pattern) for pattern in _WEIGHTS))
    return f"{weights[0]} was added to it" if weights else None


def last_good_checkpoint(run: RunFolder) -> Path | None:
    """The latest checkpoint, compared with its hashes. Raises UserError where it is damaged: the message
    names the last one that is not."""
    latest, *older = [*reversed(run.all_checkpoints()), None]
    if latest is None or (wrong := damage(latest)) is None:
        return latest
    good = next((path for path in older if path is not None and damage(path) is None), None)
    remedy = (
        f"the last good one is {good.name}; to go on from there, move away what is later than it"
        if good is not None
        else "the run has no other one that is good: start it anew under another name"
    )
    raise UserError(f"the checkpoint cannot be used: {wrong}", where=str(latest), remedy=remedy)


def rotate(run: RunFolder, *, keep: int | None, spare: Collection[int]) -> None:
    """Delete all but the latest `keep` checkpoints (None: keep all) and those of the steps in `spare`."""
    if keep is None:
        return
    for path in run.all_checkpoints()[:-keep]:
        if step_of(path) not in spare:
            # It gives up its name first: a kill in the middle leaves no folder that looks like a checkpoint.
            doomed = path.with_name(f"{TEMPORARY_PREFIX}{path.name}-rotated")
            path.replace(doomed)
            shutil.rmtree(doomed)


def run_of(checkpoint: Path) -> RunFolder | None:
    """The run that wrote `checkpoint`; None where it lies in no run folder."""
    folder = checkpoint.resolve().parent
    run = RunFolder(folder.parent)
    return run if folder.name == run.checkpoints.name and run.config_path.is_file() else None


def model_identity(checkpoint: Path) -> JsonObject:
    """What was evaluated: the path, a hash of the weight files, and for adapters their base, hashed too where
    it is a folder."""
    identity: JsonObject = {"path": str(checkpoint), "weights_sha256": weights_sha256(checkpoint)}
    adapters = checkpoint / ADAPTER_FILE
    if adapters.is_file():
        base = json.loads(adapters.read_text(encoding="utf-8")).get("base_model_name_or_path")
        folder = Path(base) if base else None
        is_here = folder is not None and folder.is_dir()
        identity["base"] = model_identity(folder) if folder and is_here else {"path": base}
    return identity


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 over the names and hashes of the weight files in `folder`; None where there is none."""
    total = hashlib.sha256()
    files = sorted({file for pattern in _WEIGHTS for file in folder.glob(pattern)})
    for file in files:
        total.update(f"{_sha256(file)}  {file.name}\n".encode())
    return total.hexdigest() if files else None


def _sha256(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _is_model(folder: Path) -> bool:
    return (folder / MODEL_FILE).is_file() or (folder / ADAPTER_FILE).is_file()
