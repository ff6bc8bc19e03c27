"""The sandboxes by name, without what it takes to build one."""

from __future__ import annotations

from enum import StrEnum


class SandboxKind(StrEnum):
    """Where the python server runs code."""

    AUTO = "auto"  # the first of the others that works on this machine
    BUBBLEWRAP = "bubblewrap"  # bwrap(1), Linux
    NAMESPACES = "namespaces"  # the same from the standard library, Linux
    MONTY = "monty"  # a subset of Python, anywhere
