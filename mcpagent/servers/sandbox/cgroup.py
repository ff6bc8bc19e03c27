"""A cgroup for each call, where this process may make one: a bound on what no limit of a process counts.

That is what the kernel keeps for the code: page tables, threads, buffers, caches of names. cgroups(7).
"""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mcpagent.servers.sandbox.contract import SandboxLimits

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "mcpagent-"
_PROCESSES_MAX = 64  # threads included, and the processes of the sandbox itself
_KERNEL_BYTES = 64 * 2**20  # beside the code's memory and files; the sandbox's own processes included
_STALE_S = 60.0
_REMOVE_S = 1.0
_ENTER = 'for group in {}; do echo $$ > "$group/cgroup.procs" || exit 1; done; exec "$@"'
_numbers = itertools.count()


class _Place(NamedTuple):
    """A directory in which groups can be made, and what to write into a group's files."""

    parent: Path
    settings: Mapping[str, str]


@contextmanager
def in_cgroup(command: tuple[str, ...], limits: SandboxLimits) -> Iterator[tuple[str, ...]]:
    """The command that runs `command` in a group of its own, which is removed afterwards; `command` itself
    where there is none to be had."""
    groups: list[Path] = []
    try:
        for place in _places(limits, os.getpid()):
            group = place.parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
            group.mkdir()
            groups.append(group)
            for name, value in place.settings.items():
                (group / name).write_text(value)
        yield (
            ("/bin/sh", "-c", _ENTER.format(" ".join(map(str, groups))), "sh", *command)
            if groups
            else command
        )
    finally:
        for group in groups:
            _remove(group)


@cache
def _places(limits: SandboxLimits, _process: int) -> tuple[_Place, ...]:
    """Where groups can be made, tried once for each process."""
    memory = limits.memory_bytes + limits.scratch_bytes + _KERNEL_BYTES
    for places in (_unified(memory), _by_controller(memory)):
        if places and all(_works(place) for place in places):
            return places
    return ()


def _unified(memory: int) -> tuple[_Place, ...]:
    """The place in cgroup v2: beside our own group, which has processes and so no limited groups below it."""
    path = _own_groups().get("")
    if path is None or not (_ROOT / "cgroup.controllers").exists():
        return ()
    group = _ROOT / path.lstrip("/")
    settings = {"memory.max": str(memory), "memory.swap.max": "0", "pids.max": str(_PROCESSES_MAX)}
    for parent in dict.fromkeys((group if group == _ROOT else group.parent, group)):
        with contextlib.suppress(OSError):
            if {"memory", "pids"} <= set((parent / "cgroup.subtree_control").read_text().split()):
                return (_Place(parent, settings),)
    return ()


def _by_controller(memory: int) -> tuple[_Place, ...]:
    """The places in cgroup v1, where each controller has a hierarchy of its own."""
    groups = _own_groups()
    settings = {
        "memory": {"memory.limit_in_bytes": str(memory)},
        "pids": {"pids.max": str(_PROCESSES_MAX)},
    }
    return tuple(
        _Place(_ROOT / name / groups[name].lstrip("/"), values)
        for name, values in settings.items()
        if name in groups
    )


def _own_groups() -> dict[str, str]:
    """Our own group by controller; that of cgroup v2 under an empty name."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split(":", 2) for line in lines)
    return {name: path for _, names, path in rows for name in names.split(",")}


def _works(place: _Place) -> bool:
    """True where a group can be made and given its limits, and a process can enter it. Removes what killed
    processes left behind."""
    for stale in place.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            owner = stale.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path("/proc", owner).exists() and time.time() - stale.stat().st_mtime > _STALE_S:
                stale.rmdir()
    group = place.parent / f"{_PREFIX}{os.getpid()}-probe"
    try:
        group.mkdir()
        for name, value in place.settings.items():
            (group / name).write_text(value)
        child = os.posix_spawn(
            "/bin/sh", ["sh", "-c", _ENTER.format(group), "sh", "true"], {"PATH": os.defpath}
        )
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except OSError:
        return False
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Killed processes leave it a moment after they are reaped."""
    deadline_s = time.monotonic() + _REMOVE_S
    while time.monotonic() < deadline_s:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)
        else:
            return
