"""Datasets whose records stay on disk."""

from __future__ import annotations

import gzip
import json
import random
import tracemalloc
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.datasets import DiskList, TaskFile, read_tasks
from mcpagent.storage.json_stream import locate_records
from tests.storage.test_datasets import record


@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("mark", [b"", b"\xef\xbb\xbf"])
@pytest.mark.parametrize("form", ["array", "lines"])
def test_every_record_is_told_with_its_line(
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
    with path.open("rb") as stream:
        found = list(locate_records(stream, path))
    assert [f.record for f in found] == rows
    # The line of the first brace of each row, which no text of a row has, by the standard library.
    starts = [place for place, letter in enumerate(text) if letter == "{"]
    assert [f.line for f in found] == [text.count("\n", 0, start) + 1 for start in starts]


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
        for number in range(3000):
            filled.append({"number": number, "text": "x" * 2000})
        grown = tracemalloc.get_traced_memory()[0] - first
    finally:
        tracemalloc.stop()
    assert len(filled) == 4500 and grown / 3000 < 30
