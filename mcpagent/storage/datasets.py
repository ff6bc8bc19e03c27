"""Datasets of tasks as files: found, streamed, indexed, and written atomically."""

from __future__ import annotations

import errno
import hashlib
import io
import itertools
import json
import os
import pickle
import shlex
import shutil
import struct
import tempfile
import threading
import weakref
from array import array
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeVar, overload

import jsonlines
from pydantic import BaseModel, ValidationError

from mcpagent.core.records import JsonObject, describe
from mcpagent.core.redact import SECRETS
from mcpagent.core.tasks import Task
from mcpagent.errors import MCPAgentError, UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.json_stream import (
    compressed_writer,
    decode_line,
    is_compressed,
    locate_records,
    open_bytes,
    plain_suffix,
    read_records,
    reading,
)

_DATA_FOLDERS = ("data/processed", "data/inputs")
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".json.zst", ".jsonl.zst")


def find_dataset(
    given: str | None, *, split: Literal["train", "validation"], beside: str | None = None
) -> Path:
    """The file `given`; without one, that of the split in the folder of the file `beside`, then the default
    one. Raises UserError if it is not there."""
    if given is not None:
        path = dataset_file(Path(given), split)
        if not path.is_file():
            raise UserError(
                "there is no such dataset",
                where=given,
                remedy=_remedy(split),
            )
        return path
    folders = _DATA_FOLDERS
    if beside is not None:
        near = Path(beside)
        folders = (str(near if near.is_dir() else near.parent), *_DATA_FOLDERS)
    dataset = next((path for folder in folders if (path := _in_folder(Path(folder), split))), None)
    if dataset is not None:
        return dataset
    raise UserError(
        f"there is no {split} dataset: data.{split} is not set, and none of {', '.join(folders)} "
        f"holds {split}.json or {split}.jsonl",
        remedy=_remedy(split),
    )


def _remedy(split: str) -> str:
    option = "--data" if split == "train" else f"--set data.{split}=FILE"
    return f"name a file with {option}, or make one: mcpagent gen-data" + _or_without(split)


def _or_without(split: str) -> str:
    """What else a training run may do where its validation tasks are missing."""
    return "; training does without: --set training.eval_every=0" if split == "validation" else ""


def dataset_file(path: Path, *splits: str) -> Path:
    """The file of the first of `splits` that the folder `path` holds; `path` itself where it is not a folder.
    Raises UserError."""
    if not path.is_dir():
        return path
    dataset = next((file for split in splits if (file := _in_folder(path, split))), None)
    if dataset is None:
        raise UserError(
            f"the folder holds no dataset ({' or '.join(f'{split}.jsonl' for split in splits)})",
            where=str(path),
            remedy=f"make one: mcpagent gen-data --out {shlex.quote(str(path))}",
        )
    return dataset


def _in_folder(folder: Path, split: str) -> Path | None:
    return next((path for suffix in _SUFFIXES if (path := folder / (split + suffix)).is_file()), None)


def read_tasks(path: Path | str) -> Iterator[Task]:
    """The tasks of a dataset in order, in bounded memory. Raises UserError with file and line for whatever is
    wrong with it, and for a dataset without a task."""
    file = Path(path)
    count = 0
    for line, record in read_records(file):
        yield parse_task(record, where=f"{file}:{line}")
        count += 1
    if not count:
        raise empty_dataset(file)


def parse_task(record: JsonObject, *, where: str) -> Task:
    """Raises UserError with everything that is wrong with the record."""
    try:
        return Task.model_validate(record)
    except ValidationError as error:
        raise UserError(
            "; ".join(describe(detail) for detail in error.errors()),
            where=where,
            remedy="fix the record; mcpagent data validate FILE lists all that are wrong",
        ) from None


def empty_dataset(path: Path) -> UserError:
    """The error for a dataset without a task."""
    remedy = "make one: mcpagent gen-data" + _or_without(path.name.partition(".")[0])
    return UserError("the dataset holds no task", where=str(path), remedy=remedy)


def write_jsonl(path: Path | str, records: Iterable[BaseModel | Mapping[str, Any]]) -> int:
    """Write records atomically and return their number; the name decides the form: `.json` is an array with a
    record on each line, anything else JSONL; `.gz` and `.zst` compress. Equal records give equal bytes."""
    final = Path(path)
    is_array = plain_suffix(final) == ".json"
    count = 0
    with (
        atomic_file(final) as temporary,
        compressed_writer(temporary, suffix=final.suffix) as stream,
    ):
        if not is_array:
            lines = record_writer(stream)
            for record in records:
                lines.write(record)
                count += 1
            return count
        for record in records:
            stream.write((b",\n" if count else b"[\n") + encode_record(record))
            count += 1
        stream.write(b"\n]\n" if count else b"[]\n")
    return count


_PART_SCHEMA = 1


def part_path(folder: Path, shard: tuple[int, int]) -> Path:
    """Where a shard (I, N) of a dataset is kept: all of them may share a folder."""
    return folder / f"shard-{shard[0]}-of-{shard[1]}.jsonl"


def write_part(
    path: Path,
    shard: tuple[int, int],
    rows: Sequence[JsonObject],
    *,
    head: Mapping[str, Any],
    run: Mapping[str, Any],
) -> JsonObject:
    """Write the file of a shard: a first line with what has to be the same in every shard (`run`) and what it
    says of itself (`head`), then its rows. The account of it."""
    first = {"schema_version": _PART_SCHEMA, "shard": list(shard), "rows": len(rows), **head, "run": run}
    write_jsonl(path, itertools.chain([first], rows))
    made = sum("task" in row for row in rows)
    return {"shard": list(shard), "candidates": len(rows), "records": made, "path": str(path)}


def read_part(path: Path) -> JsonObject:
    """The first line of the file of a shard. Raises UserError where it is another file, or rows are
    missing."""
    records = (record for _, record in read_records(path))
    first = next(records, {})
    if first.get("schema_version") != _PART_SCHEMA or not {"run", "shard", "rows"} <= first.keys():
        raise UserError(
            "is not a shard of a dataset",
            where=str(path),
            remedy="name the files shard-I-of-N.jsonl that gen-data --shard I/N wrote",
        )
    rows = sum(1 for _ in records)
    if rows != first["rows"]:
        raise UserError(
            f"{rows} of its {first['rows']} rows are there",
            where=str(path),
            remedy="copy it again, or make it again with the same gen-data --shard",
        )
    return first


def part_rows(path: Path) -> Iterator[tuple[str, JsonObject]]:
    """The rows of the file of a shard that `read_part` accepts, each with its place for an error."""
    for number, (_, row) in enumerate(read_records(path), start=1):
        if number > 1:
            yield f"{path}:{number}", row


def record_writer(stream: IO[bytes], *, flush: bool = False) -> jsonlines.Writer:
    """What writes records to a stream, a line each, as `encode_record` gives them."""
    # pyright does not know that attrs drops the underscore of a private field from its parameter.
    return jsonlines.Writer(stream, dumps=encode_record, flush=flush)  # pyright: ignore[reportCallIssue]


def record_reader(stream: IO[bytes]) -> jsonlines.Reader:
    """What reads the lines of a file that is appended to; see `complete_lines`. A line that is not JSON
    raises `jsonlines.InvalidLineError`, a ValueError with the line's number."""
    return jsonlines.Reader(complete_lines(stream), loads=_loads)  # pyright: ignore[reportCallIssue]


def complete_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file that is appended to; a last one without its end, which a kill cut off, is left
    out."""
    return (line for line in stream if line.endswith(b"\n"))


def _loads(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def encode_record(record: BaseModel | Mapping[str, Any]) -> bytes:
    """One line of JSON, without secrets and without its newline. Raises ValueError for a number that JSON
    does not have."""
    value = task_record(record) if isinstance(record, Task) else record
    if isinstance(value, BaseModel):
        value = value.model_dump()
    value = SECRETS.value(value)
    try:
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    except UnicodeEncodeError:
        # Half of a surrogate pair, which models do write in arguments, exists in JSON only as an escape.
        return json.dumps(value, allow_nan=False).encode()


def task_record(task: Task) -> JsonObject:
    """The task as its dataset record: what was given, and what other readers of the format need."""
    record = task.model_dump(mode="json", exclude_unset=True)
    return {
        "data_source": task.data_source,
        "env_class": task.env_class,
        **record,
        "reward_spec": {"method": task.reward_spec.method, **record["reward_spec"]},
        "extra_info": task.extra_info,
    }


def text_digest(text: str) -> int:
    """64 bits that stand for a text in tables with an entry for each of many thousand tasks."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


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

    def __init__(
        self, path: Path | str, *, max_tasks: int | None = None, shard: tuple[int, int] = (1, 1)
    ) -> None:
        """`shard` (I, N) leaves every N-th task from the I-th on."""
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
        number, of = shard
        self._places = range(number - 1, entries if max_tasks is None else min(entries, max_tasks), of)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> Task: ...
    @overload
    def __getitem__(self, index: slice) -> list[Task]: ...
    def __getitem__(self, index: int | slice) -> Task | list[Task]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        return self._read(self._index, self._places[index])[1]

    def _read(self, index: IO[bytes], place: int) -> tuple[int, Task]:
        # pread leaves the position of a file alone, so threads can share it.
        line, start, end = _ENTRY.unpack(os.pread(index.fileno(), _ENTRY.size, place * _ENTRY.size))
        raw = os.pread(self._file.fileno(), end - start, start).strip()
        return line, parse_task(decode_line(raw, path=self.path, line=line), where=f"{self.path}:{line}")

    def mentions(self, text: bytes) -> bool:
        """Whether `text` occurs anywhere in the file, in any record or field."""
        size, overlap, position = 1 << 20, len(text) - 1, 0
        while chunk := os.pread(self._file.fileno(), size + overlap, position):
            if text in chunk:
                return True
            position += size
        return False

    def close(self) -> None:
        """Close both files; those without a name are gone then."""
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
        index, digests = _unnamed_file(), array("Q")
        try:
            with reading(self.path):
                for line, start, end, record in locate_records(self._file, self.path):
                    if isinstance(record, UserError):
                        raise record
                    digests.append(text_digest(parse_task(record, where=f"{self.path}:{line}").id))
                    index.write(_ENTRY.pack(line, start, end))
                    if is_cut := len(digests) == max_tasks:
                        break
                else:
                    is_cut = False
            if not digests:
                raise empty_dataset(self.path)
            index.flush()
            self._refuse_doubles(index, digests)
        except UserError:
            index.close()
            raise
        if not is_cut and len(digests) >= _KEPT_FROM:
            _keep(index, self.sha256)
        return index

    def _refuse_doubles(self, index: IO[bytes], digests: array[int]) -> None:
        import numpy as np  # where commands that read no dataset would only wait for it

        order = np.argsort(digests, kind="stable")
        ordered = np.asarray(digests)[order]
        for place in np.flatnonzero(ordered[1:] == ordered[:-1]):
            first, again = (self._read(index, int(order[place + i])) for i in (0, 1))
            if first[1].id == again[1].id:  # and not only the digests of two ids
                raise UserError(
                    f"the task id {again[1].id!r} occurs twice, in lines {first[0]} and {again[0]}",
                    where=str(self.path),
                    remedy=f"mcpagent data validate {self.path} names the lines",
                )


def _copy(stream: IO[bytes], copy: IO[bytes], *, of: Path) -> None:
    expanded = "does not fit into {} when it is expanded"
    with _room(expanded, where=str(of), remedy=", or expand the file yourself"):
        shutil.copyfileobj(stream, copy)
        copy.flush()


@contextmanager
def _room(message: str, *, where: str | None = None, remedy: str = "") -> Iterator[None]:
    """Turns a full disk of temporary files into a UserError; `message` has {} for their folder."""
    try:
        yield
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
        raise UserError(
            message.format(tempfile.gettempdir()),
            where=where,
            remedy=f"name a folder with more room in TMPDIR{remedy}",
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


_T = TypeVar("_T")
_HELD = 1_000  # items of a DiskList that stay in memory: a small list costs nothing
_MISSING = -1


class DiskList(Sequence[_T]):
    """Items in order, of which all but the first thousand that were put in lie on disk: memory does not grow
    with them, but for 8 bytes each.

    The file has no name, is this process's alone and is gone with the list. Items are pickled, which gives
    back an equal object, and must not be changed once they are in.
    """

    def __init__(self, items: Iterable[_T] = ()) -> None:
        self._held: list[_T] = []
        self._places = array("q")  # by index: an offset in the file, or -2 and less for one that is held
        self._file: IO[bytes] | None = None
        self._turn = threading.Lock()  # of the file's position
        self.extend(items)

    def append(self, item: _T) -> None:
        """Put an item at the end."""
        self.put(len(self._places), item)

    def extend(self, items: Iterable[_T]) -> None:
        """Put items at the end."""
        for item in items:
            self.append(item)

    def put(self, index: int, item: _T) -> None:
        """Put an item at any place, also past the end. Raises UserError where the disk is full."""
        if (more := index + 1 - len(self._places)) > 0:
            self._places.extend([_MISSING] * more)
        if len(self._held) < _HELD:
            self._held.append(item)
            self._places[index] = _MISSING - len(self._held)
            return
        if self._file is None:
            self._file = _unnamed_file()
            weakref.finalize(self, self._file.close)
        with self._turn, _room("what is too much for memory does not fit into {} either"):
            self._places[index] = self._file.seek(0, os.SEEK_END)
            pickle.dump(item, self._file, pickle.HIGHEST_PROTOCOL)

    def __len__(self) -> int:
        return len(self._places)

    @overload
    def __getitem__(self, index: int) -> _T: ...
    @overload
    def __getitem__(self, index: slice) -> list[_T]: ...
    def __getitem__(self, index: int | slice) -> _T | list[_T]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        place = self._places[index]
        if place < _MISSING:
            return self._held[_MISSING - place - 1]
        if self._file is None or place == _MISSING:
            raise LookupError(f"nothing was put at {index}")
        with self._turn:
            self._file.seek(place)
            return pickle.load(self._file)

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Sequence):
            return NotImplemented
        return len(self) == len(other) and all(a == b for a, b in zip(self, other, strict=True))

    __hash__ = None  # pyright: ignore[reportAssignmentType]
