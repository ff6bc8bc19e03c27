"""The index of a dataset: where it lies, what it is worth, and when it is not used."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.datasets import DiskList, TaskFile, read_tasks, write_jsonl
from mcpagent.storage.json_stream import locate_records
from tests.storage.test_datasets import record, records

LARGE = 10_000  # an index of so many records is kept


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache"


def kept(cache: Path) -> list[Path]:
    return [path for path in cache.rglob("*") if path.is_file()]


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("form", ["array", "lines"])
def test_the_bytes_of_every_record_are_its_own(
    tmp_path: Path, form: str, mark: bytes, indent: int | None
) -> None:
    rows = [{"n": i, "text": "é€😀\\n"[: i % 5] * (i * 37 % 400)} for i in range(300)]
    space = " \r\n\t" if indent else "\n"
    if form == "array":
        text = space + json.dumps(rows, ensure_ascii=False, indent=indent)
    else:
        text = space + space.join(json.dumps(row, ensure_ascii=False) for row in rows)
    path = tmp_path / "a.json"
    path.write_bytes(mark + text.encode())
    raw = path.read_bytes()
    with path.open("rb") as stream:
        found = list(locate_records(stream, path))
    # The standard library on the bytes of each span is the oracle, and the newlines before it are counted.
    assert [json.loads(raw[f.start : f.end]) for f in found] == rows == [f.record for f in found]
    assert [f.line for f in found] == [raw.count(b"\n", 0, f.start) + 1 for f in found]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json", "a.jsonl.zst"])
def test_a_kept_index_gives_the_same_tasks(tmp_path: Path, cache: Path, name: str) -> None:
    path = tmp_path / name
    write_jsonl(path, records(LARGE))
    order = random.Random(0).sample(range(LARGE), 50)
    with TaskFile(path) as made:
        first = [made[i].id for i in order]
    (index,) = kept(cache)
    assert (index.name, index.stat().st_size) == (made.sha256, 24 * LARGE)
    with TaskFile(path) as read, TaskFile(path, max_tasks=3) as few:
        assert [read[i].id for i in order] == first == [f"t{i}" for i in order]
        assert (len(read), [task.id for task in few]) == (LARGE, ["t0", "t1", "t2"])
    # Only the index can have said so: without one, every record is looked at.
    index.write_bytes(index.read_bytes()[:48])
    with TaskFile(path) as cut:
        assert len(cut) == 2


def test_an_index_is_not_used_for_other_contents(tmp_path: Path, cache: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, records(LARGE))
    before = path.stat()
    TaskFile(path).close()
    swapped = [record(LARGE - 1 - i) for i in range(LARGE)]
    write_jsonl(path, swapped)
    assert path.stat().st_size == before.st_size
    with TaskFile(path) as tasks:
        assert [tasks[i].id for i in (0, 1_234, -1)] == [f"t{LARGE - 1}", f"t{LARGE - 1_235}", "t0"]
    assert len(kept(cache)) == 2


def test_small_files_and_first_tasks_leave_nothing_in_the_cache(tmp_path: Path, cache: Path) -> None:
    write_jsonl(tmp_path / "a.jsonl", records(LARGE - 1))
    TaskFile(tmp_path / "a.jsonl").close()
    write_jsonl(tmp_path / "b.jsonl", records(LARGE + 1))
    TaskFile(tmp_path / "b.jsonl", max_tasks=LARGE).close()
    assert kept(cache) == []


def test_a_cache_that_cannot_be_written_to_costs_only_the_index(tmp_path: Path, cache: Path) -> None:
    cache.write_text("a file, not a folder")
    write_jsonl(tmp_path / "a.jsonl", records(LARGE))
    with TaskFile(tmp_path / "a.jsonl") as tasks:
        assert tasks[LARGE - 1].id == f"t{LARGE - 1}"


@pytest.mark.parametrize("name", ["a.jsonl", "a.json"])
def test_two_tasks_of_one_id_are_refused_also_on_one_line(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    separator = "\n" if name == "a.jsonl" else ", "
    text = separator.join(json.dumps(record(i)) for i in (1, 2, 1))
    path.write_text(text if name == "a.jsonl" else f"[{text}]")
    lines = "1 and 3" if name == "a.jsonl" else "1 and 1"
    with pytest.raises(UserError, match=f"'t1' occurs twice, in lines {lines}"):
        TaskFile(path)
    with TaskFile(path, max_tasks=2) as tasks:
        assert len(tasks) == 2


def test_a_compressed_file_is_as_good_after_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    with gzip.open(path, "wt") as stream:
        stream.writelines(json.dumps(record(i)) + "\n" for i in range(10))
    expected = list(read_tasks(path))
    with TaskFile(path) as tasks:
        path.unlink()
        assert [tasks[i] for i in range(10)] == expected


def test_a_list_on_disk_is_the_list_in_memory_whatever_the_order_it_was_filled_in() -> None:
    tasks = [Task.model_validate(record(number)) for number in range(3000)]
    order = random.Random(1).sample(range(len(tasks)), len(tasks))
    filled: DiskList[Task] = DiskList()
    for index in order:
        filled.put(index, tasks[index])
    assert filled == tasks and list(filled) == tasks
    assert filled[2000:2010] == tasks[2000:2010] and filled[-1] == tasks[-1]
    assert [t.model_fields_set for t in filled] == [t.model_fields_set for t in tasks]
    assert filled != tasks[:-1] and not DiskList()
    filled.put(3001, tasks[0])
    with pytest.raises(LookupError, match="nothing was put at 3000"):
        filled[3000]


def test_a_list_on_disk_holds_few_bytes_of_an_item() -> None:
    tracemalloc.start()
    try:
        filled = DiskList({"number": number, "text": "x" * 2000} for number in range(1500))
        first = tracemalloc.get_traced_memory()[0]
        filled.extend({"number": number, "text": "x" * 2000} for number in range(3000))
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    assert len(filled) == 4500 and grown / 3000 < 30
