"""mcpagent's commands as processes that begin at once.

Most of what a command costs is what it imports. Here each one is a fork of a process that has imported
everything and done nothing else: a real process, with its own folder, environment, arguments and standard
streams, to be signalled and killed like any other. What depends on how an interpreter begins (what it
imports, variables that are read only then) wants a real one: subprocess with `-m mcpagent.cli.main`.
"""

from __future__ import annotations

import atexit
import functools
import inspect
import json
import os
import select
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import psutil

ROOT = Path(__file__).resolve().parents[1]
BOUND_S = 200  # after which a command hangs, also on a machine that does much else


class Warm:
    """The process whose forks are the commands, of the package in `tree`."""

    def __init__(self, tree: Path = ROOT) -> None:
        self._ours, theirs = socket.socketpair()
        with theirs:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "tests.warm", str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=[theirs.fileno()],
                cwd=tree,
                env={**os.environ, "PYTHONPATH": f"{tree}:{ROOT}", "OMP_NUM_THREADS": "1"},
            )

    def fork(self, job: Mapping[str, Any], streams: tuple[int, int, int]) -> socket.socket:
        """Begins a command; its process id and later its exit status come over the socket, a line each."""
        ours, theirs = socket.socketpair()
        text = json.dumps(job).encode()
        with theirs:
            socket.send_fds(self._ours, [struct.pack("Q", len(text))], [*streams, theirs.fileno()])
            self._ours.sendall(text)
        return ours

    def close(self) -> None:
        """It ends when nobody can ask it any more."""
        self._ours.close()
        self.process.wait()


@functools.cache
def shared() -> Warm:
    """The one of these tests' process."""
    warm = Warm()
    atexit.register(warm.close)
    return warm


def children() -> list[psutil.Process]:
    """The processes below that of these tests, without the warm one and the commands."""
    warm = shared().process.pid if shared.cache_info().currsize else None
    own = [child for child in psutil.Process().children() if child.pid != warm]
    return own + [below for child in own for below in _below(child)]


def _below(process: psutil.Process) -> list[psutil.Process]:
    try:
        return process.children(recursive=True)
    except psutil.NoSuchProcess:  # it ended a moment ago
        return []


class Python(subprocess.Popen[Any]):
    """Popen of `python -m MODULE ARGUMENTS` or `python -c CODE ARGUMENTS`, with Popen's settings; `limits`
    are resource limits by name."""

    def __init__(
        self,
        *words: str | Path,
        warm: Warm | None = None,
        limits: Mapping[str, int] | None = None,
        **settings: Any,
    ) -> None:
        self._warm, self._limits = warm or shared(), dict(limits or {})
        super().__init__(list(map(str, words)), **settings)

    # The two steps of Popen that touch the child: everything else in it works on pipes and on the process id.
    def _execute_child(self, *arguments: Any) -> None:
        given = inspect.signature(subprocess.Popen._execute_child).bind(self, *arguments).arguments
        assert given["preexec_fn"] is None and not given["pass_fds"] and not given["shell"]
        ends = (given["p2cread"], given["c2pwrite"], given["errwrite"])
        job = {
            "words": given["args"],
            "cwd": str(given["cwd"] or Path.cwd()),
            "environment": dict(os.environ if given["env"] is None else given["env"]),
            "starts_session": given["start_new_session"],
            "limits": self._limits,
        }
        streams = [number if end == -1 else end for number, end in enumerate(ends)]
        self._told = self._warm.fork(job, (streams[0], streams[1], streams[2]))
        self.pid = self._number()
        self._child_created = True
        pipes = ("p2cread", "p2cwrite", "c2pread", "c2pwrite", "errread", "errwrite")
        self._close_pipe_fds(*(given[name] for name in pipes))

    def _try_wait(self, wait_flags: int) -> tuple[int, int]:
        """`os.waitpid`: (0, 0) where it runs and nobody is to wait."""
        if wait_flags & os.WNOHANG and not select.select([self._told], [], [], 0)[0]:
            return 0, 0
        status = self._number()
        self._told.close()
        return self.pid, status

    def _internal_poll(self, _deadstate: int | None = None, **_: Any) -> int | None:
        if self.returncode is None and self._waitpid_lock.acquire(False):
            try:
                pid, status = self._try_wait(os.WNOHANG)
                if pid:
                    self._handle_exitstatus(status)
            finally:
                self._waitpid_lock.release()
        return self.returncode

    def _number(self) -> int:
        said = self._told.recv(8, socket.MSG_WAITALL)
        assert len(said) == 8, "the process whose forks are the commands is gone"
        return struct.unpack("q", said)[0]


class Command(Python):
    """`mcpagent ARGUMENTS`."""

    def __init__(self, *arguments: str | Path, **settings: Any) -> None:
        super().__init__("-m", "mcpagent.cli.main", *arguments, **settings)


def mcpagent(
    *arguments: str | Path,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    stdin: str | None = None,
    limits: Mapping[str, int] | None = None,
    timeout_s: float = BOUND_S,
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; `env` is added to the environment."""
    with Command(
        *arguments,
        limits=limits,
        cwd=cwd,
        env={**os.environ, **(env or {})},
        stdin=subprocess.DEVNULL if stdin is None else subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            out, err = process.communicate(stdin, timeout=timeout_s)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(process.args, process.returncode, out, err)


# Commands that the one process runs in turn. What a run sets up for its process is as it was left.
_IN_TURN = """
import contextlib, io, json, sys
from mcpagent.cli.main import run
answers, known = [], set()
for words in json.load(sys.stdin):
    sys.argv = ["mcpagent", *words]
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            run()
            code = 0
        except SystemExit as ended:
            code = ended.code
    heavy = sorted({"openai", "torch", "transformers", "vllm"} & set(sys.modules) - known)
    known.update(heavy)
    answers.append([code, out.getvalue(), err.getvalue(), heavy])
json.dump(answers, sys.stdout)
"""


class Answer(NamedTuple):
    """How one of several commands in a process ended, and which heavy packages it was the first to import."""

    code: int
    out: str
    err: str
    heavy: list[str]


def in_turn(lines: Iterable[Sequence[str]], *, cwd: Path, imports: bool = False) -> list[Answer]:
    """Run commands in turn in one process; where imports matter, in a new interpreter."""
    words = ("-c", _IN_TURN)
    settings: dict[str, Any] = {
        **dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE),
        "env": {**os.environ, "PYTHONPATH": f"{ROOT}"},
        "cwd": cwd,
        "text": True,
    }
    begun = subprocess.Popen([sys.executable, *words], **settings) if imports else Python(*words, **settings)
    with begun as process:
        out, err = process.communicate(json.dumps(list(map(list, lines))), timeout=BOUND_S)
    assert process.returncode == 0, err
    return [Answer(*answer) for answer in json.loads(out)]


def wait_for(is_there: Callable[[], bool], process: subprocess.Popen[Any]) -> None:
    """Until it is; fails if the process ends first or two minutes pass."""
    pause, end = threading.Event(), time.monotonic() + 120.0
    while not is_there():
        assert process.poll() is None, process.stderr.read() if process.stderr else "it ended before"
        assert time.monotonic() < end
        pause.wait(0.02)


def refused(done: subprocess.CompletedProcess[str]) -> str:
    """The one message of a command that the user must fix something for."""
    assert done.returncode == 2, done.stderr
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert done.stderr.count("error: ") == 1
    return done.stderr
