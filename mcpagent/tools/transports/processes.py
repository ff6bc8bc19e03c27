"""The processes of a server: which belong to it, what memory and processor time they hold."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from mcpagent.tools.transports.process_trees import ps, stat_fields

MARK_ENV = (
    "MCPAGENT_STARTED_BY"  # a server's processes inherit it, also those that leave its group and session
)

_PROC = Path("/proc")


@dataclass(frozen=True, kw_only=True)
class Process:
    """One process at one moment. `cpu_s` includes the children that it has waited for."""

    pid: int
    parent: int
    rss_bytes: int
    cpu_s: float
    command: str


def marked(mark: str) -> list[Process]:
    """Every living process that was started with `MARK_ENV=mark`.

    Without /proc (macOS) the environment of others cannot be read: there, every descendant of this process.
    """
    if not (_PROC / "self" / "environ").exists():
        return descendants(os.getpid())
    wanted = f"{MARK_ENV}={mark}".encode()
    found = (_from_proc(int(entry.name)) for entry in _PROC.iterdir() if _carries(entry, wanted))
    return [process for process in found if process is not None]


def commands(pids: Iterable[int]) -> list[str]:
    """The command lines of those that still run."""
    if _PROC.exists():
        found = (_from_proc(pid) for pid in sorted(pids))
        return [process.command for process in found if process is not None]
    wanted = set(pids)
    return [process.command for process in _from_ps() if process.pid in wanted]


def descendants(pid: int) -> list[Process]:
    """The children of a process and theirs, as `ps` lists them; not those whose parent has ended."""
    by_parent: dict[int, list[Process]] = {}
    for process in _from_ps():
        by_parent.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    pending = [pid]
    while pending:
        children = by_parent.get(pending.pop(), [])
        found += children
        pending += [child.pid for child in children]
    return found


def readers_of(process: Process, among: Iterable[Process]) -> list[Process]:
    """Those that have the same stdin as a process, itself included: below a wrapper such as `npx` or `uvx`,
    the server. Without /proc: every one of them."""
    try:
        pipe = _stdin(process.pid)
        return [other for other in among if _stdin(other.pid) == pipe]
    except OSError:
        return list(among)


def stop(processes: Iterable[Process]) -> None:
    """SIGSTOP: they are there, and do nothing."""
    _send(signal.SIGSTOP, processes)


def kill(processes: Iterable[Process]) -> None:
    """SIGKILL; one that is gone already is no error."""
    _send(signal.SIGKILL, processes)


def open_files() -> int:
    """How many file descriptors this process has open."""
    folder = _PROC / "self" / "fd" if _PROC.exists() else Path("/dev/fd")
    return len(os.listdir(folder))  # noqa: PTH208 - counts names only; the listing's own descriptor is in each


def _send(number: signal.Signals, processes: Iterable[Process]) -> None:
    for process in processes:
        with suppress(ProcessLookupError):
            os.kill(process.pid, number)


def _stdin(pid: int) -> str:
    return str((_PROC / str(pid) / "fd" / "0").readlink())


def _carries(entry: Path, wanted: bytes) -> bool:
    if not entry.name.isdigit():
        return False
    try:
        return wanted in (entry / "environ").read_bytes().split(b"\0")
    except OSError:  # another user's, or gone by now
        return False


def _from_proc(pid: int) -> Process | None:
    """None for one that is gone or only waits to be reaped."""
    try:
        fields = stat_fields(pid)
        command = (_PROC / str(pid) / "cmdline").read_bytes()
    except OSError:
        return None
    if not fields:
        return None
    # Counted from the state, which is field 3, utime is field 14.
    return Process(
        pid=pid,
        parent=int(fields[1]),
        rss_bytes=int(fields[21]) * os.sysconf("SC_PAGE_SIZE"),
        cpu_s=sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK"),
        command=command.replace(b"\0", b" ").decode("utf-8", "replace").strip(),
    )


def _from_ps() -> list[Process]:
    rows = (row.split(maxsplit=4) for row in ps("pid=,ppid=,rss=,time=,command="))
    return [
        Process(
            pid=int(row[0]),
            parent=int(row[1]),
            rss_bytes=int(row[2]) * 1024,
            cpu_s=_seconds(row[3]),
            command=row[4],
        )
        for row in rows
        if len(row) == 5 and not row[4].startswith("ps -A")
    ]


def _seconds(clock: str) -> float:
    """`[[dd-]hh:]mm:ss[.ff]` as ps prints it."""
    days, _, rest = clock.rpartition("-")
    total = 0.0
    for part in rest.split(":"):
        total = total * 60 + float(part)
    return total + 86400 * int(days or 0)
