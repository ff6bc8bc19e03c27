"""A dataset of any size as a sequence of tasks."""

from __future__ import annotations

import codecs
import hashlib
import os
import tempfile
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO, Self, overload

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.compression import is_compressed
from mcpagent.storage.jsonl import empty_dataset, encode_record, parse_task
from mcpagent.storage.records import decode_line, read_records, reading


class TaskFile(Sequence[Task]):
    """Byte offsets in memory, records on disk.

    Opening it validates every record once (the first `max_tasks` only, where given). A JSON array or a
    compressed file is spooled to an unnamed temporary file, which is gone when this is closed. Raises
    UserError like `read_tasks`.
    """

    def __init__(self, path: Path | str, *, max_tasks: int | None = None) -> None:
        self.path = Path(path)
        with reading(self.path), self.path.open("rb") as stream:
            self.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()  # of the whole file on disk
        self._spans = array("Q")  # start, end and source line of each record
        is_plain = self._is_plain()
        self._file: IO[bytes] = self.path.open("rb") if is_plain else _spool_file()
        try:
            for span in self._plain_spans() if is_plain else self._spooled_spans():
                self._spans.extend(span)
                if len(self) == max_tasks:
                    break
            if not self._spans:
                raise empty_dataset(self.path)
        except UserError:
            self.close()
            raise
        self._file.flush()

    def __len__(self) -> int:
        return len(self._spans) // 3

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        position = 3 * range(len(self))[index]
        start, end, line = self._spans[position : position + 3]
        # pread leaves the position of the file alone, so threads can share it.
        raw = os.pread(self._file.fileno(), end - start, start)
        return parse_task(decode_line(raw.strip(), path=self.path, line=line), where=f"{self.path}:{line}")

    def close(self) -> None:
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_plain(self) -> bool:
        """One object a line, uncompressed, so that offsets into the file itself will do."""
        if is_compressed(self.path):
            return False
        with reading(self.path), self.path.open("rb") as stream:
            first = stream.read(3)
            while first.isspace():
                first = stream.read(1)
        return first.lstrip()[:1] != b"[" and first != codecs.BOM_UTF8

    def _plain_spans(self) -> Iterator[tuple[int, int, int]]:
        end = 0
        for line, raw in enumerate(self._file, 1):
            start, end = end, end + len(raw)
            if raw.isspace():
                continue
            parse_task(decode_line(raw.strip(), path=self.path, line=line), where=f"{self.path}:{line}")
            yield start, end, line

    def _spooled_spans(self) -> Iterator[tuple[int, int, int]]:
        end = 0
        for line, record in read_records(self.path):
            parse_task(record, where=f"{self.path}:{line}")
            raw = encode_record(record)
            self._file.write(raw)
            start, end = end, end + len(raw)
            yield start, end, line


def _spool_file() -> IO[bytes]:
    """Without a name, so that it is gone even after a kill."""
    return tempfile.TemporaryFile(prefix="mcpagent-")
