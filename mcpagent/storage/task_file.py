"""A dataset of any size as a sequence of tasks."""

from __future__ import annotations

import errno
import hashlib
import io
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self, overload

from mcpagent.core.tasks import Task
from mcpagent.errors import MCPAgentError, UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.compression import is_compressed, open_bytes
from mcpagent.storage.disk_table import DiskTable, digest
from mcpagent.storage.jsonl import empty_dataset, parse_task
from mcpagent.storage.records import decode_line, locate_records, reading

_ENTRY = struct.Struct("<QQQ")  # line, start and end of a record
# From here on, to make the index again takes half a second or more.
_KEPT_FROM = 10_000


class TaskFile(Sequence[Task]):
    """Records and index stay on disk: any task is two reads away, and memory does not grow with the file.

    Opening it validates every record and its id once (the first `max_tasks` only, where given). The index of
    a large file is kept in the user's cache under the hash of the file, and never used for other contents. A
    compressed file is expanded into an unnamed temporary one, which is gone when this is closed. Raises
    UserError like `read_tasks`, and where two tasks have one id: attempts are kept apart by it.
    """

    def __init__(self, path: Path | str, *, max_tasks: int | None = None) -> None:
        self.path = Path(path)
        with reading(self.path), self.path.open("rb") as stream:
            self.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()  # of the whole file on disk
        self._file = self._expanded() if is_compressed(self.path) else self.path.open("rb")
        try:
            self._index = self._kept_index() or self._made_index(max_tasks)
        except UserError:
            self._file.close()
            raise
        entries = os.fstat(self._index.fileno()).st_size // _ENTRY.size
        self._length = entries if max_tasks is None else min(entries, max_tasks)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = range(len(self))[index] * _ENTRY.size
        # pread leaves the position of a file alone, so threads can share it.
        line, start, end = _ENTRY.unpack(os.pread(self._index.fileno(), _ENTRY.size, place))
        raw = os.pread(self._file.fileno(), end - start, start)
        return parse_task(decode_line(raw.strip(), path=self.path, line=line), where=f"{self.path}:{line}")

    def close(self) -> None:
        self._file.close()
        self._index.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _expanded(self) -> io.BufferedRandom:
        copy = _unnamed_file()
        try:
            with reading(self.path), open_bytes(self.path) as stream:
                _copy(stream, copy, of=self.path)
        except UserError:
            copy.close()
            raise
        copy.seek(0)
        return copy

    def _kept_index(self) -> IO[bytes] | None:
        try:
            return _kept_at(self.sha256).open("rb")
        except OSError:
            return None

    def _made_index(self, max_tasks: int | None) -> IO[bytes]:
        index = _unnamed_file()
        try:
            is_whole = True
            count = 0
            for entry in self._entries():
                index.write(_ENTRY.pack(*entry))
                count += 1
                if count == max_tasks:
                    is_whole = False
                    break
            if not count:
                raise empty_dataset(self.path)
        except UserError:
            index.close()
            raise
        index.flush()
        if is_whole and count >= _KEPT_FROM:
            _keep(index, self.sha256)
        return index

    def _entries(self) -> Iterator[tuple[int, int, int]]:
        with reading(self.path), DiskTable() as ids:
            for line, start, end, record in locate_records(self._file, self.path):
                if isinstance(record, UserError):
                    raise record
                task = parse_task(record, where=f"{self.path}:{line}")
                if (first := ids.add(digest(task.id), line)) is not None:
                    raise UserError(
                        f"the task id {task.id!r} occurs twice, in lines {first} and {line}",
                        where=str(self.path),
                        remedy=f"mcpagent data validate {self.path} names the lines",
                    )
                yield line, start, end


def _copy(stream: IO[bytes], copy: IO[bytes], *, of: Path) -> None:
    try:
        shutil.copyfileobj(stream, copy)
        copy.flush()
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            f"does not fit into {tempfile.gettempdir()} when it is expanded",
            where=str(of),
            remedy="name a folder with more room in TMPDIR, or expand the file yourself",
        ) from None


def _kept_at(sha256: str) -> Path:
    cache = os.environ.get("XDG_CACHE_HOME") or "~/.cache"
    return Path(cache).expanduser() / "mcpagent" / "index-1" / sha256


def _keep(index: IO[bytes], sha256: str) -> None:
    try:
        index.seek(0)
        with atomic_file(_kept_at(sha256)) as temporary, temporary.open("wb") as copy:
            shutil.copyfileobj(index, copy)
    except (OSError, MCPAgentError):
        pass  # a cache that cannot be written to costs time only


def _unnamed_file() -> io.BufferedRandom:
    """Without a name, so that it is gone even after a kill."""
    return tempfile.TemporaryFile(prefix="mcpagent-")
