"""Datasets of tasks as files: found, streamed, indexed, and written atomically."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import pickle
import shlex
import tempfile
import threading
import weakref
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from hashlib import blake2b
from pathlib import Path
from typing import IO, Any, Literal, Self, TypeVar, overload

import jsonlines
from pydantic import BaseModel, ValidationError

from mcpagent.core.records import JsonObject, describe
from mcpagent.core.redact import SECRETS
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.json_stream import (
    compressed_writer,
    plain_suffix,
    read_records,
    reading,
)

_T = TypeVar("_T")
_DATA_FOLDERS = ("data/processed", "data/inputs")
_SPLITS = ("train", "validation", "heldout")
_SUFFIXES = (".json", ".jsonl", ".json.gz", ".jsonl.gz", ".json.zst", ".jsonl.zst")


def find_dataset(
    given: str | None, *, split: Literal["train", "validation"], beside: str | None = None
) -> Path:
    """Return the file `given`; without one, that of the split in the folder of the file `beside`, then the
    default one. Raises UserError if it is not there."""
    option = "--data" if split == "train" else f"--set data.{split}=FILE"
    remedy = f"name a file with {option}, or make one: mcpagent gen-data" + _or_without(split)
    if given is not None:
        if not (path := dataset_file(Path(given), split)).is_file():
            raise UserError("there is no such dataset", where=given, remedy=remedy)
        return path
    near = [] if beside is None else [Path(beside) if Path(beside).is_dir() else Path(beside).parent]
    folders = [*near, *map(Path, _DATA_FOLDERS)]
    for folder in folders:
        if dataset := split_file(folder, split):
            return dataset
    raise UserError(
        f"there is no {split} dataset: data.{split} is not set, and none of {', '.join(map(str, folders))} "
        f"holds {split}.json or {split}.jsonl",
        remedy=remedy,
    )


def _or_without(split: str) -> str:
    """Return what else a training run may do if its validation tasks are missing."""
    return "; training does without: --set training.eval_every=0" if split == "validation" else ""


def dataset_file(path: Path, *splits: str) -> Path:
    """Return the file of the first of `splits` that the folder `path` holds; `path` itself if it is not a
    folder. Raises UserError."""
    if not path.is_dir():
        return path
    dataset = next((file for split in splits if (file := split_file(path, split))), None)
    if dataset is None:
        raise UserError(
            f"the folder holds no dataset ({' or '.join(f'{split}.jsonl' for split in splits)})",
            where=str(path),
            remedy=f"make one: mcpagent gen-data --out {shlex.quote(str(path))}",
        )
    return dataset


def spread(items: Sequence[_T], count: int | None) -> Sequence[_T]:
    """Return `count` of the items (None: all), evenly from the first to the last, so that every kind is among
    them."""
    if count is None or count >= len(items):
        return items
    return [items[i * len(items) // count] for i in range(count)]


def split_files(path: Path) -> dict[str, Path]:
    """Return the file of each split that the folder `path` holds; `path` itself, as the split `train`, if it
    is not a folder. Raises UserError."""
    if not path.is_dir():
        return {"train": path}
    dataset_file(path, *_SPLITS)
    return {split: file for split in _SPLITS if (file := split_file(path, split))}


def split_file(folder: Path, split: str) -> Path | None:
    """Return the file of a split, or None."""
    return next((path for suffix in _SUFFIXES if (path := folder / (split + suffix)).is_file()), None)


def read_tasks(path: Path | str) -> Iterator[Task]:
    """Yield the tasks of a dataset in order, in bounded memory. Raises UserError with file and line for
    whatever is wrong with it, and for a dataset without a task."""
    file = Path(path)
    count = 0
    for line, record in read_records(file):
        yield parse_task(record, where=f"{file}:{line}")
        count += 1
    if not count:
        raise empty_dataset(file)


def parse_task(record: JsonObject, *, where: str) -> Task:
    """Raise UserError with everything that is wrong with the record."""
    try:
        return Task.read(record)
    except ValidationError as error:
        raise UserError(
            "; ".join(describe(detail) for detail in error.errors()),
            where=where,
            remedy="fix the record; mcpagent data validate FILE lists all that are wrong",
        ) from None


def empty_dataset(path: Path) -> UserError:
    """Return the error for a dataset without a task."""
    remedy = "make one: mcpagent gen-data" + _or_without(path.name.partition(".")[0])
    return UserError("the dataset holds no task", where=str(path), remedy=remedy)


def write_jsonl(path: Path | str, records: Iterable[BaseModel | Mapping[str, Any]]) -> int:
    """Write records atomically and return their number; the name decides the form: `.json` is an array with a
    record on each line, anything else JSONL; `.gz` and `.zst` compress. Equal records give equal bytes."""
    final = Path(path)
    opening, between, end, nothing = b"", b"\n", b"\n", b""
    if plain_suffix(final) == ".json":
        opening, between, end, nothing = b"[\n", b",\n", b"\n]\n", b"[]\n"
    count = 0
    with (
        atomic_file(final) as temporary,
        compressed_writer(temporary, suffix=final.suffix) as stream,
    ):
        for record in records:
            stream.write((between if count else opening) + encode_record(record))
            count += 1
        stream.write(end if count else nothing)
    return count


def record_writer(stream: IO[bytes], *, flush: bool = False) -> jsonlines.Writer:
    """Return what writes records to a stream, a line each, as `encode_record` gives them."""
    # pyright does not know that attrs drops the underscore of a private field from its parameter.
    return jsonlines.Writer(stream, dumps=encode_record, flush=flush)  # pyright: ignore[reportCallIssue]


def record_reader(stream: IO[bytes]) -> jsonlines.Reader:
    """Return what reads the lines of a file that is appended to; see `complete_lines`. A line that is not
    JSON raises `jsonlines.InvalidLineError`, a ValueError with the line's number."""
    return jsonlines.Reader(complete_lines(stream), loads=_loads)  # pyright: ignore[reportCallIssue]


def complete_lines(stream: IO[bytes]) -> Iterator[bytes]:
    """Return the lines of a file that is appended to; a last one without its end, which a kill cut off, is
    left out."""
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
    """Return the task as its dataset record: what was given, and what other readers of the format need."""
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
        for item in items:
            self.append(item)

    def append(self, item: _T) -> None:
        """Put an item at the end."""
        self.put(len(self._places), item)

    def put(self, index: int, item: _T) -> None:
        """Put an item at any place, also past the end. Raises UserError if the disk is full."""
        if (more := index + 1 - len(self._places)) > 0:
            self._places.extend([_MISSING] * more)
        if len(self._held) < _HELD:
            self._held.append(item)
            self._places[index] = _MISSING - len(self._held)
            return
        if self._file is None:
            # Without a name, so that it is gone even after a kill.
            self._file = tempfile.TemporaryFile(prefix="mcpagent-")  # noqa: SIM115 - `finalize` closes it
            weakref.finalize(self, self._file.close)
        with self._turn:
            try:
                self._places[index] = self._file.seek(0, os.SEEK_END)
                pickle.dump(item, self._file, pickle.HIGHEST_PROTOCOL)
            except OSError as error:
                if error.errno != errno.ENOSPC:
                    raise
                raise UserError(
                    f"what is too much for memory does not fit into {tempfile.gettempdir()} either",
                    remedy="name a folder with more room in TMPDIR",
                ) from None

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


class TaskFile(DiskList[Task]):
    """The tasks of a dataset, each validated once. `methods` are the reward methods that they name.

    Raises UserError like `read_tasks`, and if two tasks have one id: attempts are kept apart by it.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        max_tasks: int | None = None,
        shard: tuple[int, int] = (1, 1),
        on_task: Callable[[Task, str], None] = lambda _task, _where: None,
    ) -> None:
        """Read the first `max_tasks` only, if given; `shard` (I, N) leaves every N-th of them from the I-th
        on. `on_task` gets each task that is left and where it stands, and may raise UserError."""
        super().__init__()
        self.path = Path(path)
        with reading(self.path), self.path.open("rb") as stream:
            self.sha256 = hashlib.file_digest(stream, "sha256").hexdigest()  # of the whole file on disk
        self.methods: set[str] = set()
        lines: dict[str, int] = {}  # of each id
        for line, record in read_records(self.path):
            task = parse_task(record, where=(where := f"{self.path}:{line}"))
            if task.id in lines:
                raise UserError(
                    f"the task id {task.id!r} occurs twice, in lines {lines[task.id]} and {line}",
                    where=str(self.path),
                    remedy=f"mcpagent data validate {self.path} names the lines",
                )
            if len(lines) % shard[1] == shard[0] - 1:
                on_task(task, where)
                self.append(task)
                self.methods.add(task.reward_spec.method)
            lines[task.id] = line
            if len(lines) == max_tasks:
                break
        if not lines:
            raise empty_dataset(self.path)

    def close(self) -> None:
        """Let go of what lies on disk."""
        if self._file is not None:
            self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
