"""Trajectories on disk: a JSON line each in `X.jsonl.zst`, tokens and logprobs in `X.safetensors` next to it.

The records may also be plain `.jsonl` or `.jsonl.gz`, if the name says so.

Token ids are stored as int32 and logprobs as float32, the precision that they were computed in.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from pydantic import ValidationError

from mcpagent.core.records import describe
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.datasets import DiskList, encode_record, write_jsonl
from mcpagent.storage.json_stream import compressed, read_records
from mcpagent.storage.packages import require

_T = TypeVar("_T", Task, Trajectory)
_RECORDS_SUFFIX = ".jsonl.zst"
RECORDS_SUFFIXES = (_RECORDS_SUFFIX, ".jsonl.gz", ".jsonl")
_TOKENS_SUFFIX = ".safetensors"


def write_trajectories(path: Path | str, trajectories: Iterable[Trajectory]) -> Path:
    """Write both files atomically, the tokens first, and return the path of the records: `path` itself if
    its ending is one of `RECORDS_SUFFIXES`, else `path` with `.jsonl.zst` added.

    The sidecar exists only if a trajectory has tokens. Trajectories are taken one by one; their tokens are in
    memory until the end. Raises ValueError for an id that occurs twice.
    """
    named = Path(path)
    records = named if named.name.endswith(RECORDS_SUFFIXES) else _beside(named, _RECORDS_SUFFIX)
    sidecar = token_file(records)
    arrays: dict[str, np.ndarray] = {}
    ids: Counter[str] = Counter()

    def passed() -> Iterator[Trajectory]:
        for trajectory in trajectories:
            ids[trajectory.id] += 1
            arrays.update(_arrays(trajectory))
            yield trajectory
        if len(ids) != ids.total():
            raise ValueError(f"{ids.total()} trajectories, but only {len(ids)} different ids")
        if arrays:
            _write_arrays(sidecar, arrays)
        else:
            sidecar.unlink(missing_ok=True)

    write_jsonl(records, passed())
    return records


class TrajectoryLog:
    """The records file of episodes without tokens, appended to as each of them ends: a kill loses none that
    has ended. `begin` makes the file anew; compressed, each record is a frame of its own."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._count = 0

    def begin(self) -> None:
        """Make the file, empty; its sidecar, which belongs to what it held, goes."""
        self._path.write_bytes(b"")
        token_file(self._path).unlink(missing_ok=True)

    def append(self, trajectory: Trajectory) -> None:
        """Write one record, whole."""
        record = compressed(encode_record(trajectory) + b"\n", suffix=self._path.suffix)
        with self._path.open("ab", buffering=0) as file:
            file.write(record)
        self._count += 1

    def __len__(self) -> int:
        return self._count


def _write_arrays(sidecar: Path, arrays: dict[str, np.ndarray]) -> None:
    require("hf", use="keeping the tokens of trajectories")
    from safetensors.numpy import save_file

    with atomic_file(sidecar) as temporary:
        save_file(arrays, temporary)


def read_trajectories(path: Path | str, *, with_tokens: bool = True) -> Iterator[Trajectory]:
    """Yield the trajectories of a stem or of its records file. Raises UserError.

    Tokens are restored unless `with_tokens` is off: a reader of texts and results then needs no safetensors.
    """
    records = Path(path)
    if not records.exists():
        records = _beside(records, _RECORDS_SUFFIX)
    sidecar = token_file(records)
    with ExitStack() as stack:
        tokens = stack.enter_context(_opened(sidecar)) if with_tokens and sidecar.exists() else None
        keys = frozenset(tokens.keys()) if tokens is not None else frozenset[str]()
        lines: dict[str, int] = {}
        for line, record in read_records(records):
            trajectory = _trajectory(record, where=f"{records}:{line}")
            if (first := lines.setdefault(trajectory.id, line)) != line:
                raise UserError(
                    f"episode {trajectory.id} occurs twice, also in line {first}",
                    where=f"{records}:{line}",
                    remedy="two files were joined, or one written twice: remove one of the lines, or name "
                    "each file by itself",
                )
            yield _with_tokens(trajectory, tokens, keys) if keys else trajectory


class ById(Mapping[str, _T]):
    """Trajectories or tasks by their id, in the order in which they came; all but the first of them lie on
    disk."""

    def __init__(self, items: Iterable[_T] = ()) -> None:
        self._items: DiskList[_T] = DiskList()
        self._places: dict[str, int] = {}
        for item in items:
            self.add(item)

    def add(self, item: _T) -> None:
        """Keep an item; of two with one id the later."""
        self._places[item.id] = len(self._items)
        self._items.append(item)

    def __getitem__(self, name: str) -> _T:
        return self._items[self._places[name]]

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


def token_file(records: Path) -> Path:
    """Return the sidecar of a records file, whether it is there or not."""
    return _beside(_stem(records), _TOKENS_SUFFIX)


def _arrays(trajectory: Trajectory) -> Iterator[tuple[str, np.ndarray]]:
    for turn in trajectory.turns:
        prefix = f"{trajectory.id}/{turn.index}/"
        if turn.added_token_ids:
            yield prefix + "added_token_ids", np.asarray(turn.added_token_ids, dtype=np.int32)
        if turn.completion.token_ids:
            yield prefix + "token_ids", np.asarray(turn.completion.token_ids, dtype=np.int32)
        if turn.completion.logprobs:
            yield prefix + "logprobs", np.asarray(turn.completion.logprobs, dtype=np.float32)


def _with_tokens(trajectory: Trajectory, tokens: Any, keys: frozenset[str]) -> Trajectory:
    """`tokens` is the opened sidecar and `keys` all it holds; what it lacks was empty when it was written."""

    def stored(turn: Turn, name: str) -> tuple[Any, ...]:
        key = f"{trajectory.id}/{turn.index}/{name}"
        return tuple(tokens.get_tensor(key).tolist()) if key in keys else ()

    turns = []
    for turn in trajectory.turns:
        update = {"token_ids": stored(turn, "token_ids"), "logprobs": stored(turn, "logprobs")}
        completion = turn.completion.model_copy(update=update)
        added = stored(turn, "added_token_ids")
        turns.append(turn.model_copy(update={"completion": completion, "added_token_ids": added}))
    return trajectory.model_copy(update={"turns": tuple(turns)})


def _trajectory(record: Mapping[str, Any], *, where: str) -> Trajectory:
    try:
        return Trajectory.model_validate(record)
    except ValidationError as error:
        raise UserError("; ".join(describe(detail) for detail in error.errors()), where=where) from None


def _opened(sidecar: Path) -> Any:
    require("hf", use="reading the tokens of trajectories")
    from safetensors import SafetensorError, safe_open

    try:
        return safe_open(sidecar, framework="numpy")
    except SafetensorError as error:
        raise UserError(f"the token file is damaged: {error}", where=str(sidecar)) from None


def _stem(records: Path) -> Path:
    """`step-000010` of `step-000010.jsonl.zst`."""
    name = records.name
    for suffix in (".zst", ".gz", ".jsonl"):
        name = name.removesuffix(suffix)
    return records.with_name(name)


def _beside(stem: Path, suffix: str) -> Path:
    return stem.with_name(stem.name + suffix)
