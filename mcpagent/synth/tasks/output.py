"""A dataset as files: the splits, all of them or none, and what their folder remembers of the servers."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from mcpagent.config.dataset_servers import DatasetServers, read_dataset_servers
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.atomic import write_text
from mcpagent.storage.datasets import write_jsonl
from mcpagent.synth.templates.pools import SPLITS


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


def check_dataset_servers(servers: DatasetServers, *, overwrite: bool) -> None:
    """Refuse, before any work is done, to tell the other tasks of a folder that their servers are these.
    Raises UserError."""
    path = servers.path
    if overwrite or not path.is_file():
        return
    known = read_dataset_servers(path)
    if known is not None and not known.says_the_same(servers):
        raise UserError(
            f"{path.name} names other servers for the tasks of this folder, and would be replaced",
            where=str(path.parent),
            remedy="add --overwrite, or choose another folder with --out",
        )


def carry_servers(source: Path, folder: Path, *, overwrite: bool) -> DatasetServers | None:
    """What the folder of the file `source` remembers, for its tasks in `folder`; None where that is the same
    folder, or nothing is remembered. Raises UserError where the tasks of `folder` have other servers."""
    known = read_dataset_servers(source)
    if known is None or source.resolve().parent == folder.resolve():
        return None
    carried = known.at(folder)
    check_dataset_servers(carried, overwrite=overwrite)
    return carried


def write_servers(servers: DatasetServers | None) -> None:
    """Write what a folder is to remember, where there is something. Before its tasks: tasks without their
    servers would be played on others."""
    if servers is not None:
        write_text(servers.path, servers.as_yaml(), is_settings=True)


def write_splits(
    tasks: Mapping[str, Sequence[Task]],
    folder: Path,
    *,
    servers: DatasetServers | None = None,
    overwrite: bool = False,
) -> dict[str, Path]:
    """Write `SPLIT.jsonl` for each split of `tasks` that has one, and the `servers` that they were made with,
    and return the paths of the splits.

    Nothing appears in `folder` before every file is complete. With `overwrite`, files of splits without tasks
    are removed: beside splits of another seed they would leak. Raises UserError.
    """
    tasks = {split: members for split, members in tasks.items() if members}
    check_output(folder, overwrite=overwrite)
    if servers is not None:
        check_dataset_servers(servers, overwrite=overwrite)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tmp-") as temporary:
        for split, members in tasks.items():
            write_jsonl(split_path(Path(temporary), split), members)
        write_servers(servers)
        for split in SPLITS:
            if split in tasks:
                split_path(Path(temporary), split).replace(split_path(folder, split))
            else:
                split_path(folder, split).unlink(missing_ok=True)
    return {split: split_path(folder, split) for split in tasks}


def short_note(short: Mapping[str, tuple[int, int]], why: str) -> str:
    """One sentence: which splits have fewer tasks than were asked for (made, asked), and why."""
    parts = [
        f"{split} has {made} of {asked} tasks" + ("" if made else " and no file")
        for split, (made, asked) in short.items()
    ]
    return f"{', '.join(parts)}: {why}"


def split_path(folder: Path, split: str) -> Path:
    return folder / f"{split}.jsonl"
