"""The files of a cassette: several writers, killed writers, damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from pathlib import Path

import pytest

from mcpagent.core.tools import FailureKind
from mcpagent.errors import UserError
from mcpagent.tools.cassettes.tape import CALLS_NAME, CallHistory, CallKey, RecordedAnswer, Tape
from tests.running import Python

# Records NUMBER answers, and says so after each.
WRITER = """
import sys
from pathlib import Path
from tests.tools.cassettes.test_tape import answer, key
from mcpagent.tools.cassettes.tape import Tape

folder, first, number, length = Path(sys.argv[1]), *map(int, sys.argv[2:])
tape = Tape(folder, writable=True)
for i in range(first, first + number):
    tape.add(key(i), answer(i, length))
    print(i, flush=True)
"""


def key(number: int, *, tool: str = "quote", after: str = "0") -> CallKey:
    return CallKey("fmp", "1.0", tool, "abcd", {"symbol": f"S{number}"}, after)


def answer(number: int, length: int = 20) -> RecordedAnswer:
    return RecordedAnswer(content=f"price {number} " + "x" * length, structured={"price": number})


def writer(folder: Path, first: int, number: int, *, length: int = 20) -> subprocess.Popen[str]:
    arguments = [str(folder), str(first), str(number), str(length)]
    return Python(
        *("-c", WRITER, *arguments), stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[3]
    )


def recorded(folder: Path, *numbers: int) -> Path:
    tape = Tape(folder, writable=True)
    for number in numbers:
        tape.add(key(number), answer(number))
    return folder / CALLS_NAME


def test_an_answer_comes_back_as_it_was_recorded(tmp_path: Path) -> None:
    odd = RecordedAnswer(
        content='lines\nand "quotes" \u2028 \U0001f600',
        structured={"b": [1, 2.5, None, True], "a": {"\u2029": "separator"}, "big": 10**40},
        is_error=True,
        failure=FailureKind.TOOL_ERROR,
        truncated_chars=7,
        limit_chars=99,
    )
    tape = Tape(tmp_path, writable=True)
    assert tape.find(key(1)) is None
    assert tape.add(key(1), odd) is None
    assert tape.find(key(1)) == odd
    assert Tape(tmp_path, writable=False).find(key(1)) == odd


def test_every_part_of_the_key_counts(tmp_path: Path) -> None:
    base = CallKey("fmp", "1.0", "quote", "abcd", {"symbol": "A", "n": 1}, "0")
    others = [
        CallKey("fmq", "1.0", "quote", "abcd", {"symbol": "A", "n": 1}, "0"),
        CallKey("fmp", "1.1", "quote", "abcd", {"symbol": "A", "n": 1}, "0"),
        CallKey("fmp", "1.0", "quotes", "abcd", {"symbol": "A", "n": 1}, "0"),
        CallKey("fmp", "1.0", "quote", "abce", {"symbol": "A", "n": 1}, "0"),
        CallKey("fmp", "1.0", "quote", "abcd", {"symbol": "A", "n": "1"}, "0"),
        CallKey("fmp", "1.0", "quote", "abcd", {"symbol": "A", "n": 1}, "1-77"),
    ]
    tape = Tape(tmp_path, writable=True)
    tape.add(base, answer(0))
    assert [tape.find(other) for other in others] == [None] * len(others)
    assert tape.find(CallKey("fmp", "1.0", "quote", "abcd", {"n": 1, "symbol": "A"}, "0")) == answer(0)
    assert [set(tape.states(other)) for other in others] == [
        set(), {base.state}, set(), {base.state}, set(), {base.state}
    ]  # fmt: skip


def test_a_history_is_its_calls_their_order_and_their_answers() -> None:
    def after(*calls: tuple[str, str]) -> str:
        history = CallHistory()
        for text, given in calls:
            history.push("send", {"text": text}, RecordedAnswer(content=given))
        return history.after

    different = [after(), after(("a", "1")), after(("a", "2")), after(("a", "1"), ("b", "1"))]
    different += [after(("b", "1"), ("a", "1")), after(("a", "1"), ("a", "1"))]
    assert len(set(different)) == len(different)
    assert after(("a", "1"), ("b", "1")) == after(("a", "1"), ("b", "1"))


def test_the_latest_answer_of_a_key_counts(tmp_path: Path) -> None:
    tape = Tape(tmp_path, writable=True)
    assert [tape.add(key(1), answer(n)) for n in (1, 1, 2)] == [None, answer(1), answer(1)]
    assert tape.find(key(1)) == Tape(tmp_path, writable=False).find(key(1)) == answer(2)
    assert len((tmp_path / CALLS_NAME).read_bytes().splitlines()) == 2


def test_two_processes_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    # Lines longer than a pipe or a page, and half of the keys in both processes.
    writers = [writer(tmp_path, first, 100, length=9_000) for first in (0, 50)]
    for process in writers:
        process.communicate(timeout=60)
    assert [process.returncode for process in writers] == [0, 0]
    tape = Tape(tmp_path, writable=False)
    assert all(tape.find(key(i)) == answer(i, 9_000) for i in range(150))
    lines = (tmp_path / CALLS_NAME).read_bytes().splitlines()
    assert len(lines) == 150 and all(json.loads(line) for line in lines)


def test_a_writer_learns_what_another_has_recorded(tmp_path: Path) -> None:
    mine, other = Tape(tmp_path, writable=True), Tape(tmp_path, writable=True)
    mine.add(key(5), answer(5))
    other.add(key(3), answer(3))
    assert mine.find(key(3)) is None
    mine.catch_up()
    assert mine.find(key(3)) == answer(3)
    mine.add(key(1), answer(1))
    assert other.add(key(1), answer(1)) == answer(1)
    lines = (tmp_path / CALLS_NAME).read_text().splitlines()
    assert [json.loads(line)["arguments"]["symbol"] for line in lines] == ["S5", "S3", "S1"]


def test_a_writer_that_is_killed_leaves_every_finished_answer(tmp_path: Path) -> None:
    process = writer(tmp_path, 0, 100_000, length=50_000)
    assert process.stdout is not None
    said = [int(process.stdout.readline()) for _ in range(40)]
    os.kill(process.pid, signal.SIGKILL)
    said += [int(line) for line in process.communicate(timeout=30)[0].splitlines() if line]
    survivor = Tape(tmp_path, writable=True)
    assert all(survivor.find(key(i)) == answer(i, 50_000) for i in said)
    survivor.add(key(200_000), answer(200_000))
    again = Tape(tmp_path, writable=False)
    assert all(again.find(key(i)) is not None for i in (*said, 200_000))


@pytest.mark.parametrize("cut", [1, 2, 40, 150])
def test_an_unfinished_last_line_is_no_answer_and_the_next_writer_removes_it(
    cut: int, tmp_path: Path
) -> None:
    path = recorded(tmp_path, 1, 2)
    whole = path.read_bytes()
    path.write_bytes(whole[:-cut])
    reader = Tape(tmp_path, writable=False)
    assert (reader.find(key(1)), reader.find(key(2))) == (answer(1), None)
    recorded(tmp_path, 2)
    assert path.read_bytes() == whole


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b'"tool"', b'"tools"', "not a recorded call: 'tool'"),
        (b'"content"', b'"contents"', "not a recorded call: .*RecordedAnswer"),
        (b'{"server"', b'<<<<<<< HEAD\n{"server"', "not a recorded call: Expecting value"),
    ],
)
def test_a_line_that_is_not_a_call_is_named(old: bytes, new: bytes, message: str, tmp_path: Path) -> None:
    path = recorded(tmp_path, 1, 2, 3)
    first, second, third = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(first + second.replace(old, new) + third)
    for writable in (True, False):
        with pytest.raises(UserError, match=message) as refused:
            Tape(tmp_path, writable=writable)
        assert refused.value.where == f"{path}:2" and refused.value.remedy


def test_a_tape_with_checksums_from_before_is_read(tmp_path: Path) -> None:
    head = '{"call": "a6fb8a2b5f8e3e6a-7fb1b0a1c0a1d2e3", "sum": "00aa00aa00aa00aa", '
    new = recorded(tmp_path, 1).read_text()
    (tmp_path / CALLS_NAME).write_text(head + new[1:])
    assert Tape(tmp_path, writable=False).find(key(1)) == answer(1)


def test_a_tape_that_is_only_read_is_left_alone_and_one_that_is_missing_is_named(tmp_path: Path) -> None:
    path = recorded(tmp_path / "tape", 1)
    (tmp_path / "tape" / ".lock").unlink()
    before = path.stat()
    tape = Tape(tmp_path / "tape", writable=False)
    assert tape.find(key(1)) == answer(1)
    assert [entry.name for entry in path.parent.iterdir()] == [CALLS_NAME]
    assert (path.stat().st_ino, path.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)
    with pytest.raises(UserError, match="there is no cassette"):
        Tape(tmp_path / "other", writable=False)
    assert not (tmp_path / "other").exists()


def test_a_place_that_cannot_be_written_to_is_the_users_to_fix(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot be written"):
        Tape(tmp_path / "file", writable=True)
