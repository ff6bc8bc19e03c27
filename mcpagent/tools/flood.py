"""A bound on what a server sends without being asked, and on the log of what it says beside its messages."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import BinaryIO

# Nothing here uses a notification: no progress, no logs, and tools are listed anew with each connection.
_NOTIFICATION = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"method"\s*:\s*"notifications/[^"\\]*"\s*[,}]'
)

_PER_S = 2_000  # of units, below
_AT_ONCE = 20_000
NOTIFICATION, OTHER = 1, 20  # units for a message: dropped unread, or to be parsed and answered
_UNIT_BYTES = 1024  # and one for each KiB

LOG_BYTES = 4 * 2**20  # of one log; then its middle is cut
_LOG_HEAD_BYTES = _LOG_TAIL_BYTES = 2**20
_LOG_MARK = re.compile(rb"\n\[\.\.\. (\d+) bytes cut \.\.\.\]\n")
_LOG_MARK_BYTES = 64


class Flood(Exception):
    """The server sends more than it may."""


class UnaskedTraffic:
    """What one connection sends beside the answers to its requests. `clock` gives seconds."""

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._left = float(_AT_ONCE)
        self._seen_s = clock()

    def note(self, size: int, units: int = OTHER) -> None:
        """Count a message of `size` bytes. Raises Flood past the rate."""
        now_s = self._clock()
        self._left = min(_AT_ONCE, self._left + (now_s - self._seen_s) * _PER_S)
        self._seen_s = now_s
        self._left -= units + size // _UNIT_BYTES
        if self._left < 0:
            asked = f"{_PER_S:,} messages or {_PER_S * _UNIT_BYTES / 1e6:.0f} MB a second"
            raise Flood(f"it was cut off: it sends more than {asked} that nobody asked for")


def is_notification(data: bytes) -> bool:
    """True for what may be dropped before it is parsed; some notifications are only known afterwards."""
    return _NOTIFICATION.match(data) is not None


def append_to_log(log: BinaryIO, data: bytes) -> None:
    """Write to the end of a log that is open for appending, and keep it below `LOG_BYTES`: its beginning and
    its end stay, with a mark between them that says how much was cut."""
    size = os.fstat(log.fileno()).st_size
    if size + len(data) <= LOG_BYTES:
        os.write(log.fileno(), data)
        return
    with open(log.name, "r+b") as file:  # noqa: PTH123 - a name that is open already
        head = file.read(_LOG_HEAD_BYTES)
        known = _LOG_MARK.match(file.read(_LOG_MARK_BYTES))
        cut_before, mark_bytes = (int(known[1]), known.end()) if known else (0, 0)
        file.seek(max(_LOG_HEAD_BYTES + mark_bytes, size - _LOG_TAIL_BYTES))
        rest = file.read() + data
        tail = rest[-_LOG_TAIL_BYTES:]
        cut = cut_before + size + len(data) - len(head) - mark_bytes - len(tail)
        file.seek(0)
        file.write(head + b"\n[... %d bytes cut ...]\n" % cut + tail)
        file.truncate()
