"""Trajectories on disk: a JSON line each in `X.jsonl.zst`, tokens and logprobs in `X.safetensors` beside it.

The records may also be plain `.jsonl` or `.jsonl.gz`, where the name says so.

Token ids are stored as int32 and logprobs as float32, the precision that they were computed in.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from mcpagent.core.records import describe
from mcpagent.core.trajectory import Trajectory, Turn
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.storage.datasets import write_jsonl
from mcpagent.storage.json_stream import read_records
from mcpagent.storage.packages import require

_RECORDS_SUFFIX = ".jsonl.zst"
RECORDS_SUFFIXES = (_RECORDS_SUFFIX, ".jsonl.gz", ".jsonl")
_TOKENS_SUFFIX = ".safetensors"


def write_trajectories(path: Path | str, trajectories: Iterable[Trajectory]) -> Path:
    """Write both files atomically, the tokens first, and return the path of the records: `path` itself where
    its ending is one of `RECORDS_SUFFIXES`, else `path` with `.jsonl.zst` added.

    The sidecar exists only where a trajectory has tokens. Raises ValueError for an id that occurs twice.
    """
    named = Path(path)
    records = named if named.name.endswith(RECORDS_SUFFIXES) else _beside(named, _RECORDS_SUFFIX)
    sidecar = token_file(records)
    batch = list(trajectories)
    ids = {trajectory.id for trajectory in batch}
    if len(ids) != len(batch):
        raise ValueError(f"{len(batch)} trajectories, but only {len(ids)} different ids")
    arrays = {key: array for trajectory in batch for key, array in _arrays(trajectory)}
    if arrays:
        from safetensors.numpy import save_file

        with atomic_file(sidecar) as temporary:
            save_file(arrays, temporary)
    else:
        sidecar.unlink(missing_ok=True)
    write_jsonl(records, batch)
    return records


def read_trajectories(path: Path | str, *, with_tokens: bool = True) -> Iterator[Trajectory]:
    """The trajectories of a stem or of its records file. Raises UserError.

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
                    f"episode {trajectory.id} is there twice, also in line {first}",
                    where=f"{records}:{line}",
                    remedy="two files were joined, or one written twice: remove one of the lines, or name "
                    "each file by itself",
                )
            yield _with_tokens(trajectory, tokens, keys) if keys else trajectory


def token_file(records: Path) -> Path:
    """The sidecar of a records file, whether it is there or not."""
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
