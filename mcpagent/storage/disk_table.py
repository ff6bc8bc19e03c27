"""A table on disk, for what must be remembered of every record of a large dataset."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Sequence
from hashlib import blake2b
from typing import Generic, Self, TypeVar

V = TypeVar("V", int, str)

_CACHE_KIB = 16 << 10
_SIGNED = 1 << 63  # SQLite's integers have a sign, digests have none


def digest(text: str) -> int:
    """64 bits that stand for a text in large tables."""
    return int.from_bytes(blake2b(text.encode("utf-8", "surrogatepass"), digest_size=8).digest(), "big")


class DiskTable(Generic[V]):
    """Values by `digest`, in an unnamed temporary file that is gone when this is closed. However many there
    are, it takes a few megabytes of memory. For the thread that made it."""

    def __init__(self) -> None:
        self._database = sqlite3.connect("", isolation_level=None)
        for setting in (f"cache_size = -{_CACHE_KIB}", "journal_mode = OFF", "synchronous = OFF"):
            self._database.execute(f"PRAGMA {setting}")
        self._database.execute("CREATE TABLE entries (key INTEGER PRIMARY KEY, value NOT NULL)")
        self._database.execute("BEGIN")

    def add(self, key: int, value: V) -> V | None:
        """Give `value` to a key that has none; else the value that it has, and keeps."""
        added = self._database.execute("INSERT OR IGNORE INTO entries VALUES (?, ?)", (key - _SIGNED, value))
        return None if added.rowcount else self.least([key])

    def least(self, keys: Sequence[int]) -> V | None:
        """The smallest value that any of `keys` has; None where none has one."""
        places = ", ".join("?" * len(keys))
        query = f"SELECT min(value) FROM entries WHERE key IN ({places})"
        return self._database.execute(query, [key - _SIGNED for key in keys]).fetchone()[0]

    def count(self, keys: Iterable[int]) -> None:
        """Add one to the value of each key, which is a number and begins with 0."""
        self._database.executemany(
            "INSERT INTO entries VALUES (?, 1) ON CONFLICT (key) DO UPDATE SET value = value + 1",
            ((key - _SIGNED,) for key in keys),
        )

    def above(self, value: float) -> set[int]:
        """The keys with a greater value than `value`."""
        found = self._database.execute("SELECT key FROM entries WHERE value > ?", (value,))
        return {key + _SIGNED for (key,) in found}

    def close(self) -> None:
        self._database.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
