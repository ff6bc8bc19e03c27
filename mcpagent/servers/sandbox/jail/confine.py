"""What the child process takes from itself: namespaces and a root directory of its own, and Landlock."""

# ruff: noqa: PTH103, PTH112, PTH120, PTH211 - importing pathlib would add to the cost of a call

from __future__ import annotations

import errno
import os
import select
import signal
import stat
import struct
import sys

from mcpagent.servers.sandbox.jail import syscalls
from mcpagent.servers.sandbox.jail.settings import JailSettings
from mcpagent.servers.sandbox.jail.syscalls import syscall

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import NoReturn

_NEW_NS, _NEW_CGROUP, _NEW_UTS, _NEW_IPC = 0x00020000, 0x02000000, 0x04000000, 0x08000000
_NEW_USER, _NEW_PID, _NEW_NET = 0x10000000, 0x20000000, 0x40000000
_ALL = _NEW_USER | _NEW_NS | _NEW_PID | _NEW_NET | _NEW_IPC | _NEW_UTS | _NEW_CGROUP

_MS_RDONLY, _MS_NOSUID, _MS_NODEV, _MS_NOEXEC, _MS_REMOUNT = 1, 2, 4, 8, 32
_MS_BIND, _MS_REC, _MS_PRIVATE = 4096, 16384, 1 << 18
_ATTR_RDONLY, _ATTR_NOSUID, _ATTR_NODEV, _ATTR_NOEXEC = 1, 2, 4, 8

_FILES_MAX = 4096  # files and directories in the scratch directory
_UID = 1000  # inside; outside it is the user who runs the server
_ROOT_AT = "/tmp"  # any directory that every machine has: mounted over in this mount namespace only


def enter_namespaces(parent: int) -> None:
    """Go on as process 2 of new namespaces, under a process 1 that ends with it, and with which everything
    in the namespaces ends. The old process waits for process 1 and ends as it ends; if the old process is
    killed, process 1 is killed."""
    syscalls.die_with_parent(signal.SIGKILL)
    if os.getppid() != parent:
        sys.exit("the server has gone")
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(_ALL)
    _map_user("/proc/self", uid=uid, gid=gid)
    alive, held = os.pipe()  # its reader sees the end of the old process, whenever that came
    first = os.fork()
    if first:
        os.close(alive)
        _wait_and_end(first)
    os.close(held)
    syscalls.die_with_parent(signal.SIGKILL)
    if select.select([alive], [], [], 0)[0]:
        os._exit(1)
    os.close(alive)
    second = os.fork()
    if second:
        # From inside, no signal without a handler reaches a process 1, SIGKILL and SIGSTOP neither.
        signal.signal(signal.SIGINT, signal.SIG_DFL)
        syscalls.forbid_inspection()
        syscalls.drop_capabilities()
        _wait_and_end(second)
    syscalls.set_hostname("sandbox")


def mount_scratch(settings: JailSettings) -> None:
    """Mount an empty directory at `scratch`, in a mount namespace of its own, and enter it. What bubblewrap
    mounts there has no limit on the number of files."""
    uid, gid = os.getuid(), os.getgid()
    syscalls.unshare(_NEW_USER | _NEW_NS)
    assert settings.proc is not None
    os.fchdir(settings.proc)
    _map_user("self", uid=uid, gid=gid)
    os.close(settings.proc)
    _mount_scratch(settings.view.scratch, settings)
    os.chdir(settings.view.scratch)


def _wait_and_end(child: int) -> NoReturn:
    """Reap what ends, and end as `child` does: 128 and its number for a signal."""
    os.closerange(0, 3)  # so that the pipes end when the child ends
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)


def build_root(settings: JailSettings) -> None:
    """Replace the root directory; the working directory is then an empty one in memory, at `scratch`."""
    syscalls.mount("none", "/", "", _MS_REC | _MS_PRIVATE)
    read_only = _ATTR_RDONLY | _ATTR_NOSUID | _ATTR_NODEV
    trees = {path: syscalls.clone_tree(path, attributes=read_only) for path in settings.view.read_only}
    device = _ATTR_NOSUID | _ATTR_NOEXEC
    trees |= {path: syscalls.clone_tree(path, attributes=device) for path in settings.view.devices}
    syscalls.mount("root", _ROOT_AT, "tmpfs", _MS_NOSUID | _MS_NODEV, "mode=0755,size=1m")
    for path, tree in trees.items():
        _make_place(_ROOT_AT + path, like=path)
        syscalls.attach_tree(tree, _ROOT_AT + path)
        os.close(tree)
    for path, target in settings.view.links.items():
        os.symlink(target, _ROOT_AT + path)
    scratch = _ROOT_AT + settings.view.scratch
    os.makedirs(scratch)
    _mount_scratch(scratch, settings)
    syscalls.change_root(_ROOT_AT)
    syscalls.mount("none", "/", "", _MS_REMOUNT | _MS_BIND | _MS_RDONLY | _MS_NOSUID | _MS_NODEV)
    os.chdir(settings.view.scratch)


def _mount_scratch(path: str, settings: JailSettings) -> None:
    options = f"mode=0700,size={settings.view.scratch_bytes},nr_inodes={_FILES_MAX}"
    syscalls.mount("scratch", path, "tmpfs", _MS_NOSUID | _MS_NODEV, options)


def _map_user(process: str, *, uid: int, gid: int) -> None:
    """The user of the new user namespace; `process` is the folder of this process in /proc."""
    _write(f"{process}/setgroups", "deny")
    _write(f"{process}/uid_map", f"{_UID} {uid} 1")
    _write(f"{process}/gid_map", f"{_UID} {gid} 1")


def _make_place(path: str, *, like: str) -> None:
    """What a mount of `like` can be attached to."""
    if os.path.isdir(like):
        os.makedirs(path, exist_ok=True)
        return
    os.makedirs(os.path.dirname(path), exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o600))


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


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
