"""The child process, from its start to the code's end.

stdin: the request, `marshal` (it comes from the same interpreter); stdout: what the code prints; stderr: the
report. The report starts with READY once the process is locked in: what comes after it, the code may have
written, and what is wrong after it is the code's own fault.
"""

from __future__ import annotations

import marshal
import os
import resource
import sys

from mcpagent.servers.sandbox.jail import landlock, syscalls
from mcpagent.servers.sandbox.jail.execute import execute, give_way_after, stop_at_cpu_limit
from mcpagent.servers.sandbox.jail.root import build_root, enter_namespaces, mount_scratch
from mcpagent.servers.sandbox.jail.settings import JailSettings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

READY = b"ready\n"
_THREADS_MAX = 64
_COUNTED_BY_NAMESPACE = (5, 14)  # Linux; before, the threads of all of the user's processes count
_SHORT_S = 0.25  # CPU time after which a call is no longer a short one


def main() -> NoReturn:
    try:
        request = marshal.loads(sys.stdin.buffer.read())
        settings = JailSettings(**request["settings"])
        report = _lock_in(settings)
    except (OSError, ValueError, EOFError) as error:
        os.write(2, f"{error}\n".encode())
        os._exit(1)
    os.write(report, READY)
    execute(request["code"], names=request["names"], report=report, report_bytes=settings.report_bytes)


def _lock_in(settings: JailSettings) -> int:
    """Give up everything but the scratch directory and Python. Returns the descriptor of the report."""
    if settings.build_root:
        enter_namespaces(settings.parent)
        build_root(settings)
    else:
        mount_scratch(settings)
    syscalls.drop_capabilities()
    _limit_resources(settings)
    syscalls.forbid_inspection()
    syscalls.forbid_new_privileges()
    if settings.build_root:
        writable = [*settings.devices, settings.scratch]
        landlock.restrict(read_only=settings.read_only, writable=writable)
    report = os.dup(2)
    os.dup2(1, 2)
    null = os.open("/dev/null", os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    sys.stdout.reconfigure(encoding="utf-8", errors="replace")  # type: ignore[union-attr]
    sys.stderr = sys.stdout
    os.environ.clear()
    syscalls.filter_syscalls(settings.syscall_filter)
    return report


def _limit_resources(settings: JailSettings) -> None:
    give_way_after(_SHORT_S)
    stop_at_cpu_limit(settings.cpu_s)
    for limit, soft, hard in (
        (resource.RLIMIT_CPU, settings.cpu_s, settings.cpu_s + 1),
        (resource.RLIMIT_AS, settings.memory_bytes, settings.memory_bytes),
        (resource.RLIMIT_FSIZE, settings.scratch_bytes, settings.scratch_bytes),
        (resource.RLIMIT_NOFILE, 64, 64),
        (resource.RLIMIT_CORE, 0, 0),
        (resource.RLIMIT_MEMLOCK, 0, 0),
        (resource.RLIMIT_MSGQUEUE, 0, 0),
        (resource.RLIMIT_SIGPENDING, 64, 64),
    ):
        resource.setrlimit(limit, (soft, hard))
    if tuple(map(int, os.uname().release.split(".")[:2])) >= _COUNTED_BY_NAMESPACE:
        resource.setrlimit(resource.RLIMIT_NPROC, (_THREADS_MAX, _THREADS_MAX))
