"""Whole trees of processes: who is in one, and its end. Standard library only.

Run as a script it is the watchdog of a trainer. A child that ignores the end of its input and SIGTERM
outlives a parent that was killed with SIGKILL, and so do the children of `npx` and `uvx`. The kernel's
own remedy (PR_SET_PDEATHSIG) exists on Linux only, fires when the *thread* that forked ends, and reaches
no grandchild. So one small process per trainer holds the other end of a pipe, and ends the trees that the
trainer had running when the pipe closes.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

GRACE_S = 1.0  # between the end of its input and SIGTERM, and between SIGTERM and SIGKILL
_POLL_S = 0.05
_PARENT_POLL_S = 1.0
_LOOK_EVERY_S = 5.0  # it reads the whole process table, in some milliseconds
_PROC = Path("/proc")
# In the environment of each server: whoever inherits it belongs to that server, whoever its parent is by now.
MARK_ENV = "MCPAGENT_SERVER"
_HAS_PROC = (_PROC / "self" / "stat").exists()


class _Process(NamedTuple):
    """A process that runs: a zombie does not. An id may be given again, so `birth` belongs to it."""

    pid: int
    parent: int
    group: int
    birth: str  # when it was started, in the system's own words


class ProcessTree:
    """The group of a process that leads its own, and in other groups the leader's descendants and whoever
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
        """True while a process of it runs."""
        try:
            os.killpg(self.leader, 0)
        except (ProcessLookupError, PermissionError):  # macOS refuses where only zombies are left
            return bool(self._living_strays())
        return bool(self.living())

    def living(self) -> set[int]:
        """The ids of its processes that run."""
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
    """As it was when the process's program was started; empty where it may not be read."""
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


def stat_fields(pid: int) -> list[str]:
    """What proc(5) says of a process from field 3 on, its state; empty for one that only waits to be reaped.
    Raises OSError where there is none."""
    text = (_PROC / str(pid) / "stat").read_text(errors="replace")
    fields = text.rpartition(")")[2].split()  # before it is its name, which may itself hold anything
    return [] if fields[0] in "ZX" else fields


def ps(columns: str) -> list[str]:
    """A row for each process. Where there is no /proc (macOS), there is nothing else."""
    command = ["ps", "-A", "-ww", "-o", columns]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.splitlines()


def _processes() -> Iterator[_Process]:
    return _from_proc() if _HAS_PROC else _from_ps()


def _from_proc() -> Iterator[_Process]:
    for path in _PROC.iterdir():
        if path.name.isdecimal():
            with contextlib.suppress(OSError):  # it has just ended
                if fields := stat_fields(int(path.name)):
                    yield _Process(int(path.name), int(fields[1]), int(fields[2]), fields[19])


def _from_ps() -> Iterator[_Process]:
    for row in ps("pid=,ppid=,pgid=,state=,lstart="):
        pid, parent, group, state, birth = row.split(maxsplit=4)
        if not state.startswith("Z"):
            yield _Process(int(pid), int(parent), int(group), birth)


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
