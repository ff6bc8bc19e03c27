"""What the parent tells the child."""

from __future__ import annotations


class JailSettings:
    """`read_only` and `devices` are paths of the host that the code sees, `links` symbolic links by path; it
    may write below `scratch` only. With `build_root` the child makes that view and its namespaces itself, as
    a child of process `parent`; without, it was started inside (by bubblewrap), with the host's /proc open as
    descriptor `proc`. `syscall_filter` is an array of `struct sock_filter`.

    A plain class: importing `dataclasses` would double the cost of a call.
    """

    def __init__(
        self,
        *,
        build_root: bool,
        parent: int,
        read_only: list[str],
        devices: list[str],
        links: dict[str, str],
        scratch: str,
        scratch_bytes: int,
        memory_bytes: int,
        cpu_s: int,
        report_bytes: int,
        syscall_filter: bytes,
        proc: int | None = None,
    ) -> None:
        self.build_root = build_root
        self.parent = parent
        self.read_only = read_only
        self.devices = devices
        self.links = links
        self.scratch = scratch
        self.scratch_bytes = scratch_bytes
        self.memory_bytes = memory_bytes
        self.cpu_s = cpu_s
        self.report_bytes = report_bytes
        self.syscall_filter = syscall_filter
        self.proc = proc
