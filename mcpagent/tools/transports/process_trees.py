"""Whole trees of processes: who is in one, and its end; the watchdog that ends them when we are killed.

Run as a program it is that watchdog, with the standard library only, so that it starts in a moment
(docs/design/0005-parts-of-our-own.md). A child that ignores the end of its input and SIGTERM outlives a
parent that was killed with SIGKILL, and so do the children of `npx` and `uvx`. The kernel's own remedy
(PR_SET_PDEATHSIG) exists on Linux only, fires when the *thread* that forked ends, and reaches no grandchild.
So one small process per trainer holds the other end of a pipe, and ends the trees that the trainer had
running when the pipe closes.
"""

from __future__ import annotations

import contextlib
import functools
import os
import select
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

GRACE_S = 1.0  # between the end of its input and SIGTERM, and between SIGTERM and SIGKILL
_POLL_S = 0.05
_PARENT_POLL_S = 1.0
_LOOK_EVERY_S = 5.0  # it reads the whole process table, in some milliseconds
_PROC = Path("/proc")
# In the environment of each server: a process that inherits it is of that server, whatever its parent is now.
MARK_ENV = "MCPAGENT_SERVER"
_HAS_PROC = (_PROC / "self" / "stat").exists()


class _Process(NamedTuple):
    """A process that runs: a zombie does not. An id may be given again, so `birth` belongs to it."""

    pid: int
    parent: int
    group: int
    birth: str  # when it was started, in the system's own words


class ProcessTree:
    """The group of a process that leads its own, and in other groups the leader's descendants and what
    carries `mark` (with `MARK_ENV`, as daemons do that left their parents; on Linux)."""

    def __init__(self, leader: int, mark: str = "") -> None:
        self.leader = leader
        self.mark = mark
        self.strays: set[tuple[int, str]] = set()  # by id and birth

    def look(self) -> None:
        """Note the descendants, as long as the leader lives: a browser, say, gets a group of its own."""
        look([self])

    def signal(self, number: int) -> None:
        """Send a signal to every process of it that is left."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.leader, number)
        for pid, _ in self._living_strays():
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, number)

    def is_alive(self) -> bool:
        """Return True while a process of it runs."""
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):  # macOS refuses if only zombies are left
            return bool(self._living_strays())
        return bool(self.living())

    def living(self) -> set[int]:
        """Return the ids of its processes that run."""
        return {p.pid for p in _processes() if p.group == self.leader or (p.pid, p.birth) in self.strays}

    def _living_strays(self) -> set[tuple[int, str]]:
        return self.strays & {(p.pid, p.birth) for p in _processes()} if self.strays else set()


def look(trees: list[ProcessTree]) -> None:
    """`ProcessTree.look` for all of them, at the cost of one."""
    processes = list(_processes())
    for tree in trees:
        family = {tree.leader}
        while grown := {p.pid for p in processes if p.parent in family} - family:
            family |= grown
        tree.strays |= {(p.pid, p.birth) for p in processes if p.pid in family and p.group != tree.leader}
    marks = {f"{MARK_ENV}={tree.mark}".encode(): tree for tree in trees if tree.mark}
    for process in processes if marks and _HAS_PROC else ():
        for variable in _environment(process.pid):
            tree = marks.get(variable)
            if tree is not None and process.group != tree.leader:
                tree.strays.add((process.pid, process.birth))


def _environment(pid: int) -> list[bytes]:
    """Return a process's environment as its program was started; empty if it may not be read."""
    try:
        return (_PROC / str(pid) / "environ").read_bytes().split(b"\0")
    except OSError:
        return []


def end_trees(trees: list[ProcessTree]) -> None:
    """Give them time to see the end of their input, then SIGTERM, then SIGKILL: about 2 s at most."""
    look(trees)
    for number in (signal.SIGTERM, signal.SIGKILL):
        deadline_s = time.monotonic() + GRACE_S
        while (trees := [tree for tree in trees if tree.is_alive()]) and time.monotonic() < deadline_s:
            time.sleep(_POLL_S)
        look(trees)
        for tree in trees:
            tree.signal(number)


def _processes() -> Iterator[_Process]:
    return _from_proc() if _HAS_PROC else _from_ps()


def _from_proc() -> Iterator[_Process]:
    for path in _PROC.iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended
                # Before its last parenthesis is its name, which may itself hold anything; see proc(5).
                fields = (path / "stat").read_text(errors="replace").rpartition(")")[2].split()
                if fields[0] not in "ZX":
                    yield _Process(int(path.name), int(fields[1]), int(fields[2]), fields[19])


def _from_ps() -> Iterator[_Process]:
    command = ["ps", "-A", "-ww", "-o", "pid=,ppid=,pgid=,state=,lstart="]  # macOS has no /proc
    for row in subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines():
        pid, parent, group, state, birth = row.split(maxsplit=4)
        if not state.startswith("Z"):
            yield _Process(int(pid), int(parent), int(group), birth)


class Watchdog:
    """Runs while it has something to watch. Every thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, str] = {}  # and the mark of each
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, start: Callable[[], subprocess.Popen[bytes]], *, mark: str) -> subprocess.Popen[bytes]:
        """Start a process that leads its own group, which ends with us unless `forget` comes first. It has
        `mark` in its environment.

        The watchdog is up first, so that the moment in which the new process is unwatched is short.
        """
        with self._lock:
            try:
                self._wake()
                process = start()
                self._groups[process.pid] = mark
                self._tell(_line(process.pid, mark))
                return process
            finally:
                self._rest_if_idle()

    def forget(self, group: int) -> None:
        """The group is gone. With the last one the watchdog ends too."""
        with self._lock:
            self._groups.pop(group, None)
            self._rest_if_idle()
            if self._groups:
                self._tell(b"-%d\n" % group)

    def _wake(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-I", "-S", __file__, str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                bufsize=0,
                start_new_session=True,
            )
        return self._process

    def _tell(self, line: bytes) -> None:
        try:
            self._write(line)
        except BrokenPipeError:  # it was killed: a new one is told everything
            self._end()
            self._write(b"".join(_line(group, mark) for group, mark in self._groups.items()))

    def _write(self, data: bytes) -> None:
        pipe = self._wake().stdin
        assert pipe is not None
        pipe.write(data)

    def _rest_if_idle(self) -> None:
        if not self._groups:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            process.kill()
            process.communicate()


def _line(group: int, mark: str) -> bytes:
    return b"+%d %b\n" % (group, mark.encode())


@functools.cache
def _watchdog_of(pid: int) -> Watchdog:
    return Watchdog()


def watchdog() -> Watchdog:
    """Return the watchdog of this process; a process that was forked from it gets one of its own."""
    return _watchdog_of(os.getpid())


def _watch(parent: int) -> None:
    """Read `+PGID MARK` and `-PGID` from stdin until it ends or the parent is gone, then end what is left.

    The parent's end of the pipe may be held open by a process that it forked; its own death shows in the
    parent id too.
    """
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)  # sent to a whole job when its trainer is asked to stop
    trees: dict[int, ProcessTree] = {}
    rest = b""
    looked_s = time.monotonic()
    while True:
        if select.select([0], [], [], _PARENT_POLL_S)[0]:
            data = os.read(0, 65536)
            if not data:
                break
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                number, _, mark = line[1:].partition(b" ")
                group = int(number)
                if line.startswith(b"+"):
                    trees[group] = ProcessTree(group, mark.decode())
                else:
                    trees.pop(group, None)
        elif os.getppid() != parent:
            break
        if time.monotonic() - looked_s > _LOOK_EVERY_S:
            look(list(trees.values()))  # a server may end with us before it is asked for its descendants
            looked_s = time.monotonic()
    end_trees(list(trees.values()))


if __name__ == "__main__":
    _watch(int(sys.argv[1]))
