"""Files that are small and become huge: an error in bounded memory and time, not a machine that swaps."""

from __future__ import annotations

import gzip
import resource
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import zstandard

from mcpagent.errors import UserError
from mcpagent.storage.datasets import TaskFile, read_tasks
from mcpagent.storage.json_stream import read_records
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.synth.datasets.validate import validate_dataset
from mcpagent.synth.dependent.spec import read_spec

_MIB = 1 << 20
READERS: dict[str, Callable[[Path], object]] = {
    "tasks": lambda path: list(read_tasks(path)),
    "task_file": TaskFile,
    "validate": lambda path: validate_dataset(path, catalog=None),
    "trajectories": lambda path: list(read_trajectories(path)),
    "spec": lambda path: list(read_spec(path)),
}


def pieces(total: int, *, piece: bytes) -> Iterator[bytes]:
    for _ in range(total // len(piece)):
        yield piece


def packed(path: Path, start: bytes, filler: bytes, *, mib: int) -> Path:
    """`start`, then `mib` MiB of `filler`, compressed as the name says."""
    block = filler * (_MIB // len(filler))
    if path.suffix == ".zst":
        with path.open("wb") as raw, zstandard.ZstdCompressor(level=3).stream_writer(raw) as stream:
            stream.write(start)
            for piece in pieces(mib * _MIB, piece=block):
                stream.write(piece)
    else:
        with gzip.open(path, "wb", compresslevel=6) as stream:
            stream.write(start)
            for piece in pieces(mib * _MIB, piece=block):
                stream.write(piece)
    assert path.stat().st_size < mib * _MIB // 300
    return path


@pytest.fixture(scope="module")
def bombs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    folder = tmp_path_factory.mktemp("bombs")
    return [
        packed(folder / "line.jsonl.zst", b'{"prompt": "', b"a", mib=96),
        packed(folder / "lines.jsonl.gz", b"{}\n", b"\n", mib=96),
        packed(folder / "array.json.zst", b"[{}, ", b" ", mib=96),
    ]


@pytest.mark.parametrize("reader", READERS)
def test_a_bomb_is_an_error_and_memory_stays_small(bombs: list[Path], reader: str) -> None:
    for path in bombs:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        with pytest.raises(UserError):
            READERS[reader](path)
        grown_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
        assert grown_kib < 300 * 1024


def test_a_bomb_of_lines_is_refused_for_its_expansion(bombs: list[Path]) -> None:
    with pytest.raises(UserError, match="expands to more than 300 times"):
        list(read_records(bombs[1]))


def test_a_line_has_a_longest_length(tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    path.write_bytes(b'{"text": "' + b"a" * (64 * _MIB) + b'"}\n')
    with pytest.raises(UserError, match="longer than 64 MiB") as caught:
        list(read_records(path))
    assert str(caught.value.where).endswith(":1")


def _cpu_s(path: Path) -> float:
    started = time.process_time()
    assert [line for line, _ in read_records(path)]
    return time.process_time() - started


@pytest.mark.parametrize("place", ["before", "inside", "after"])
def test_spaces_around_an_array_cost_time_in_proportion(tmp_path: Path, place: str) -> None:
    """Ten times the spaces, at most forty times the time; one step a byte took 200 ns for each of them."""
    parts = {"before": (b"%s[{}]"), "inside": b"[%s{}]", "after": b"[{}]%s"}

    def spaced(mib: int) -> Path:
        path = tmp_path / f"{mib}.json"
        path.write_bytes(parts[place] % (b" \n" * (mib * _MIB // 2)))
        return path

    few, many = _cpu_s(spaced(3)), _cpu_s(spaced(30))
    assert many < 40 * max(few, 0.005)
