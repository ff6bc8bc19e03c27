from __future__ import annotations

import hashlib
import json
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.storage.datasets import TaskFile, find_dataset, read_tasks, task_record, write_jsonl
from mcpagent.storage.json_stream import read_records

FAMILIAR = Path(__file__).parent / "familiar" / "train.json"
NAMES = ["a.jsonl", "a.json", "a.jsonl.gz", "a.json.gz", "a.jsonl.zst", "a.json.zst"]
json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)
objects = st.dictionaries(st.text(), json_values, max_size=4)


def record(number: int, **truth: Any) -> dict[str, Any]:
    return {
        "data_source": "test",
        "env_class": "MCPToolEnv",
        "prompt": [{"role": "system", "content": "s"}, {"role": "user", "content": f"prix n° {number}"}],
        "reward_spec": {"method": "rule", "ground_truth": {"task_id": f"t{number}", **truth}},
        "extra_info": {"padding": "x" * 200},
    }


def records(count: int) -> Iterator[dict[str, Any]]:
    return (record(number) for number in range(count))


def error_of(path: Path) -> str:
    """What both ways of reading say; they must agree."""
    with pytest.raises(UserError) as streamed:
        list(read_tasks(path))
    with pytest.raises(UserError) as indexed:
        TaskFile(path)
    assert str(streamed.value) == str(indexed.value)
    assert streamed.value.remedy
    return str(streamed.value).splitlines()[0]


def test_a_familiar_record_loads_unchanged() -> None:
    (task,) = read_tasks(FAMILIAR)
    assert task.truth.success.must_call_tool == "slack"
    assert task.truth.tool_sequence[1].params == {"channel": "research", "message": "${step1.close}"}
    assert task_record(task) == json.loads(FAMILIAR.read_text())[0]


@pytest.mark.parametrize("name", ["a.jsonl", "a.json.gz", "a.json.zst"])
@given(st.lists(objects, max_size=5))
def test_records_survive_every_form(
    tmp_path_factory: pytest.TempPathFactory, name: str, written: list[dict[str, Any]]
) -> None:
    path = tmp_path_factory.mktemp("records") / name
    assert write_jsonl(path, written) == len(written)
    assert [value for _, value in read_records(path)] == written


@pytest.mark.parametrize("name", NAMES)
def test_equal_records_give_equal_bytes(tmp_path: Path, name: str) -> None:
    first, second = tmp_path / "one" / name, tmp_path / "two" / name
    write_jsonl(first, records(50))
    write_jsonl(second, records(50))
    assert first.read_bytes() == second.read_bytes()


def test_half_a_surrogate_pair_survives(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [{"text": "\ud83d"}, {"text": "é"}])
    assert [value for _, value in read_records(path)] == [{"text": "\ud83d"}, {"text": "é"}]
    assert "é" in path.read_text()


@pytest.mark.parametrize("name", NAMES)
def test_any_record_is_reached_at_random(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    write_jsonl(path, records(500))
    with TaskFile(path) as tasks:
        assert len(tasks) == 500
        assert [tasks[i].id for i in (499, 0, 250, -1)] == ["t499", "t0", "t250", "t499"]
        assert [task.id for task in tasks[10:13]] == ["t10", "t11", "t12"]
        assert list(tasks) == list(read_tasks(path))
        with pytest.raises(IndexError):
            tasks[500]
    with TaskFile(path, max_tasks=3) as few, TaskFile(path, shard=(2, 150)) as share:
        assert [task.id for task in few] == ["t0", "t1", "t2"]
        assert [task.id for task in share] == ["t1", "t151", "t301", "t451"]


def test_the_first_tasks_of_a_file_have_the_hash_of_the_whole_file(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, records(9))
    with TaskFile(path, max_tasks=4) as few:
        assert few.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.parametrize("separator", ["\n", "\r\n", "\n\n", "\n   \n"])
def test_blank_lines_and_a_byte_order_mark_are_read_over(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b"\xef\xbb\xbf\n" + separator.join(json.dumps(r) for r in records(3)).encode())
    with TaskFile(path) as tasks:
        assert [task.id for task in tasks] == [task.id for task in read_tasks(path)] == ["t0", "t1", "t2"]


def test_an_array_may_be_indented_and_lie_under_any_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text("\n " + json.dumps(list(records(300)), indent=3))
    assert [task.id for task in read_tasks(path)] == [f"t{i}" for i in range(300)]


@pytest.mark.parametrize(("read", "name"), [(read_tasks, "big.jsonl"), (TaskFile, "big.jsonl.zst")])
def test_memory_does_not_grow_with_the_dataset(tmp_path: Path, name: str, read: Any) -> None:
    # 10,000 records of 0.4 kB are 4 MB of text and more than 20 MB as objects; a tenth of them is in memory.
    path = tmp_path / name
    write_jsonl(path, records(10_000))
    assert _peak_bytes(read, path) < 7_000_000


@pytest.mark.slow
def test_a_hundred_thousand_tasks_need_a_few_megabytes(tmp_path: Path) -> None:
    path = tmp_path / "big.jsonl"
    write_jsonl(path, records(100_000))  # 40 MB
    assert _peak_bytes(read_tasks, path) < 2_000_000
    assert _peak_bytes(TaskFile, path) < 20_000_000  # their ids, while it is opened


def _peak_bytes(read: Any, path: Path) -> int:
    tracemalloc.start()
    try:
        tasks = read(path)
        for _ in tasks if read is read_tasks else (tasks[0], tasks[-1]):
            pass
        if read is TaskFile:
            tasks.close()
        return tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()


GOOD, OTHER = json.dumps(record(1)), json.dumps(record(2))


@pytest.mark.parametrize(
    ("name", "text", "line", "reason"),
    [
        ("a.jsonl", f'{GOOD}\n{{"a": \n', 2, "broken JSON, Expecting value at column 6: "),
        ("a.jsonl", f"{GOOD}\n\n[1]\n", 3, "a record is a JSON object, but this is [1]"),
        ("a.jsonl", '{"a": NaN}\n', 1, "NaN is not a JSON value"),
        ("a.jsonl", '{"a": ' + "9" * 5000 + "}", 1, "Exceeds the limit"),
        ("a.json", '[{"a": ' + "9" * 5000 + "}]", 1, "Exceeds the limit"),
        ("a.jsonl", GOOD[:-1], 1, "broken JSON"),
        ("a.json", f"[{GOOD},\n{OTHER},\n\n{{'a': 1}}]", 4, "broken JSON, Expecting property name"),
        ("a.json", f"[{GOOD}\n,\n\n3]", 4, "a record is a JSON object, but this is 3"),
        ("a.json", f"[{GOOD}\n{GOOD}]", 2, "expected a comma or ]"),
        ("a.json", f"[{GOOD},\n", 2, "the array has no end"),
        ("a.json", f"[{GOOD[:-30]}", 1, "broken JSON, Unterminated string"),
        ("a.json", f"[{GOOD}]\n\nx", 3, "there is more after the array: 'x'"),
        ("a.json", '[\n{"a":' + "[" * 100_000, 2, "the value is nested too deeply"),
        ("a.jsonl", '{"a":' + "[" * 100_000, 1, "the value is nested too deeply"),
        ("a.jsonl", f"{GOOD}\n" + json.dumps(record(2, max_turns=0)), 2, "ground_truth.max_turns is 0, but"),
        ("a.jsonl", json.dumps({**record(1), "prompt": []}), 1, "prompt has roles []"),
        (
            "a.jsonl",
            json.dumps({**record(1), "prompt": [{"role": r, "content": "c"} for r in ("user", "assistant")]}),
            1,
            "prompt has roles ['user', 'assistant'], but it must be one ",
        ),
        ("a.jsonl", '{"prompt": [{"role": "user", "content": "a"}]}', 1, "reward_spec is missing"),
    ],
)
def test_a_broken_dataset_is_reported_with_its_line(
    tmp_path: Path, name: str, text: str, line: int, reason: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    message = error_of(path)
    assert message.startswith(f"{path}:{line}: ") and reason in message


def _filled(values: list[Any]) -> list[Any]:
    """What a library of tables makes of values: every object has the keys of all objects at its place."""
    if values and all(isinstance(value, dict) for value in values):
        keys = dict.fromkeys(key for value in values for key in value)
        columns = {key: iter(_filled([v[key] for v in values if v.get(key) is not None])) for key in keys}
        return [{key: next(columns[key]) if v.get(key) is not None else None for key in keys} for v in values]
    if values and all(isinstance(value, list) for value in values):
        items = iter(_filled([item for value in values for item in value]))
        return [[next(items) for _ in value] for value in values]
    return values


def test_records_whose_absent_keys_a_library_filled_with_null_load_as_they_were(tmp_path: Path) -> None:
    steps = [
        {"step": 1, "server": "a", "tool": "t", "params": {"ticker": "X"}},
        {"step": 2, "server": "b", "tool": "u", "params": {"query": "q"}, "user_turn": 0},
    ]
    originals = [
        record(0, max_turns=4, tool_sequence=steps[:1], success={"must_call_tool": "a.t"}),
        record(1, complexity="complex", tool_sequence=steps, final_answer={"type": "number", "value": 3}),
        record(2, tool_sequence=[], limits={"max_tools": 2}),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(map(json.dumps, _filled(originals))))
    assert [task_record(task) for task in read_tasks(path)] == originals


@pytest.mark.parametrize(("name", "text"), [("a.jsonl", ""), ("a.jsonl", " \n"), ("a.json", "[ ]\n")])
def test_an_empty_dataset_is_refused(tmp_path: Path, name: str, text: str) -> None:
    path = tmp_path / name
    path.write_text(text)
    assert error_of(path) == f"{path}: the dataset holds no task"


def test_a_missing_file_and_a_folder_are_refused(tmp_path: Path) -> None:
    assert error_of(tmp_path / "a.jsonl") == f"{tmp_path / 'a.jsonl'}: there is no such file"
    assert error_of(tmp_path) == f"{tmp_path}: is a folder"


@pytest.mark.parametrize("suffix", [".gz", ".zst"])
@pytest.mark.parametrize("kept", [0.3, 0.9, 0.999])
def test_a_compressed_file_that_was_cut_off_is_refused(tmp_path: Path, suffix: str, kept: float) -> None:
    path = tmp_path / f"a.jsonl{suffix}"
    write_jsonl(path, records(2000))
    whole = path.read_bytes()
    path.write_bytes(whole[: int(len(whole) * kept)])
    assert "damaged or cut off" in error_of(path) or "broken JSON" in error_of(path)


def test_a_zst_file_that_was_cut_between_lines_is_refused(tmp_path: Path) -> None:
    compressor = zstandard.ZstdCompressor().compressobj()
    lines = "".join(json.dumps(r) + "\n" for r in records(100)).encode()
    whole_lines = compressor.compress(lines) + compressor.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    path = tmp_path / "a.jsonl.zst"
    path.write_bytes(whole_lines + compressor.flush())
    assert len(list(read_tasks(path))) == 100
    path.write_bytes(whole_lines)
    assert "damaged or cut off" in error_of(path)


def test_zst_frames_may_follow_each_other(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.zst"
    frames = [zstandard.compress(json.dumps(r).encode() + b"\n") for r in records(30)]
    path.write_bytes(b"".join(frames))
    assert [task.id for task in read_tasks(path)] == [f"t{i}" for i in range(30)]


def test_a_gz_file_holds_neither_time_nor_name(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl.gz"
    write_jsonl(path, records(1))
    header = path.read_bytes()[:10]  # RFC 1952: flags in byte 3, time in bytes 4 to 7
    assert header[3] == 0 and header[4:8] == bytes(4)


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write_jsonl(path, [{"a": 1}])
    with pytest.raises(ValueError, match="JSON compliant"):
        write_jsonl(path, [{"a": 2}, {"a": float("nan")}])
    assert path.read_text() == '{"a": 1}\n'
    assert list(tmp_path.iterdir()) == [path]


def test_the_default_dataset_is_looked_for_where_the_readme_says(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="there is no train dataset"):
        find_dataset(None, split="train")
    for name in ("data/inputs/train.json", "data/processed/train.jsonl", "data/processed/train.json"):
        write_jsonl(name, [record(0)])
        assert find_dataset(None, split="train") == Path(name)
    with pytest.raises(UserError, match=r"no.json: there is no such dataset"):
        find_dataset("no.json", split="train")
    write_jsonl("data/processed/validation.jsonl", [record(0)])
    mine = Path("mine/validation.jsonl.zst")
    assert find_dataset(None, split="validation", beside="mine/train.jsonl") != mine
    write_jsonl(mine, [record(0)])
    assert find_dataset(None, split="validation", beside="mine/train.jsonl") == mine
    assert find_dataset("data/inputs/train.json", split="validation", beside="mine/train.jsonl") != mine


def test_a_task_made_in_code_has_the_fields_that_other_readers_need(tmp_path: Path) -> None:
    task = Task.model_validate(
        {"prompt": [{"role": "user", "content": "u"}], "reward_spec": {"ground_truth": {"task_id": "t"}}}
    )
    write_jsonl(tmp_path / "a.jsonl", [task])
    written = json.loads((tmp_path / "a.jsonl").read_text())
    assert written == {
        "data_source": "unknown",
        "env_class": "MCPToolEnv",
        "prompt": [{"role": "user", "content": "u"}],
        "reward_spec": {"method": "rule", "ground_truth": {"task_id": "t"}},
        "extra_info": {},
    }
    assert list(read_tasks(tmp_path / "a.jsonl")) == [task]
