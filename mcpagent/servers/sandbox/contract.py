"""What a sandbox is to those who use it."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from pydantic import JsonValue


@dataclass(frozen=True, kw_only=True)
class SandboxLimits:
    """The limits of one call. `wall_s` counts from when the code starts, not from when the call is queued."""

    wall_s: float = 10.0
    cpu_s: int = 5
    memory_bytes: int = 256 * 2**20
    scratch_bytes: int = 32 * 2**20
    output_bytes: int = 100_000
    result_bytes: int = 256_000


def _at_once() -> int:
    """Return how many run at once: so few that the memory of all fits into half of the machine's, so many
    that the calls that a pool has in flight end within its deadline of 30 s."""
    limits = SandboxLimits()
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    fitting = memory // 2 // (limits.memory_bytes + limits.scratch_bytes)
    return max(1, min(max(16, 4 * (os.cpu_count() or 1)), fitting))


# Calls of a process that work at the same time, and those that are under way, most of them waiting for
# something; the others wait their turn, which uses up none of their own time.
AT_ONCE = _at_once()
THREADS = 128


@dataclass(frozen=True, kw_only=True)
class SandboxOutcome:
    """The outcome of the code. `error` is None if it ran to its end, else one sentence for the model; `line`
    is the line of the code where that happened. `output` is what was printed, `value` is that of the last
    expression."""

    output: str = ""
    value: JsonValue = None
    error: str | None = None
    line: int | None = None


class Sandbox(Protocol):
    """Runs a model's code. Each call starts afresh: nothing is left of the one before."""

    name: str  # of the backend: bubblewrap or monty
    language: str  # that it runs, for the model: "Python", or the name of a subset of it
    version: str  # of the language

    async def run(self, code: str, names: Mapping[str, JsonValue]) -> SandboxOutcome:
        """Run `code` with `names` defined. Raises `SandboxBroken` if the code did not get to run."""
        ...


class SandboxUnavailable(Exception):
    """The machine cannot isolate in this way; the text says why."""


class SandboxBroken(Exception):
    """A call failed before the code started: not the fault of who wrote it."""


class SandboxKind(StrEnum):
    """The place where the python server runs code."""

    AUTO = "auto"  # the first of the others that works on this machine
    BUBBLEWRAP = "bubblewrap"  # bwrap(1), Linux
    MONTY = "monty"  # a subset of Python, anywhere
