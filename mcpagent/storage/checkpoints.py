"""Checkpoints as files: which folder is meant, the run around it, whether it is whole, and which are kept."""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import time
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from mcpagent.errors import UserError
from mcpagent.storage.atomic import TEMPORARY_PREFIX, atomic_dir
from mcpagent.storage.run_folder import RunFolder, step_of

MODEL_FILE, ADAPTER_FILE = "config.json", "adapter_config.json"
STATE_FOLDER = "trainer_state"  # in a checkpoint of a training run: optimiser, random state, counters
STATE_FILE = f"{STATE_FOLDER}/state.json"
SEAL_FILE = "sha256.json"  # the other files of a checkpoint by name
_WEIGHTS = ("*.safetensors", "*.bin")
# Besides hidden files: what may be added to a checkpoint, as no loader reads it.
_NOT_READ = ("README.md", "LICENSE")
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")
_CHOICE = re.compile(r"(.*)@(best|latest|[0-9]+)")
_SETTLED_S = 2.0  # what changed so lately could change again within one tick of the file system's clock


@dataclass(frozen=True)
class ChosenCheckpoint:
    """`why` says what was chosen if a run folder was named; empty if the checkpoint itself was."""

    path: Path
    why: str = ""


def choose_checkpoint(path: Path) -> ChosenCheckpoint:
    """`path` if it holds a model in Hugging Face or PEFT format. A run folder means its best checkpoint
    (the latest if the run evaluated none), `RUN@latest` its latest one, `RUN@STEP` that of a step. Raises
    UserError for anything else."""
    folder, selector = _split(path.expanduser())
    if folder.is_file():
        raise UserError(
            "is a file, and a model is a folder with its config.json, its tokenizer and its weights as "
            "safetensors",
            where=str(path),
            remedy="name the folder; weights in a pickle (.bin, .pt, .pkl) are not read: get safetensors",
        )
    if not folder.is_dir():
        raise UserError(
            "there is no such checkpoint or run folder",
            where=str(path),
            remedy="name the folder that mcpagent train printed, such as outputs/NAME",
        )
    if selector is None and _is_model(folder):
        return ChosenCheckpoint(folder)
    run = RunFolder(folder)
    steps = {
        step_of(checkpoint) or 0: checkpoint for checkpoint in run.all_checkpoints() if _is_model(checkpoint)
    }
    if not steps:
        raise UserError(
            f"is neither a checkpoint (it lacks {MODEL_FILE} and {ADAPTER_FILE}) nor a run folder with one",
            where=str(path),
            remedy="name a folder such as outputs/NAME/checkpoints/step-000010, or a run folder such as "
            "outputs/NAME",
        )
    latest = max(steps)
    if selector == "latest":
        return ChosenCheckpoint(steps[latest], f"the latest of {folder}")
    if selector not in (None, "best"):
        if int(selector) not in steps:
            raise UserError(
                f"the run has no checkpoint of step {int(selector)}",
                where=str(path),
                remedy=f"it has those of steps {', '.join(map(str, steps))}: {folder}@{latest}",
            )
        return ChosenCheckpoint(steps[int(selector)], f"step {int(selector)} of {folder}")
    best = _best_step(steps[latest])
    if best is None:
        return ChosenCheckpoint(
            steps[latest], f"the latest of {folder}, which evaluated none while it trained"
        )
    if best not in steps:
        raise UserError(
            f"the run's best checkpoint, of step {best}, is gone",
            where=str(path),
            remedy=f"name another one: {folder}@latest is step {latest}",
        )
    others = f"; {folder}@latest is step {latest}" if best != latest else ""
    return ChosenCheckpoint(steps[best], f"the best of {folder}{others}")


def find_model(name: str) -> ChosenCheckpoint | None:
    """Return the checkpoint that a path names; None for a hub id. Raises UserError for a path without a
    model."""
    path = Path(name).expanduser()
    folder, _ = _split(path)
    # `outputs/typo` looks like a hub id too, but runs are kept there.
    is_path = folder.exists() or folder.parent.exists() or path.parts[:1] == ("outputs",)
    is_hub_id = _HUB_ID.fullmatch(name) and not is_path
    return None if is_hub_id else choose_checkpoint(path)


def _split(path: Path) -> tuple[Path, str | None]:
    """`RUN@latest`, also as `RUN/@latest`, taken apart; a folder that is called so is meant itself."""
    match = _CHOICE.fullmatch(path.name)
    if match is None or path.exists():
        return path, None
    return (path.with_name(match[1]) if match[1] else path.parent), match[2]


def _best_step(latest: Path) -> int | None:
    """Return what the state of the run's latest checkpoint says: the step of the best evaluation, or of the
    last healthy weights if the run ended ill; None if it says neither. Raises UserError if that is
    damaged."""
    path = latest / STATE_FILE
    if not path.exists() and not (latest / SEAL_FILE).exists():
        return None
    if (wrong := damage(latest, only=STATE_FILE)) is not None:
        raise _damaged(latest, wrong)
    state = json.loads(path.read_text(encoding="utf-8"))["state"]
    best: int | None = state.get("best_step")
    return state.get("good_step") if best is None and state.get("is_ill") else best


@contextmanager
def sealed_dir(final: Path) -> Iterator[Path]:
    """`atomic_dir` for a checkpoint: its seal is written last, for `damage` to compare."""
    with atomic_dir(final) as draft:
        yield draft
        seal(draft)


def seal(folder: Path) -> None:
    """Write the SHA-256 of every file in `folder` next to them."""
    files = [path for path in folder.rglob("*") if path.is_file()]
    hashes = {path.relative_to(folder).as_posix(): sha256_of(path) for path in files}
    (folder / SEAL_FILE).write_text(json.dumps(hashes, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def damage(checkpoint: Path, *, only: str | None = None) -> str | None:
    """Return what is wrong with a checkpoint of a training run; None if every file is as it was written, and
    no other file is there. `only` looks at one file."""
    try:
        hashes = json.loads((checkpoint / SEAL_FILE).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return f"it lacks {SEAL_FILE}"
    except (ValueError, RecursionError):
        return f"{SEAL_FILE} is not JSON"
    if not isinstance(hashes, dict):
        return f"{SEAL_FILE} is not a JSON object"
    for name in hashes if only is None else (only,):
        path = checkpoint / name
        if not path.is_file():
            return f"it lacks {name}"
        if sha256_of(path) != hashes.get(name):
            return f"{name} is not what was written (truncated or changed)"
    added = sorted(set(_readable(checkpoint)) - hashes.keys()) if only is None else ()
    return f"{added[0]} was added to it" if added else None


# What the files of checked folders looked like, for the length of the process.
_whole: dict[Path, object] = {}


def verified(folder: Path) -> Path:
    """`folder`, whose files are what was written if it is a checkpoint of a training run. Whatever reads
    weights, a tokenizer or a state from a folder calls this first. Raises UserError."""
    if not (folder / SEAL_FILE).exists() and not (folder / STATE_FOLDER).exists():
        return folder  # not written by a training run: there is nothing to hold it against
    place, asked_at = folder.resolve(), time.time()
    looks = {
        name: (stat.st_size, stat.st_ino, stat.st_mtime_ns, stat.st_ctime_ns)
        for name in [*_readable(folder), SEAL_FILE]
        if (folder / name).exists() and (stat := (folder / name).stat())
    }
    if _whole.get(place) == looks:
        return folder
    if (wrong := damage(folder)) is not None:
        raise _damaged(folder, wrong)
    if all(changed / 1e9 < asked_at - _SETTLED_S for _, _, *times in looks.values() for changed in times):
        _whole[place] = looks
    return folder


def _damaged(checkpoint: Path, wrong: str) -> UserError:
    run = run_of(checkpoint)
    return UserError(
        f"the checkpoint cannot be used: {wrong}",
        where=str(checkpoint),
        remedy="copy it again from where it came from"
        + ("" if run is None else f", or use another one of the run, in {run.checkpoints}"),
    )


def _readable(folder: Path) -> Iterator[str]:
    """The names of the files that a loader could read: all but hidden ones, the seal, and what people add."""
    for parent, folders, files in os.walk(folder):
        # A link to a folder is listed by itself: it is not followed, and nothing of ours writes one.
        links = [name for name in folders if (Path(parent) / name).is_symlink()]
        folders[:] = [name for name in folders if not name.startswith(".") and name not in links]
        for name in [*files, *links]:
            inside = (Path(parent) / name).relative_to(folder).as_posix()
            if not name.startswith(".") and inside not in (SEAL_FILE, *_NOT_READ):
                yield inside


def last_good_checkpoint(run: RunFolder) -> Path | None:
    """Return the latest checkpoint, compared with its hashes. Raises UserError if it is damaged: the message
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
    """Return the run that wrote `checkpoint`; None if it lies in no run folder."""
    folder = checkpoint.resolve().parent
    run = RunFolder(folder.parent)
    return run if folder.name == run.checkpoints.name and run.config_path.is_file() else None


def weights_sha256(folder: Path) -> str | None:
    """SHA-256 over the names and hashes of the weight files in `folder`; None if there is none."""
    total = hashlib.sha256()
    files = sorted({file for pattern in _WEIGHTS for file in folder.glob(pattern)})
    for file in files:
        total.update(f"{sha256_of(file)}  {file.name}\n".encode())
    return total.hexdigest() if files else None


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes."""
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _is_model(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (MODEL_FILE, ADAPTER_FILE, SEAL_FILE))
