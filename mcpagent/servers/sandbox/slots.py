"""How many calls run at once, in all processes of this user together: locks on files, which the kernel takes
back from a process that was killed."""

from __future__ import annotations

import fcntl
import os
import stat
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

_POLL_S = 0.01


@contextmanager
def slot(count: int, *, is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Hold one of `count` slots, waited for in the order of luck; without one where the call is cancelled."""
    folder = _folder(os.getuid())
    held: int | None = None
    try:
        while held is None and not is_cancelled():
            held = _any_free(folder, count)
            if held is None:
                time.sleep(_POLL_S)
        yield
    finally:
        if held is not None:
            fcntl.flock(held, fcntl.LOCK_UN)  # which closing does not do where a forked process has it too
            os.close(held)


def _any_free(folder: Path, count: int) -> int | None:
    for number in range(count):
        descriptor = os.open(folder / f"slot-{number}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(descriptor)
        else:
            return descriptor
    return None


@cache
def _folder(user: int) -> Path:
    """This user's alone: another could hold every slot. This process's alone where that cannot be had."""
    folder = Path(os.environ.get("XDG_RUNTIME_DIR") or tempfile.gettempdir()) / f"mcpagent-sandbox-{user}"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        found = folder.lstat()
        if stat.S_ISDIR(found.st_mode) and found.st_uid == user and not found.st_mode & 0o077:
            return folder
    except OSError:
        pass
    return Path(tempfile.mkdtemp(prefix="mcpagent-sandbox-"))
