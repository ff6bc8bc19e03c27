"""A data folder that each episode gets a copy of, so that what a server writes is gone with its episode.

The folder is snapshotted once, when the servers start; a copy is made of that, never of what may have changed
since. The server sees the copy; a model, a dataset and a cassette see the path of the folder itself.
"""

from __future__ import annotations

import fcntl
import hashlib
import itertools
import os
import re
import shutil
import sqlite3
import stat
import threading
from collections.abc import Callable
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote

from mcp.types import CallToolResult, Tool

from mcpagent.config.source import set_option
from mcpagent.errors import UserError
from mcpagent.tools.servers_config import StdioServer

M = TypeVar("M", Tool, CallToolResult)

_VARIABLE = re.compile(r"\$\{WORKSPACE(?::-([^}]*))?\}")
_FICLONE = 0x40049409  # linux/fs.h: a file that shares its blocks with another until one is written
_MOST_LOOKED_AT = 400  # files at one level of a folder
_SQLITE = b"SQLite format 3\0"
_SQLITE_SIDES = ("-wal", "-shm", "-journal")


class Workspace:
    """The snapshot of a folder, or of one file, and its copies below `folder`. Raises UserError for what
    cannot be copied."""

    def __init__(self, server: str, source: Path, folder: Path) -> None:
        self.source = Path(os.path.normpath(source.expanduser().absolute()))
        self._server = server
        self._folder = folder
        self._numbers = itertools.count(1)
        self._snapshot = folder / "start" / self.source.name
        if not self.source.exists():
            raise self._refused("is not there")
        self._check_copyable()
        self._snapshot.parent.mkdir(parents=True)
        copy_tree(self.source, self._snapshot, is_snapshot=True)

    def copy(self) -> WorkspaceCopy:
        """Return a copy that is not on disk before it is needed."""
        place = self._folder / f"{next(self._numbers):06d}" / self.source.name
        return WorkspaceCopy(self.source, self._snapshot, place)

    def _check_copyable(self) -> None:
        for path in [self.source, *below(self.source)]:
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                target = Path(os.path.normpath(path.parent / path.readlink()))
                if path.readlink().is_absolute() or not target.is_relative_to(self.source):
                    raise self._refused(f"has a link that leads out of it: {path}")
            elif not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise self._refused(f"holds what cannot be copied: {path}")

    def _refused(self, why: str) -> UserError:
        return UserError(f"{self.source} {why}", where=f"tools.per_server.{self._server}.workspace")


class WorkspaceCopy:
    """The copy of one instance of a server."""

    def __init__(self, source: Path, snapshot: Path, path: Path) -> None:
        self.path = path
        self._source = str(source)
        self._snapshot = snapshot
        self._lock = threading.Lock()
        # Not within a longer name: /data is not meant in /data-2 or /data.txt.
        self._to_server = re.compile(re.escape(self._source) + r"(?![\w.-])")
        self._to_model = re.compile(re.escape(str(path)) + r"(?![\w.-])")

    def make(self) -> Path:
        """Put the copy on disk, once."""
        with self._lock:
            if not self.path.exists():
                self.path.parent.mkdir(parents=True, exist_ok=True)
                copy_tree(self._snapshot, self.path)
        return self.path

    def remove(self) -> None:
        """Take the copy off the disk. Idempotent."""
        with self._lock:
            shutil.rmtree(self.path.parent, ignore_errors=True)

    def applied(self, server: StdioServer) -> StdioServer:
        """Return the server on this copy, which replaces `${WORKSPACE}` and the folder, and is its working
        folder."""

        def there(text: str) -> str:
            return self._to_server.sub(str(self.path), _VARIABLE.sub(lambda _: str(self.path), text))

        folder = self.path if self.path.is_dir() else self.path.parent
        applied = _with_texts(server, there)
        return replace(applied, cwd=applied.cwd or str(folder))

    def to_server(self, value: Any) -> Any:
        """Return a JSON value with the path of the copy where that of the folder stood."""
        return _mapped(value, self._to_server, str(self.path))

    def to_model(self, value: Any) -> Any:
        """Return a JSON value with the path of the folder where that of the copy stood."""
        return _mapped(value, self._to_model, self._source)

    def mapped(self, model: M) -> M:
        """Return a tool or an answer of the server, with the path of the folder where it names the copy."""
        document = model.model_dump(by_alias=True, exclude_none=True)
        if str(self.path) not in str(document):
            return model
        return type(model).model_validate(self.to_model(document))


def with_defaults(server: StdioServer) -> StdioServer:
    """Return a server without a workspace: `${WORKSPACE:-FOLDER}` is FOLDER. Raises UserError if it has
    none."""

    def default(match: re.Match[str]) -> str:
        if match[1] is None:
            option = set_option("tools", "per_server", server.name, "workspace", value="FOLDER")
            raise UserError(
                f"server {server.name!r} names ${{WORKSPACE}}, and has no workspace",
                where=f"tools.per_server.{server.name}.workspace",
                remedy=f"{option}, or a default for other uses: ${{WORKSPACE:-FOLDER}}",
            )
        return match[1]

    return _with_texts(server, lambda text: _VARIABLE.sub(default, text))


def _with_texts(server: StdioServer, change: Callable[[str], str]) -> StdioServer:
    """Return the server with every text changed that may name a folder."""
    return replace(
        server,
        args=tuple(map(change, server.args)),
        env={name: change(text) for name, text in server.env.items()},
        cwd=None if server.cwd is None else change(server.cwd),
    )


def below(top: Path) -> list[Path]:
    """Return everything in a folder, sorted, links not followed; nothing for a file."""
    return sorted(top.rglob("*"))


def tree_digest(top: Path) -> str:
    """SHA-256 over the names, kinds, permissions and bytes of a folder or file."""
    digest = hashlib.sha256()
    for path in [top, *below(top)]:
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(top)}\0{mode:o}\0".encode("utf-8", "surrogateescape"))
        if stat.S_ISLNK(mode):
            digest.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            digest.update(f"{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                hashlib.file_digest(file, lambda: digest)
    return digest.hexdigest()


def copy_tree(source: Path, target: Path, *, is_snapshot: bool = False) -> None:
    """Copy a folder or file with its times and permissions; files share their blocks if the file system
    can. For a snapshot, a SQLite database that is in use is copied as of its last transaction."""
    copy_file = _snapshot_file if is_snapshot else _copy_file
    if source.is_dir():
        ignored = _beside_databases if is_snapshot else None
        shutil.copytree(source, target, symlinks=True, ignore=ignored, copy_function=copy_file)
    else:
        copy_file(str(source), str(target))


def _snapshot_file(source: str, target: str) -> None:
    path = Path(source)
    if not (_is_database(path) and any(map(Path.exists, _sides(path)))):
        return _copy_file(source, target)
    with (
        closing(sqlite3.connect(f"file:{quote(source)}?mode=ro", uri=True)) as database,
        closing(sqlite3.connect(target)) as copy,
    ):
        database.backup(copy)
    return shutil.copystat(source, target)


def _copy_file(source: str, target: str) -> None:
    with Path(source).open("rb") as read, Path(target).open("xb") as write:
        try:
            fcntl.ioctl(write.fileno(), _FICLONE, read.fileno())
        except OSError:  # not on this file system, or on two
            shutil.copyfileobj(read, write, 2**20)
    shutil.copystat(source, target)


def _is_database(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE


def _sides(database: Path) -> list[Path]:
    return [database.with_name(database.name + side) for side in _SQLITE_SIDES]


def _beside_databases(folder: str, names: list[str]) -> set[str]:
    """Return the files of a folder that belong to a database in it."""
    owners = {
        name: Path(folder, name.removesuffix(side))
        for name in names
        for side in _SQLITE_SIDES
        if name.endswith(side)
    }
    return {name for name, database in owners.items() if database.is_file() and _is_database(database)}


def _mapped(value: Any, pattern: re.Pattern[str], replacement: str) -> Any:
    if isinstance(value, str):
        return pattern.sub(lambda _: replacement, value)
    if isinstance(value, dict):
        return {_mapped(k, pattern, replacement): _mapped(v, pattern, replacement) for k, v in value.items()}
    if isinstance(value, list):
        return [_mapped(item, pattern, replacement) for item in value]
    return value


def files_below(folder: Path, *, most: int) -> list[str]:
    """Return the files in a folder and in those in it, as paths from it, in order; hidden ones are left out,
    and a level with more than is worth a look."""
    files: list[str] = []
    for pattern in ("*", "*/*"):
        try:
            inside = list(itertools.islice(folder.glob(pattern), _MOST_LOOKED_AT + 1))
            paths = [path.relative_to(folder) for path in inside if path.is_file()]
        except OSError:
            return files
        if len(inside) <= _MOST_LOOKED_AT:
            shown = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
            files += sorted(map(str, shown))[:most]
    return files
