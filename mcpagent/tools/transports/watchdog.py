"""The one child process that ends our servers when we are killed; see `process_trees`."""

from __future__ import annotations

import functools
import os
import subprocess
import sys
import threading
from collections.abc import Callable

from mcpagent.tools.transports import process_trees


class Watchdog:
    """Runs while it has something to watch. Every thread may use it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._groups: dict[int, str] = {}  # and the mark of each
        self._process: subprocess.Popen[bytes] | None = None

    def watch(self, start: Callable[[], subprocess.Popen[bytes]], *, mark: str) -> subprocess.Popen[bytes]:
        """Start a process that leads its own group, which ends with us unless `forget` comes first. It has
        `mark` in its environment.

        The watchdog is up first, so that the moment in which nobody knows of the new process is short.
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
                [sys.executable, "-I", "-S", process_trees.__file__, str(os.getpid())],
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
        except BrokenPipeError:  # somebody killed it: a new one is told everything
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
    """The watchdog of this process; a process that was forked from it gets one of its own."""
    return _watchdog_of(os.getpid())
