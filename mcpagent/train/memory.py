"""Resident memory of this process, as the metrics show it."""

from __future__ import annotations

import ctypes
import ctypes.util
import sys
from collections.abc import Callable
from functools import lru_cache

import psutil


def resident_mib(*, trimmed: bool = False) -> float:
    """MiB that the process holds. `trimmed` first hands back freed pages that glibc's allocator keeps: they
    show the largest batch so far, not what is in use, and hide a leak behind it. Taking pages again costs
    some tens of milliseconds, too much for steps that are themselves that short."""
    if trimmed:
        _trim()(0)
    return psutil.Process().memory_info().rss / 2**20


@lru_cache(maxsize=1)
def _trim() -> Callable[[int], int]:
    """glibc's `malloc_trim`; elsewhere nothing needs to be done."""
    name = ctypes.util.find_library("c") if sys.platform == "linux" else None
    library = ctypes.CDLL(name) if name else None
    return getattr(library, "malloc_trim", lambda _: 0)
