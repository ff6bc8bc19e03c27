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
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote

from mcp.types import CallToolResult, Tool

from mcpagent.errors import UserError
from mcpagent.tools.servers_config import StdioServer

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
        self._made = 0
        self._lock = threading.Lock()
        self._snapshot = folder / "start" / self.source.name
        if not self.source.exists():
            raise self._refused("is not there")
        self._check_copyable()
        self._snapshot.parent.mkdir(parents=True)
        copy_tree(self.source, self._snapshot, is_snapshot=True)

    def copy(self) -> WorkspaceCopy:
        """Return a copy that is not on disk before it is needed."""
        with self._lock:
            self._made += 1
            place = self._folder / f"{self._made:06d}" / self.source.name
        return WorkspaceCopy(self.source, self._snapshot, place)

    def _check_copyable(self) -> None:
        for path in [self.source, *walk(self.source)]:
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
        return replace(
            server,
            args=tuple(map(there, server.args)),
            env={name: there(text) for name, text in server.env.items()},
            cwd=str(folder) if server.cwd is None else there(server.cwd),
        )

    def to_server(self, value: Any) -> Any:
        """Return a JSON value with the path of the copy where that of the folder stood."""
        return _mapped(value, self._to_server, str(self.path))

    def to_model(self, value: Any) -> Any:
        """Return a JSON value with the path of the folder where that of the copy stood."""
        return _mapped(value, self._to_model, self._source)

    def tool(self, tool: Tool) -> Tool:
        """Return a tool whose description or schema may name the folder."""
        said = tool.model_dump(by_alias=True, exclude_none=True)
        return tool if str(self.path) not in str(said) else Tool.model_validate(self.to_model(said))

    def result(self, result: CallToolResult) -> CallToolResult:
        """Return an answer that may name the folder."""
        said = result.model_dump(by_alias=True, exclude_none=True)
        return (
            result if str(self.path) not in str(said) else CallToolResult.model_validate(self.to_model(said))
        )


def with_defaults(server: StdioServer) -> StdioServer:
    """Return a server without a workspace: `${WORKSPACE:-FOLDER}` is FOLDER. Raises UserError if it has
    none."""
    texts = [*server.args, *server.env.values(), server.cwd or ""]
    if not any("${WORKSPACE" in text for text in texts):
        return server

    def default(match: re.Match[str]) -> str:
        if match[1] is None:
            raise UserError(
                f"server {server.name!r} names ${{WORKSPACE}}, and has no workspace",
                where=f"tools.per_server.{server.name}.workspace",
                remedy=f"--set tools.per_server.{server.name}.workspace=FOLDER, or a default for other uses: "
                "${WORKSPACE:-FOLDER}",
            )
        return match[1]

    return replace(
        server,
        args=tuple(_VARIABLE.sub(default, text) for text in server.args),
        env={name: _VARIABLE.sub(default, text) for name, text in server.env.items()},
        cwd=None if server.cwd is None else _VARIABLE.sub(default, server.cwd),
    )


def walk(top: Path) -> Iterator[Path]:
    """Everything below a folder, sorted, links not followed; nothing for a file."""
    if top.is_dir() and not top.is_symlink():
        for path in sorted(top.iterdir()):
            yield path
            yield from walk(path)


def tree_digest(top: Path) -> str:
    """SHA-256 over the names, kinds, permissions and bytes of a folder or file."""
    digest = hashlib.sha256()
    for path in [top, *walk(top)]:
        mode = path.lstat().st_mode
        digest.update(f"{path.relative_to(top)}\0{mode:o}\0".encode("utf-8", "surrogateescape"))
        if stat.S_ISLNK(mode):
            digest.update(os.fsencode(path.readlink()))
        elif stat.S_ISREG(mode):
            digest.update(f"{path.stat().st_size}\0".encode())
            with path.open("rb") as file:
                while block := file.read(2**20):
                    digest.update(block)
    return digest.hexdigest()


def copy_tree(source: Path, target: Path, *, is_snapshot: bool = False) -> None:
    """Copy a folder or file with its times and permissions; files share their blocks if the file system
    can. For a snapshot, a SQLite database that is in use is copied as of its last transaction."""
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir()
        for path in sorted(source.iterdir()):
            if not (is_snapshot and _is_beside_database(path)):
                copy_tree(path, target / path.name, is_snapshot=is_snapshot)
        shutil.copystat(source, target)
    elif is_snapshot and _is_database(source) and any(map(Path.exists, _sides(source))):
        with (
            closing(sqlite3.connect(f"file:{quote(str(source))}?mode=ro", uri=True)) as database,
            closing(sqlite3.connect(target)) as copy,
        ):
            database.backup(copy)
        shutil.copystat(source, target)
    else:
        _copy_file(source, target)


def _copy_file(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("xb") as write:
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


def _is_beside_database(path: Path) -> bool:
    side = next((side for side in _SQLITE_SIDES if path.name.endswith(side)), None)
    if side is None:
        return False
    database = path.with_name(path.name.removesuffix(side))
    return database.is_file() and _is_database(database)


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
