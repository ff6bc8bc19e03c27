"""Runs: names of their own, one process at a time, and how each one stands."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from mcpagent.console import Console
from mcpagent.errors import InUseError, RunError, UserError
from mcpagent.storage.locks import holder, locked_file, locked_folder
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.runs import RunSession, last_run, list_runs, new_session, run_session
from tests.running import Python

_HOLDER = """
import sys
from pathlib import Path
from mcpagent.storage.locks import locked_file, locked_folder
kind, path = sys.argv[1:]
with {"folder": locked_folder, "file": locked_file}[kind](Path(path)):
    print("held", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_process(kind: str, path: Path) -> Iterator[subprocess.Popen[str]]:
    """Another process that holds the lock until its input ends."""
    with Python(
        "-c", _HOLDER, kind, path, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        try:
            yield process
        finally:
            process.kill()


def test_a_quickstart_shows_its_warm_start_until_its_own_steps_begin(tmp_path: Path) -> None:
    with new_session(tmp_path, "own", kind="quickstart") as session:
        session.begin(60)
        make_run(tmp_path / "own" / "warm_start", kind="sft", steps=3, total=950)
        (run,) = list_runs(tmp_path)
        assert (run.steps, run.total_steps) == (0, 60)
        assert run.warm_start is not None and (run.warm_start.steps, run.warm_start.total_steps) == (3, 950)
        (session.folder / "metrics.jsonl").write_text('{"step": 1}\n')
        assert list_runs(tmp_path)[0].warm_start is None


def make_run(folder: Path, *, kind: str = "grpo", steps: int = 0, total: int = 4) -> None:
    """A run that its process left in the regular way."""
    with new_session(folder.parent, folder.name, kind=kind) as session:
        write_run(session, steps=steps, total=total)
        session.end("completed")


def write_run(session: RunSession, *, steps: int, total: int = 4) -> None:
    run = RunFolder.create(session.folder, config_yaml="algorithm: grpo\n", manifest={})
    session.begin(total)
    for step in range(1, steps + 1):
        run.append_metrics({"step": step, "success_rate": step / 8})


@pytest.mark.parametrize(("kind", "lock"), [("folder", locked_folder), ("file", locked_file)])
def test_a_second_process_is_told_which_one_writes_there(kind: str, lock, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with another_process(kind, place) as process:
        with pytest.raises(InUseError) as caught, lock(place):
            pass
        error = caught.value
        assert (error.exit_code, error.where) == (2, str(place))
        assert (error.process["pid"], error.process["host"]) == (process.pid, socket.gethostname())
        assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", error.process["since"])
        assert error.process["command"].startswith("mcpagent")
        for part in (str(process.pid), socket.gethostname(), error.process["since"]):
            assert part in str(error)
        assert error.as_json()["error"]["process"] == error.process


@pytest.mark.parametrize(("kind", "lock"), [("folder", locked_folder), ("file", locked_file)])
def test_a_killed_process_leaves_no_lock_behind(kind: str, lock, tmp_path: Path) -> None:
    place = tmp_path / "place"
    with another_process(kind, place) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
        left = [path.name for path in tmp_path.rglob("*.lock")]
        assert len(left) == 1  # the file is there, but nothing holds it
        with lock(place):
            pass
    assert list(tmp_path.rglob("*.lock")) == []


def test_a_fork_that_outlives_its_parent_does_not_keep_the_lock(tmp_path: Path) -> None:
    fork = "import os\n    if os.fork() == 0:\n        sys.stdin.read()\n        os._exit(0)\n    "
    script = _HOLDER.replace("print(", f"{fork}print(")
    command = [sys.executable, "-c", script, "folder", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
        with locked_folder(tmp_path):
            pass


def test_what_was_empty_when_the_lock_ends_is_removed(tmp_path: Path) -> None:
    with locked_folder(tmp_path / "outputs" / "run"):
        assert (tmp_path / "outputs" / "run").is_dir()
    with locked_file(tmp_path / "results" / "a.json"):
        pass
    assert list(tmp_path.iterdir()) == []
    with locked_folder(tmp_path / "outputs" / "run"):
        (tmp_path / "outputs" / "run" / "kept").touch()
    assert [path.name for path in (tmp_path / "outputs" / "run").iterdir()] == ["kept"]


def test_one_process_may_lock_what_it_has_locked(tmp_path: Path) -> None:
    with locked_folder(tmp_path):
        with locked_folder(tmp_path):
            pass
        assert holder(tmp_path) is not None


@pytest.mark.parametrize("lock", [locked_folder, locked_file])
def test_a_file_where_a_folder_is_needed_is_one_message(lock, tmp_path: Path) -> None:
    blocked = tmp_path / "file"
    blocked.touch()
    message = re.escape(f"{blocked} is a file, not a folder")
    with pytest.raises(UserError, match=message), lock(blocked / "runs" / "one"):
        pass


def test_runs_name_themselves_by_day_and_letter(tmp_path: Path) -> None:
    names = []
    for _ in range(28):
        with new_session(tmp_path, None, kind="grpo") as session:
            write_run(session, steps=0)
        names.append(session.folder.name)
    days = {re.fullmatch(r"train-(\d{4}-\d\d-\d\d)-([a-z]+)", name)[1] for name in names}  # pyright: ignore
    assert len(days) in (1, 2)  # the clock may strike midnight
    letters = [name.rpartition("-")[2] for name in names]
    if len(days) == 1:
        assert letters == [*"abcdefghijklmnopqrstuvwxyz", "aa", "ab"]
    assert last_run(tmp_path, kind="grpo").name == names[-1]


def test_runs_that_start_at_once_get_different_names(tmp_path: Path) -> None:
    with new_session(tmp_path, None, kind="grpo") as a, new_session(tmp_path, None, kind="grpo") as b:
        assert a.folder != b.folder


def test_the_last_run_of_a_kind_is_resumed_and_only_one_that_named_itself(tmp_path: Path) -> None:
    for name, kind in (
        ("train-2026-01-02-z", "grpo"),
        ("train-2026-01-02-aa", "grpo"),  # the one after z
        ("train-2026-01-03-a", "sft"),
        ("train-2026-02-01-a", "ppo"),
        ("zoo", "grpo"),
    ):
        make_run(tmp_path / name, kind=kind)
    assert last_run(tmp_path, kind="grpo").name == "train-2026-01-02-aa"
    assert last_run(tmp_path, kind="sft").name == "train-2026-01-03-a"
    with pytest.raises(UserError, match="no sft run to resume"):
        last_run(tmp_path / "nowhere", kind="sft")


def test_a_start_that_fails_leaves_nothing(tmp_path: Path) -> None:
    for name in (None, "mine"):
        with pytest.raises(UserError), new_session(tmp_path / "outputs", name, kind="grpo") as session:
            (session.folder / "logs").mkdir()
            (session.folder / "logs" / "shop.log").write_text("starting")
            raise UserError("no such model")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "mine").mkdir()
    with pytest.raises(UserError), new_session(tmp_path, "mine", kind="grpo") as session:
        (session.folder / "logs").mkdir()
        raise UserError("no such model")
    assert [path.name for path in tmp_path.rglob("*")] == ["mine"]


def test_a_refused_resume_does_not_change_how_the_run_stands(tmp_path: Path) -> None:
    make_run(tmp_path / "run", steps=4)
    before = (tmp_path / "run" / "status.json").read_bytes()
    with pytest.raises(UserError), run_session(tmp_path / "run", kind="grpo"):
        raise UserError("the run was started with other settings")
    assert (tmp_path / "run" / "status.json").read_bytes() == before


def test_a_folder_that_is_not_empty_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").touch()
    with pytest.raises(UserError, match="not empty"), new_session(tmp_path, "mine", kind="grpo"):
        pass
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_the_list_says_how_each_run_stands(tmp_path: Path) -> None:
    make_run(tmp_path / "finished", steps=4)
    with pytest.raises(RunError), new_session(tmp_path, "failed", kind="grpo") as session:
        write_run(session, steps=1)
        raise RunError("loss is nan")
    with pytest.raises(KeyboardInterrupt), new_session(tmp_path, "stopped", kind="grpo") as session:
        write_run(session, steps=2)
        raise KeyboardInterrupt
    script = (
        "import os, signal, sys; sys.path.insert(0, sys.argv[2])\n"
        "from pathlib import Path\n"
        "from tests.storage.test_runs import write_run, new_session\n"
        "with new_session(Path(sys.argv[1]), 'killed', kind='grpo') as session:\n"
        "    write_run(session, steps=3)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    root = str(Path(__file__).parents[2])
    subprocess.run([sys.executable, "-c", script, str(tmp_path), root], cwd=root, check=False)
    (tmp_path / "notes").mkdir()  # is not a run
    make_run(tmp_path / "busy", steps=1)
    with another_process("folder", tmp_path / "busy") as process:
        runs = {run.name: run for run in list_runs(tmp_path)}
        assert runs["busy"].process is not None
        assert runs["busy"].process["pid"] == process.pid
    states = {name: (run.state, run.reason, run.steps, run.total_steps) for name, run in runs.items()}
    assert states == {
        "finished": ("finished", "completed", 4, 4),
        "failed": ("failed", "loss is nan", 1, 4),
        "stopped": ("interrupted", None, 2, 4),
        "killed": ("interrupted", None, 3, 4),
        "busy": ("running", None, 1, 4),
    }
    assert (runs["finished"].success, runs["finished"].success_of) == (0.5, "training")
    measured = {"metrics": {"task_success": {"value": 0.75}}}
    (tmp_path / "finished" / "eval" / "best.json").write_text(json.dumps(measured))
    (finished,) = [run for run in list_runs(tmp_path) if run.name == "finished"]
    assert (finished.success, finished.success_of) == (0.75, "heldout")
    Console(is_json=True).print_json(list(runs.values()))
