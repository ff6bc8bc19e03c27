"""A byte stream cut into lines, in linear time and bounded memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from mcpagent.tools.jsonrpc import HEAD_BYTES, TAIL_BYTES


@dataclass(frozen=True)
class OversizeLine:
    """The two ends of a line that was dropped while it streamed by."""

    head: bytes
    tail: bytes
    size: int  # bytes


class LineSplitter:
    """Cuts what is fed at newlines; a line longer than `max_bytes` keeps its two ends only."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._parts: list[bytes] = []
        self._size = 0
        self._head: bytes | None = None  # set while an oversize line streams by

    def feed(self, data: bytes) -> Iterator[bytes | OversizeLine]:
        """The lines that `data` completes, without their newlines."""
        start = 0
        while (end := data.find(b"\n", start)) >= 0:
            self._add(data[start:end])
            yield self._take()
            start = end + 1
        if start < len(data):
            self._add(data[start:])

    def _add(self, part: bytes) -> None:
        self._size += len(part)
        self._parts.append(part)
        if self._size > self._max_bytes:
            joined = b"".join(self._parts)
            if self._head is None:
                self._head = joined[:HEAD_BYTES]
            self._parts = [joined[-TAIL_BYTES:]]

    def _take(self) -> bytes | OversizeLine:
        text, size, head = b"".join(self._parts), self._size, self._head
        self._parts, self._size, self._head = [], 0, None
        return text if head is None else OversizeLine(head=head, tail=text, size=size)
