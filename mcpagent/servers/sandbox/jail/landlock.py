"""Landlock: which files this process may touch, whatever it is otherwise allowed. landlock(7)."""

from __future__ import annotations

import errno
import os
import stat
import struct

from mcpagent.servers.sandbox.jail.syscalls import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_RULE_PATH_BENEATH = 1

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _REMOVE_DIR, _REMOVE_FILE = (1 << bit for bit in range(6))
_MAKE_DIR, _MAKE_REG, _REFER, _TRUNCATE = 1 << 7, 1 << 8, 1 << 13, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _READ_FILE | _WRITE_FILE | _TRUNCATE
_CHANGE = _WRITE_FILE | _REMOVE_DIR | _REMOVE_FILE | _MAKE_DIR | _MAKE_REG | _REFER | _TRUNCATE

_ALL_TCP = 0b11  # bind, connect; since ABI 4
_ALL_SCOPES = 0b11  # abstract unix sockets, signals to outside; since ABI 6


def restrict(*, read_only: Iterable[str], writable: Iterable[str]) -> None:
    """Allow these paths (and what is below), nothing else, no TCP, no abstract sockets and no signals to
    outside as far as this kernel's version of Landlock can say so. No symbolic links, devices or sockets can
    be made. Needs no-new-privileges. Raises OSError where the kernel has no Landlock."""
    try:
        abi = syscall("landlock", _CREATE_RULESET, None, 0, _VERSION_FLAG)
    except OSError as error:
        raise OSError(errno.ENOSYS, "this kernel has no Landlock") from error
    handled = (1 << _file_rights(abi)) - 1
    attr = struct.pack("=QQQ", handled, _ALL_TCP if abi >= 4 else 0, _ALL_SCOPES if abi >= 6 else 0)
    size = 24 if abi >= 6 else 16 if abi >= 4 else 8
    ruleset = syscall("landlock_create_ruleset", _CREATE_RULESET, attr, size, 0)
    for path in read_only:
        _allow(ruleset, path, _READ & handled)
    for path in writable:
        _allow(ruleset, path, (_READ | _CHANGE) & handled)
    syscall("landlock_restrict_self", _RESTRICT_SELF, ruleset, 0)
    os.close(ruleset)


def _file_rights(abi: int) -> int:
    """How many rights on files there are; ABI 2 added REFER, 3 TRUNCATE, 5 IOCTL_DEV."""
    return 13 if abi == 1 else 14 if abi == 2 else 15 if abi < 5 else 16


def _allow(ruleset: int, path: str, rights: int) -> None:
    descriptor = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
        rights &= _OF_FILES
    rule = struct.pack("=Qi", rights, descriptor)
    syscall(f"landlock_add_rule {path}", _ADD_RULE, ruleset, _RULE_PATH_BENEATH, rule, 0)
    os.close(descriptor)
