"""One process at a time writes to a folder or a file: locks that the system releases when their process ends.

The lock file says who holds the lock.
"""

from __future__ import annotations

import json
import os
import shlex
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

from mcpagent.core.records import JsonObject
from mcpagent.errors import InUseError, UserError
from mcpagent.storage.packages import now

LOCK_NAME = ".lock"  # inside a folder; next to a file it is .NAME.lock
_WAIT_S = 0.2  # `holder` of another process holds a lock for a moment


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Makes `folder` and keeps other processes from writing to it. What is still empty at the end (nothing
    was written) is removed again. Raises InUseError, and UserError if there can be no such folder.

    A process may lock what it has locked already.
    """
    with _locked(folder / LOCK_NAME, what=folder):
        yield


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file (or a new folder) `path`, whose own folder is made. Raises
    InUseError and UserError."""
    with _locked(path.with_name(f".{path.name}{LOCK_NAME}"), what=path):
        yield


def holder(folder: Path) -> JsonObject | None:
    """Return the process that holds the lock of `folder`: its pid, host, command, and since when; None if
    there is none."""
    lock = folder / LOCK_NAME
    if not lock.exists():
        return None
    try:
        with FileLock(lock, timeout=0, preserve_lock_file=True):
            return None
    except Timeout:
        return read_json_object(lock)
    except OSError:
        return None


def this_process() -> JsonObject:
    """Return what a lock file says of the process that holds it. Options are left out: they may hold
    secrets."""
    words = [word for word in sys.argv[1:3] if not word.startswith("-")]
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": now(),
        "command": shlex.join(["mcpagent", *words]),
    }


@contextmanager
def _locked(lock: Path, *, what: Path) -> Iterator[None]:
    made = _make_folder(lock.parent)
    # One object for a path, which this process may take again, and from any of its threads.
    mutex = FileLock(
        lock.parent.resolve() / lock.name,
        timeout=_WAIT_S,
        thread_local=False,
        is_singleton=True,
        on_acquired=_say_who,
    )
    try:
        try:
            mutex.acquire()
        except Timeout:
            process = read_json_object(lock)
            raise InUseError(
                f"is in use by another process{_described(process)}",
                where=str(what),
                remedy="wait until it has ended or end it, or name another place with --out",
                process=process,
            ) from None
        except OSError as error:
            raise _cannot_write(lock.parent, error) from None
        try:
            yield
        finally:
            if mutex.lock_counter == 1:
                lock.unlink(missing_ok=True)  # a process that waits for it notices, and makes another
            mutex.release()
    finally:
        for folder in made:
            with suppress(OSError):  # it is in use by now
                folder.rmdir()


def _say_who(descriptor: int) -> None:
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, json.dumps(this_process()).encode() + b"\n", 0)


def read_json_object(path: Path) -> JsonObject:
    """Return the JSON object that a process keeps in a file; empty while it is being written, or is not
    there."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return document if isinstance(document, dict) else {}


def _described(process: JsonObject) -> str:
    if not process:
        return ""
    since: Any = process.get("since")
    return f": pid {process.get('pid')} on {process.get('host')} since {since} ({process.get('command')})"


def _make_folder(folder: Path) -> list[Path]:
    """The folders that had to be made, the innermost first. Raises UserError."""
    missing: list[Path] = []
    path = folder
    while not path.exists() and path != path.parent:
        missing.append(path)
        path = path.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _cannot_write(folder, error) from None
    return missing


def _cannot_write(folder: Path, error: OSError) -> UserError:
    blocked = next((path for path in (folder, *folder.parents) if path.exists()), folder)
    why = f"{blocked} is a file, not a folder" if blocked.is_file() else (error.strerror or str(error))
    return UserError(
        f"cannot be written to: {why}", where=str(folder), remedy="name another place with --out"
    )
