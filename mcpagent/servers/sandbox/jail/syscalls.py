"""Linux system calls that the standard library does not offer. Each raises OSError as `os` would."""

from __future__ import annotations

import ctypes
import os

_libc = ctypes.CDLL(None, use_errno=True)

# The numbers are the same on every architecture since Linux 5.1.
_OPEN_TREE, _MOVE_MOUNT, _MOUNT_SETATTR = 428, 429, 442

_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS = 1, 4, 22, 38
_SECCOMP_MODE_FILTER = 2
_AT_FDCWD = -100
_AT_EMPTY_PATH, _AT_RECURSIVE = 0x1000, 0x8000
_OPEN_TREE_CLONE, _OPEN_TREE_CLOEXEC = 1, os.O_CLOEXEC
_MOVE_MOUNT_F_EMPTY_PATH = 4
_MNT_DETACH = 2
_CAPABILITY_VERSION = 0x20080522


def syscall(name: str, number: int, *arguments: int | bytes | None) -> int:
    """The system call `number`; `name` is for the error."""
    return _checked(name, _libc.syscall(ctypes.c_long(number), *(_argument(value) for value in arguments)))


def prctl(option: int, value: int, pointer: ctypes.c_void_p | None = None) -> None:
    """Set an attribute of this process, prctl(2). Raises OSError."""
    _checked(f"prctl {option}", _libc.prctl(option, ctypes.c_ulong(value), pointer, None, None))


def die_with_parent(signal: int) -> None:
    """Get `signal` when the thread that forked this process ends. A forked child has to ask again."""
    prctl(_PR_SET_PDEATHSIG, signal)


def forbid_new_privileges() -> None:
    """Let no program that is executed from here on gain privileges."""
    prctl(_PR_SET_NO_NEW_PRIVS, 1)


def forbid_inspection() -> None:
    """No core dumps, and no other process of this user may trace this one."""
    prctl(_PR_SET_DUMPABLE, 0)


def filter_syscalls(program: bytes) -> None:
    """Put this thread and what it starts under a seccomp filter: `program` is an array of `sock_filter`."""

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_char_p))

    fprog = Program(len(program) // 8, program)
    prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.cast(ctypes.byref(fprog), ctypes.c_void_p))


def unshare(flags: int) -> None:
    """Move this process into new namespaces, unshare(2). Raises OSError."""
    _checked("unshare", _libc.unshare(flags))


def mount(source: str, target: str, kind: str, flags: int, options: str = "") -> None:
    """Mount `source` at `target`, mount(2). Raises OSError."""
    arguments = (source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), options.encode())
    _checked(f"mount {target}", _libc.mount(*arguments))


def clone_tree(path: str, *, attributes: int) -> int:
    """A detached copy of what is mounted at `path` and below, with more mount attributes; a descriptor."""
    flags = _OPEN_TREE_CLONE | _OPEN_TREE_CLOEXEC | _AT_RECURSIVE
    tree = syscall(f"open_tree {path}", _OPEN_TREE, _AT_FDCWD, path.encode(), flags)
    # struct mount_attr: attr_set, attr_clr, propagation, userns_fd
    attr = attributes.to_bytes(8, "little") + bytes(24)
    where = _AT_EMPTY_PATH | _AT_RECURSIVE
    syscall(f"mount_setattr {path}", _MOUNT_SETATTR, tree, b"", where, attr, len(attr))
    return tree


def attach_tree(tree: int, target: str) -> None:
    """Mount what `clone_tree` returned at `target`."""
    flags = _MOVE_MOUNT_F_EMPTY_PATH
    syscall(f"move_mount {target}", _MOVE_MOUNT, tree, b"", _AT_FDCWD, target.encode(), flags)


def change_root(path: str) -> None:
    """Make `path`, a mount point, the root, and let go of the old one: pivot_root(2), "." twice."""
    os.chdir(path)
    _checked("pivot_root", _libc.pivot_root(b".", b"."))
    _checked("umount2", _libc.umount2(b".", _MNT_DETACH))
    os.chdir("/")


def set_hostname(name: str) -> None:
    """Set the host name of this UTS namespace. Raises OSError."""
    _checked("sethostname", _libc.sethostname(name.encode(), len(name)))


def drop_capabilities() -> None:
    """Give up every capability in this user namespace, for good: nothing is executed later."""
    header = _CAPABILITY_VERSION.to_bytes(4, "little") + bytes(4)
    _checked("capset", _libc.capset(header, bytes(24)))


def _argument(value: int | bytes | None) -> ctypes.c_long | ctypes.c_char_p:
    return ctypes.c_long(value) if isinstance(value, int) else ctypes.c_char_p(value)


def _checked(name: str, result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{name}: {os.strerror(code)}")
    return result
