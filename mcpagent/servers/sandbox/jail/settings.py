"""What the parent tells the child, and Python values as JSON values."""

from __future__ import annotations

import math


# Plain classes: importing `dataclasses` would double the cost of a call.
class JailView:
    """The files that the code sees: `read_only` and `devices` are paths of the host, `links` symbolic links
    by path. It may write below `scratch` only, up to `scratch_bytes`."""

    def __init__(
        self,
        *,
        read_only: list[str],
        devices: list[str],
        links: dict[str, str],
        scratch: str,
        scratch_bytes: int,
    ) -> None:
        self.read_only = read_only
        self.devices = devices
        self.links = links
        self.scratch = scratch
        self.scratch_bytes = scratch_bytes


class JailSettings:
    """What the child confines itself to. With `build_root` it makes the view and its namespaces itself, as a
    child of process `parent`; without, it was started inside (by bubblewrap), with the host's /proc open as
    descriptor `proc`. `syscall_filter` is an array of `struct sock_filter`."""

    def __init__(
        self,
        *,
        build_root: bool,
        parent: int,
        view: JailView,
        memory_bytes: int,
        cpu_s: int,
        report_bytes: int,
        syscall_filter: bytes,
        proc: int | None = None,
    ) -> None:
        self.build_root = build_root
        self.parent = parent
        self.view = view
        self.memory_bytes = memory_bytes
        self.cpu_s = cpu_s
        self.report_bytes = report_bytes
        self.syscall_filter = syscall_filter
        self.proc = proc


TYPE_CHECKING = False  # importing typing would add a third to the cost of a call
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

_MAX_DEPTH = 20
_INT64 = range(-(2**63), 2**63)


def jsonable(value: Any, *, clean: Callable[[str], str] = str, depth: int = 0) -> Any:
    """`value` as JSON with the same meaning where there is one, else its `repr` as text: an object, a number
    that is not a JSON number or needs more than 64 bits, what is nested more than 20 deep. Sets and tuples
    become lists. Every text goes through `clean`. Raises whatever a `repr` of the value raises."""
    kind = type(value)
    if value is None or kind is bool or (kind is int and value in _INT64):
        return value
    if kind is float and math.isfinite(value):
        return value
    if kind is str:
        return clean(value)
    if depth < _MAX_DEPTH:
        if kind in (list, tuple, set, frozenset):
            return [jsonable(item, clean=clean, depth=depth + 1) for item in value]
        if kind is dict:
            return {
                clean(key if type(key) is str else repr(key)): jsonable(item, clean=clean, depth=depth + 1)
                for key, item in value.items()
            }
    return clean(repr(value))
