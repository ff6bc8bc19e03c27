"""The generated splits as files: all of them, or none."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.jsonl import write_jsonl
from mcpagent.synth.pools import SPLITS


def check_output(folder: Path, *, overwrite: bool) -> None:
    """Refuse, before any work is done, to replace splits that are already in `folder`. Raises UserError."""
    if folder.exists() and not folder.is_dir():
        raise UserError("is a file, but the splits need a folder", where=str(folder))
    existing = [path for split in SPLITS if (path := split_path(folder, split)).exists()]
    if existing and not overwrite:
        raise UserError(
            f"{', '.join(path.name for path in existing)} would be replaced",
            where=str(folder),
            remedy="add --overwrite, or choose another folder with --out",
        )


def write_splits(
    tasks: Mapping[str, Sequence[Task]], folder: Path, *, overwrite: bool = False
) -> dict[str, Path]:
    """Write `SPLIT.jsonl` for each split of `tasks` and return the paths.

    Nothing appears in `folder` before every file is complete. With `overwrite`, files of splits that `tasks`
    lacks are removed: beside splits of another seed they would leak. Raises UserError.
    """
    check_output(folder, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as temporary:
        for split, members in tasks.items():
            write_jsonl(split_path(Path(temporary), split), members)
        for split in SPLITS:
            if split in tasks:
                split_path(Path(temporary), split).replace(split_path(folder, split))
            else:
                split_path(folder, split).unlink(missing_ok=True)
    return {split: split_path(folder, split) for split in tasks}


def split_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.jsonl"
