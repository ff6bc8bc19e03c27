"""Datasets of tasks as files: found, streamed, and written atomically."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import IO, Any, Literal

import jsonlines
from pydantic import BaseModel, ValidationError

from mcpagent.core.records import JsonObject
from mcpagent.core.redact import SECRETS
from mcpagent.core.tasks import Task
from mcpagent.core.validation import describe
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.compression import compressed_writer, plain_suffix
from mcpagent.storage.records import read_records

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
    found = next((path for folder in folders if (path := _in_folder(Path(folder), split))), None)
    if found is not None:
        return found
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
    """The file of the first of `splits` that the folder `path` holds; `path` itself where it is no folder.
    Raises UserError."""
    if not path.is_dir():
        return path
    found = next((file for split in splits if (file := _in_folder(path, split))), None)
    if found is None:
        raise UserError(
            f"the folder holds no dataset ({' or '.join(f'{split}.jsonl' for split in splits)})",
            where=str(path),
            remedy=f"make one: mcpagent gen-data --out {shlex.quote(str(path))}",
        )
    return found


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
