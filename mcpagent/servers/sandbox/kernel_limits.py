"""What the kernel holds the code to from outside: a cgroup for each call, and the system calls that it has.

A cgroup, where this process may make one, bounds what no limit of a process counts and the kernel keeps for
the code: page tables, threads, buffers, caches of names. cgroups(7), seccomp(2).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import itertools
import os
import platform
import socket
import termios
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import NamedTuple

from mcpagent.servers.sandbox.contract import SandboxLimits, SandboxUnavailable

_ROOT = Path("/sys/fs/cgroup")
_PREFIX = "mcpagent-"
_PROCESSES_MAX = 64  # threads included, and the processes of the sandbox itself
_KERNEL_BYTES = 64 * 2**20  # beside the code's memory and files; the sandbox's own processes included
_STALE_S = 60.0
_REMOVE_S = 1.0
_ENTER = 'for group in {}; do echo $$ > "$group/cgroup.procs" || exit 1; done; exec "$@"'
_numbers = itertools.count()


class _Place(NamedTuple):
    """A directory in which groups can be made, and what to write into a group's files."""

    parent: Path
    settings: Mapping[str, str]


@contextmanager
def in_cgroup(command: tuple[str, ...], limits: SandboxLimits) -> Iterator[tuple[str, ...]]:
    """The command that runs `command` in a group of its own, which is removed afterwards; `command` itself
    where there is none to be had."""
    groups: list[Path] = []
    try:
        for place in _places(limits, os.getpid()):
            group = place.parent / f"{_PREFIX}{os.getpid()}-{next(_numbers)}"
            group.mkdir()
            groups.append(group)
            for name, value in place.settings.items():
                (group / name).write_text(value)
        yield (
            ("/bin/sh", "-c", _ENTER.format(" ".join(map(str, groups))), "sh", *command)
            if groups
            else command
        )
    finally:
        for group in groups:
            _remove(group)


@cache
def _places(limits: SandboxLimits, _process: int) -> tuple[_Place, ...]:
    """Where groups can be made, tried once for each process."""
    memory = limits.memory_bytes + limits.scratch_bytes + _KERNEL_BYTES
    for places in (_unified(memory), _by_controller(memory)):
        if places and all(_works(place) for place in places):
            return places
    return ()


def _unified(memory: int) -> tuple[_Place, ...]:
    """The place in cgroup v2: beside our own group, which has processes and so no limited groups below it."""
    path = _own_groups().get("")
    if path is None or not (_ROOT / "cgroup.controllers").exists():
        return ()
    group = _ROOT / path.lstrip("/")
    settings = {"memory.max": str(memory), "memory.swap.max": "0", "pids.max": str(_PROCESSES_MAX)}
    for parent in dict.fromkeys((group if group == _ROOT else group.parent, group)):
        with contextlib.suppress(OSError):
            if {"memory", "pids"} <= set((parent / "cgroup.subtree_control").read_text().split()):
                return (_Place(parent, settings),)
    return ()


def _by_controller(memory: int) -> tuple[_Place, ...]:
    """The places in cgroup v1, where each controller has a hierarchy of its own."""
    groups = _own_groups()
    settings = {
        "memory": {"memory.limit_in_bytes": str(memory)},
        "pids": {"pids.max": str(_PROCESSES_MAX)},
    }
    return tuple(
        _Place(_ROOT / name / groups[name].lstrip("/"), values)
        for name, values in settings.items()
        if name in groups
    )


def _own_groups() -> dict[str, str]:
    """Our own group by controller; that of cgroup v2 under an empty name."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return {}
    rows = (line.split(":", 2) for line in lines)
    return {name: path for _, names, path in rows for name in names.split(",")}


def _works(place: _Place) -> bool:
    """True where a group can be made and given its limits, and a process can enter it. Removes what killed
    processes left behind."""
    for stale in place.parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):
            owner = stale.name.removeprefix(_PREFIX).partition("-")[0]
            if not Path("/proc", owner).exists() and time.time() - stale.stat().st_mtime > _STALE_S:
                stale.rmdir()
    group = place.parent / f"{_PREFIX}{os.getpid()}-probe"
    try:
        group.mkdir()
        for name, value in place.settings.items():
            (group / name).write_text(value)
        child = os.posix_spawn(
            "/bin/sh", ["sh", "-c", _ENTER.format(group), "sh", "true"], {"PATH": os.defpath}
        )
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    except OSError:
        return False
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Killed processes leave it a moment after they are reaped."""
    deadline_s = time.monotonic() + _REMOVE_S
    while time.monotonic() < deadline_s:
        try:
            group.rmdir()
        except FileNotFoundError:
            return
        except OSError:
            time.sleep(0.002)
        else:
            return


# Only what a Python that computes needs is allowed. Whatever is not named is refused, also the calls of
# kernels to come: other processes and sessions, the network, mounts and namespaces, io_uring, and all that
# the kernel would keep for the code beyond its limits (extended attributes, memory files, message queues,
# keys, watches, timers, asynchronous input and output).
_LIBRARY = "libseccomp.so.2"

_ALLOWED = """
access chdir chmod chown close close_range copy_file_range creat dup dup2 dup3 faccessat faccessat2
fadvise64 fallocate fchdir fchmod fchmodat fchmodat2 fchown fchownat fstat fstatfs ftruncate futimesat
getcwd getdents getdents64 lchown link linkat lseek lstat mkdir mkdirat newfstatat open openat openat2
pread64 preadv preadv2 pwrite64 pwritev pwritev2 read readlink readlinkat readv rename renameat renameat2
rmdir sendfile stat statfs statx symlink symlinkat truncate umask unlink unlinkat utime utimensat utimes
write writev
epoll_create epoll_create1 epoll_ctl epoll_pwait epoll_pwait2 epoll_wait pipe pipe2 poll ppoll pselect6
select
getpeername getsockname getsockopt recvfrom shutdown
brk madvise mprotect mremap munmap
alarm clock_getres clock_gettime clock_nanosleep getitimer gettimeofday nanosleep setitimer time times
exit exit_group futex get_robust_list gettid restart_syscall rseq sched_yield set_robust_list
set_tid_address
getcpu getegid geteuid getgid getgroups getpgid getpgrp getpid getppid getpriority getrandom getresgid
getresuid getrlimit getrusage getsid getuid sched_get_priority_max sched_get_priority_min
sched_getaffinity sched_getparam sched_getscheduler setrlimit sysinfo uname
kill pause rt_sigaction rt_sigpending rt_sigprocmask rt_sigreturn rt_sigsuspend rt_sigtimedwait
sigaltstack tgkill tkill wait4 waitid
"""
# The standard library goes on where these say that there is no such thing.
_ABSENT = {
    errno.ENOSYS: ["clone3"],  # takes its flags by pointer, which no filter can read: glibc then calls clone
    errno.EOPNOTSUPP: [
        f"{prefix}{verb}xattr" for prefix in ("", "l", "f") for verb in ("get", "set", "list", "remove")
    ],
}
# There is nothing to write to a disk: what the code may change is in memory. On a file of the host each would
# make the host's disk work.
_WITHOUT_EFFECT = ("fsync", "fdatasync", "msync")

_CLONE_THREAD = 0x10000
_CLONE_NEW = 0x7E020000 | 0x80  # every CLONE_NEW*: a thread may not have namespaces of its own either
_MAP_HUGETLB = 0x40000  # pages of a pool that is the whole machine's
_PR_SET_NAME, _PR_GET_NAME = 15, 16
_SOCK_TYPE_MASK = 0xF
_FCNTL = (
    fcntl.F_DUPFD,
    fcntl.F_DUPFD_CLOEXEC,
    fcntl.F_GETFD,
    fcntl.F_SETFD,
    fcntl.F_GETFL,
    fcntl.F_SETFL,
    fcntl.F_GETLK,
)
_IOCTL = (termios.TCGETS, termios.TIOCGWINSZ, termios.FIONBIO, termios.FIONREAD, termios.FIOCLEX)

# seccomp.h of libseccomp
_ACT_ALLOW, _ACT_ERRNO, _ACT_KILL_PROCESS = 0x7FFF0000, 0x00050000, 0x80000000
_ATTR_BADARCH, _ATTR_OPTIMIZE = 2, 8
_BY_BINARY_SEARCH = 2
_EQUAL, _MASKED_EQUAL = 4, 7
_UNKNOWN = -1


class _Test(ctypes.Structure):
    """struct scmp_arg_cmp: an argument is equal to `first`, or under the mask `first` to `second`."""

    _fields_ = (
        ("argument", ctypes.c_uint),
        ("operator", ctypes.c_int),
        ("first", ctypes.c_uint64),
        ("second", ctypes.c_uint64),
    )


class _Rule(NamedTuple):
    call: str
    action: int
    tests: tuple[_Test, ...] = ()


@cache
def syscall_filter() -> bytes:
    """The filter for this machine, an array of `struct sock_filter`.

    Raises SandboxUnavailable where there is no libseccomp, or none for this machine.
    """
    if platform.machine().startswith("s390"):
        raise SandboxUnavailable("on s390 the arguments of clone(2) have another order")
    library = _library()
    with _context(library) as context:
        _checked(library.seccomp_attr_set(context, _ATTR_BADARCH, _ACT_KILL_PROCESS))
        library.seccomp_attr_set(context, _ATTR_OPTIMIZE, _BY_BINARY_SEARCH)  # libseccomp before 2.5 has none
        for rule in _rules():
            number = library.seccomp_syscall_resolve_name(rule.call.encode())
            if number != _UNKNOWN:  # this libseccomp is older than the call, which then stays refused
                tests = (_Test * len(rule.tests))(*rule.tests)
                _checked(library.seccomp_rule_add_array(context, rule.action, number, len(rule.tests), tests))
        with os.fdopen(os.memfd_create("filter"), "rb") as file:
            _checked(library.seccomp_export_bpf(context, file.fileno()))
            file.seek(0)
            return file.read()


def _rules() -> Iterator[_Rule]:
    for call in _ALLOWED.split():
        yield _Rule(call, _ACT_ALLOW)
    for code, calls in _ABSENT.items():
        for call in calls:
            yield _Rule(call, _ACT_ERRNO | code)
    for call in _WITHOUT_EFFECT:
        yield _Rule(call, _ACT_ERRNO | 0)
    # Threads, but no processes: so limits of one process are limits of the whole.
    yield _allow_if("clone", _masked(0, _CLONE_THREAD | _CLONE_NEW, _CLONE_THREAD))
    yield _allow_if("mmap", _masked(3, _MAP_HUGETLB, 0))
    for option in (_PR_SET_NAME, _PR_GET_NAME):
        yield _allow_if("prctl", _equal(0, option))
    yield _allow_if("prlimit64", _equal(0, 0))
    yield _allow_if("setpriority", _equal(0, os.PRIO_PROCESS), _equal(1, 0))
    # A connected pair, as asyncio wakes itself with; a datagram socket could still send to an address.
    # Without setsockopt its buffers keep the default size, without sendmsg no descriptor waits in one.
    yield _allow_if(
        "socketpair", _equal(0, socket.AF_UNIX), _masked(1, _SOCK_TYPE_MASK, int(socket.SOCK_STREAM))
    )
    yield _allow_if("sendto", _equal(4, 0))
    for command in _FCNTL:
        yield _allow_if("fcntl", _equal(1, command))
    # Granted without being taken: of its own files nobody else knows, those of the host it may not lock.
    # sqlite would not work without.
    for command in (fcntl.F_SETLK, fcntl.F_SETLKW):
        yield _Rule("fcntl", _ACT_ERRNO | 0, (_equal(1, command),))
    for command in _IOCTL:
        yield _allow_if("ioctl", _equal(1, command))


def _allow_if(call: str, *tests: _Test) -> _Rule:
    return _Rule(call, _ACT_ALLOW, tests)


def _equal(argument: int, value: int) -> _Test:
    return _Test(argument, _EQUAL, value, 0)


def _masked(argument: int, mask: int, value: int) -> _Test:
    return _Test(argument, _MASKED_EQUAL, mask, value)


def _library() -> ctypes.CDLL:
    try:
        library = ctypes.CDLL(_LIBRARY)
    except OSError as error:
        text = "libseccomp is not installed (apt install libseccomp2, dnf install libseccomp)"
        raise SandboxUnavailable(text) from error
    pointer, number = ctypes.c_void_p, ctypes.c_uint32
    library.seccomp_init.argtypes, library.seccomp_init.restype = (number,), pointer
    library.seccomp_release.argtypes = (pointer,)
    library.seccomp_release.restype = None
    library.seccomp_attr_set.argtypes = (pointer, ctypes.c_int, number)
    library.seccomp_syscall_resolve_name.argtypes = (ctypes.c_char_p,)
    library.seccomp_rule_add_array.argtypes = (pointer, number, ctypes.c_int, ctypes.c_uint, pointer)
    library.seccomp_export_bpf.argtypes = (pointer, ctypes.c_int)
    return library


@contextmanager
def _context(library: ctypes.CDLL) -> Iterator[int]:
    context = library.seccomp_init(_ACT_ERRNO | errno.EPERM)
    if context is None:
        raise SandboxUnavailable(f"libseccomp does not know {platform.machine()}")
    try:
        yield context
    finally:
        library.seccomp_release(context)


def _checked(result: int) -> None:
    if result < 0:
        raise SandboxUnavailable(f"libseccomp: {os.strerror(-result)}")
