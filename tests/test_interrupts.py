"""Ctrl-C, SIGTERM and SIGHUP: the first is followed in good order, a second one ends the process."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.cli.specs import spec_of
from tests.running import Command, Python, mcpagent

pytestmark = pytest.mark.system

ROOT = Path(__file__).resolve().parents[1]
ALL = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)

_HOLDS = """
import os, sys, threading
from mcpagent.interrupts import listen, uninterrupted
listen()
try:
    with uninterrupted(lambda: print("finishing", flush=True)):
        os.write(1, b"ready\\n")  # a signal that comes before `print` has returned could not print itself
        sys.stdin.readline()  # the work; a signal does not end it
        print("finished", flush=True)
except KeyboardInterrupt:
    print("stopped", flush=True)
    sys.exit(130)
"""

# Its cleaning up never ends: only the second signal does.
_HANGS = """
import sys, threading
from mcpagent.interrupts import listen, stopping
listen()
try:
    print("ready", flush=True)
    threading.Event().wait()
except KeyboardInterrupt:
    stopping()
    said = "cleaning up"
    while True:
        try:
            print(said, flush=True)  # no signal comes before it, and so none outside of this block
            threading.Event().wait()
        except KeyboardInterrupt:
            said = "again"
"""


@contextmanager
def script(text: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-c", text]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT
    ) as process:
        try:
            yield process
        finally:
            process.kill()


def lines(process: subprocess.Popen[str], *expected: str) -> None:
    assert process.stdout is not None
    for line in expected:
        assert process.stdout.readline() == line + "\n"


@pytest.mark.parametrize("number", ALL)
def test_the_first_signal_waits_until_what_is_being_done_is_finished(number: signal.Signals) -> None:
    with script(_HOLDS) as process:
        lines(process, "ready")
        process.send_signal(number)
        lines(process, "finishing")
        assert process.stdin is not None
        process.stdin.write("done\n")
        process.stdin.flush()
        lines(process, "finished", "stopped")
        assert process.wait() == 130


@pytest.mark.parametrize(("first", "second"), list(zip(ALL, (*ALL[1:], ALL[0]), strict=True)))
def test_a_second_signal_ends_a_process_whose_cleaning_up_hangs(
    first: signal.Signals, second: signal.Signals
) -> None:
    with script(_HANGS) as process:
        lines(process, "ready")
        process.send_signal(first)
        lines(process, "cleaning up")
        while process.poll() is None:  # what follows at once may be the echo of the first
            process.send_signal(second)
            try:
                process.wait(timeout=0.6)
            except subprocess.TimeoutExpired:
                continue
        assert process.returncode == 130


def test_a_signal_that_comes_twice_at_once_is_one() -> None:
    """`timeout` sends SIGTERM to the process and to its group. The second one is sent from where the first is
    being followed: on a busy machine, one from here could come too late to be taken for the same."""
    followed = 'lambda: (print("finishing", flush=True), os.kill(os.getpid(), signal.SIGTERM))'
    text = "import signal" + _HOLDS.replace('lambda: print("finishing", flush=True)', followed)
    assert followed in text
    with script(text) as process:
        lines(process, "ready")
        process.send_signal(signal.SIGTERM)
        lines(process, "finishing")
        assert process.stdin is not None
        process.stdin.write("done\n")
        process.stdin.flush()
        lines(process, "finished", "stopped")


_IN_THE_MIDDLE_OF_A_LINE = """
import io, os, signal, sys
from mcpagent.interrupts import listen, uninterrupted

class Pipe(io.RawIOBase):
    def writable(self):
        return True
    def write(self, data):
        if b"step 1" in bytes(data):
            os.kill(os.getpid(), signal.SIGTERM)
        return os.write(1, data)

out = io.TextIOWrapper(io.BufferedWriter(Pipe()))
listen()
try:
    with uninterrupted(lambda: print("finishing", file=out, flush=True)):
        print("step 1", file=out, flush=True)
        print("finished", file=out, flush=True)
except KeyboardInterrupt:
    sys.exit(130)
"""


def test_a_signal_in_the_middle_of_a_line_that_is_being_written_does_not_end_the_work() -> None:
    with script(_IN_THE_MIDDLE_OF_A_LINE) as process:
        assert process.stdout is not None
        assert sorted(process.stdout.read().split()) == ["1", "finished", "finishing", "step"]
        assert process.wait() == 130


def test_what_is_ignored_stays_so() -> None:
    """Under nohup a command outlives its terminal."""
    text = "import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN)\n" + _HOLDS
    with script(text) as process:
        lines(process, "ready")
        process.send_signal(signal.SIGHUP)
        assert process.stdin is not None
        process.stdin.write("done\n")
        process.stdin.flush()
        lines(process, "finished")
        assert process.wait() == 0


SLOW_SERVER = Path(__file__).with_name("cli") / "slow_server.py"


@pytest.fixture
def slow(tmp_path: Path) -> dict[str, Path]:
    """A server whose calls never end, a spec and a dataset that call it."""
    called = tmp_path / "called"
    server = {"command": sys.executable, "args": [str(SLOW_SERVER), str(called)]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"slow": server}}))
    (tmp_path / "spec.json").write_text(json.dumps(spec_of("slow", "look", {"name": "x"})))
    record = {
        "data_source": "test",
        "env_class": "MCPToolEnv",
        "prompt": [{"role": "system", "content": "Use tools."}, {"role": "user", "content": "Look x up."}],
        "reward_spec": {
            "method": "rule",
            "ground_truth": {
                "task_id": "one",
                "complexity": "simple",
                "max_turns": 2,
                "success": {"must_call_tool": "slow.look"},
                "tool_sequence": [{"step": 1, "server": "slow", "tool": "look", "params": {"name": "x"}}],
            },
        },
        "extra_info": {},
    }
    (tmp_path / "data.jsonl").write_text(json.dumps(record) + "\n")
    (tmp_path / "out").mkdir()
    return {"called": called, "folder": tmp_path, "out": tmp_path / "out"}


COMMANDS = {
    "convert": "convert {d}/spec.json --servers {d}/mcp.json --execute --out {d}/out/x/train.jsonl",
    "rollout": "rollout --policy gold --servers {d}/mcp.json --data {d}/data.jsonl --out {d}/out/x/t.jsonl",
    "gen-data": "gen-data --explore --servers {d}/mcp.json --read-only slow --out {d}/out/x",
}


def test_a_closed_terminal_is_one_too(slow: dict[str, Path]) -> None:
    """The terminal's end is SIGHUP for the command, which can say nothing any more."""
    words = COMMANDS["rollout"].format(d=slow["folder"]).split()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(ROOT)
        os.execv(sys.executable, [sys.executable, "-m", "mcpagent.cli.main", *words])
    read_until_there(terminal, slow["called"])
    os.close(terminal)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 130
    assert list(slow["out"].iterdir()) == []


# Commands that show a bar while they wait for that server.
AT_A_BAR = {
    **COMMANDS,
    "convert": COMMANDS["convert"].replace("/out/x/train.jsonl", "/out/x.jsonl"),
    "eval": "eval model gold --servers {d}/mcp.json --data {d}/data.jsonl --out {d}/out/e.json",
    "env check": "env check --servers {d}/mcp.json --data {d}/data.jsonl",
    "tools call": 'tools call slow.look {{"name":"x"}} --servers {d}/mcp.json',
}


@contextmanager
def on_a_terminal(words: list[str], folder: Path) -> Iterator[tuple[Command, int]]:
    """The command in the foreground of a terminal of its own, and the terminal's other end."""
    leader, follower = pty.openpty()
    with Command(
        *words, stdin=follower, stdout=follower, stderr=follower, start_new_session=True, cwd=folder
    ) as process:
        os.close(follower)
        try:
            yield process, leader
        finally:
            process.kill()
            os.close(leader)


def read_until(terminal: int, text: str, seen: str = "") -> str:
    """What is on the terminal by when it shows `text`, or is closed."""
    while text not in seen:
        try:
            seen += os.read(terminal, 65536).decode(errors="replace")
        except OSError:  # Linux says the end of a terminal so
            return seen
    return seen


def read_until_there(terminal: int, file: Path) -> str:
    """What is on the terminal by when the file is there, or the terminal is closed. One that nobody reads is
    full after some seconds, and a command with a bar waits for its reader then."""
    seen = ""
    while not file.exists():
        if select.select([terminal], [], [], 0.05)[0]:
            try:
                seen += os.read(terminal, 65536).decode(errors="replace")
            except OSError:
                return seen
    return seen


def last_line(seen: str) -> str:
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", seen).replace("\r", "\n")  # over the ^C of the terminal
    return [line for line in plain.split("\n") if line.strip()][-1]


@pytest.mark.parametrize("command", AT_A_BAR)
def test_ctrl_c_on_a_terminal_ends_with_one_line_that_names_the_command_to_go_on_with(
    command: str, slow: dict[str, Path]
) -> None:
    words = AT_A_BAR[command].format(d=slow["folder"]).split()
    with on_a_terminal(words, ROOT) as (process, terminal):
        seen = read_until_there(terminal, slow["called"])
        os.write(terminal, b"\x03")
        seen = read_until(terminal, "never", seen)
        assert process.wait() == 130, seen[-1000:]
    again = shlex.join(["mcpagent", *words])
    assert last_line(seen) == f"interrupted: nothing is half-written; begin again with: {again}"
    assert seen.count("interrupted") == 1 and "Traceback" not in seen
    assert list(slow["out"].iterdir()) == []


def test_ctrl_c_at_the_bar_of_an_evaluation_says_what_is_kept_and_that_goes_on(
    slow: dict[str, Path],
) -> None:
    """One task's server answers, the other's does not."""
    text = (slow["folder"] / "data.jsonl").read_text()
    quick = text.replace('"one"', '"two"').replace('"x"', '"quick"').replace("Look x", "Look quick")
    (slow["folder"] / "data.jsonl").write_text(quick + text)
    words = [*AT_A_BAR["eval"].format(d=slow["folder"]).split(), "--set", "rollout.num_envs=1"]
    with on_a_terminal(words, ROOT) as (process, terminal):
        seen = read_until(terminal, "1/2")
        os.write(terminal, b"\x03")
        seen = read_until(terminal, "never", seen)
        assert process.wait() == 130, seen[-1000:]
    kept, _, command = last_line(seen).partition("; go on with: mcpagent ")
    assert kept == f"interrupted: {slow['out'] / 'e.partial.jsonl'} keeps the episodes that ended"
    assert command == shlex.join([*words, "--resume"])
    slow["called"].with_name("answers").touch()
    done = mcpagent(*shlex.split(command), "--json", cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["n_episodes"] == 2


@pytest.mark.parametrize(
    ("begin", "bar", "goes_on"),
    [
        ("quickstart --out q", "make tasks", "mcpagent quickstart --out q"),
        (
            "train --algo sft --config configs/warm_start.yaml --data {samples} --out t",
            "supervised",
            "mcpagent train --config t/config.yaml --resume",
        ),
    ],
)
def test_ctrl_c_at_the_bar_of_a_run_names_the_command_that_goes_on(
    begin: str, bar: str, goes_on: str, tmp_path: Path
) -> None:
    words = begin.format(samples=ROOT / "data" / "samples").split()
    with on_a_terminal(words, tmp_path) as (process, terminal):
        seen = read_until(terminal, bar)
        os.write(terminal, b"\x03")
        seen = read_until(terminal, "never", seen)
        assert process.wait() == 130, seen[-1000:]
    line = last_line(seen)
    assert line.startswith("interrupted: ") and line.endswith(f"; go on with: {goes_on}")


def test_a_second_ctrl_c_that_cuts_the_cleaning_up_off_says_so_and_shows_the_cursor() -> None:
    leader, follower = pty.openpty()
    with Python(
        "-c", _HANGS, stdin=follower, stdout=follower, stderr=follower, start_new_session=True
    ) as process:
        os.close(follower)
        seen = read_until(leader, "ready")
        os.write(leader, b"\x03")
        seen = read_until(leader, "cleaning up", seen)
        os.write(leader, b"\x03")
        seen = read_until(leader, "never", seen)
        assert process.wait() == 130
    os.close(leader)
    assert last_line(seen).startswith("interrupted again: ended without cleaning up")
    assert seen.rindex("\x1b[?25h") < seen.rindex("interrupted again")
