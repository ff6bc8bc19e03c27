"""One process at a time writes to a folder or a file: locks that the system releases when their process ends.

The lock is the system's own (`flock`), so that a killed process leaves none behind; the lock file only says
who holds it.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import shlex
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from mcpagent.core.records import JsonObject
from mcpagent.errors import InUseError, UserError

LOCK_NAME = ".lock"  # inside a folder; beside a file it is .NAME.lock
_ATTEMPTS, _BETWEEN_S = 5, 0.04  # `holder` of another process holds a lock for a moment
_NO_LOCKS = {errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP}  # a file system without locks

_held: dict[str, int] = {}  # lock file -> how often this process holds it
_descriptors: set[int] = set()
_guard = threading.Lock()


@contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Makes `folder` and keeps other processes from writing to it. What is still empty at the end (nothing
    was written) is removed again. Raises InUseError, and UserError where there can be no such folder.

    A process may lock what it has locked already.
    """
    made = _make_folder(folder)
    try:
        with _locked(folder / LOCK_NAME, what=folder):
            yield
    finally:
        for path in made:
            with suppress(OSError):  # it is in use by now
                path.rmdir()


@contextmanager
def locked_file(path: Path) -> Iterator[None]:
    """Keeps other processes from writing the file (or a new folder) `path`, whose own folder is made. Raises
    InUseError and UserError."""
    made = _make_folder(path.parent)
    try:
        with _locked(lock_of_file(path), what=path):
            yield
    finally:
        for folder in made:
            with suppress(OSError):
                folder.rmdir()


def lock_of_file(path: Path) -> Path:
    """The lock file of a file."""
    return path.with_name(f".{path.name}{LOCK_NAME}")


def holder(folder: Path) -> JsonObject | None:
    """The process that holds the lock of `folder`: its pid, host, command, and since when; None where there
    is none."""
    try:
        descriptor = os.open(folder / LOCK_NAME, os.O_RDONLY)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return _read(descriptor)
    except OSError:
        return None
    finally:
        os.close(descriptor)
    return None


def this_process() -> JsonObject:
    """What a lock file says of the process that holds it. Options are left out: they may hold secrets."""
    words = [word for word in sys.argv[1:3] if not word.startswith("-")]
    return {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "since": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join(["mcpagent", *words]),
    }


@contextmanager
def _locked(lock: Path, *, what: Path) -> Iterator[None]:
    name = str(lock.parent.resolve() / lock.name)
    with _guard:
        is_ours = name in _held
        _held[name] = _held.get(name, 0) + 1
    try:
        if is_ours:
            yield
            return
        descriptor = _acquire(lock, what=what)
        try:
            yield
        finally:
            lock.unlink(missing_ok=True)  # before the lock is released: see `_acquire`
            _close(descriptor)
    finally:
        with _guard:
            _held[name] -= 1
            if not _held[name]:
                del _held[name]


def _acquire(lock: Path, *, what: Path) -> int:
    process: JsonObject = {}
    for attempt in range(_ATTEMPTS):
        if attempt:
            time.sleep(_BETWEEN_S)
        try:
            descriptor = os.open(lock, os.O_RDWR | os.O_CREAT, 0o644)
        except FileNotFoundError:
            lock.parent.mkdir(parents=True, exist_ok=True)  # removed by the process before this one
            continue
        except OSError as error:
            raise _cannot_write(lock.parent, error) from None
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            process = _read(descriptor)
            os.close(descriptor)
            continue
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                os.close(descriptor)
                raise
        if not _is_current(lock, descriptor):
            os.close(descriptor)  # the process that held it has removed the file meanwhile
            continue
        with _guard:
            _descriptors.add(descriptor)
        try:
            os.ftruncate(descriptor, 0)
            os.pwrite(descriptor, json.dumps(this_process()).encode() + b"\n", 0)
        except OSError as error:
            lock.unlink(missing_ok=True)
            _close(descriptor)
            raise _cannot_write(lock.parent, error) from None
        return descriptor
    raise InUseError(
        f"is in use by another process{_described(process)}",
        where=str(what),
        remedy="wait until it has ended or end it, or name another place with --out",
        process=process,
    )


def _is_current(lock: Path, descriptor: int) -> bool:
    try:
        return os.path.samestat(lock.stat(), os.fstat(descriptor))
    except FileNotFoundError:
        return False


def _close(descriptor: int) -> None:
    with _guard:
        _descriptors.discard(descriptor)
    os.close(descriptor)


def _close_in_child() -> None:
    """A fork shares the locks of its parent; one that outlives it would keep them."""
    for descriptor in _descriptors:
        with suppress(OSError):
            os.close(descriptor)
    _descriptors.clear()
    _held.clear()


os.register_at_fork(after_in_child=_close_in_child)


def _read(descriptor: int) -> JsonObject:
    try:
        document = json.loads(os.pread(descriptor, 1 << 16, 0))
    except ValueError:  # it is being written
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
