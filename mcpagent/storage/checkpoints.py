"""Checkpoints as files: which folder is meant, the run around it, and a hash of the weights."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

from mcpagent.core.records import JsonObject
from mcpagent.errors import UserError
from mcpagent.storage.run_folder import RunFolder

MODEL_FILE, ADAPTER_FILE = "config.json", "adapter_config.json"
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
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        total.update(f"{digest}  {file.name}\n".encode())
    return total.hexdigest() if files else None


def _is_model(folder: Path) -> bool:
    return (folder / MODEL_FILE).is_file() or (folder / ADAPTER_FILE).is_file()
