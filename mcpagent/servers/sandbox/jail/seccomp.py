"""Which system calls the code may not make: a seccomp filter, assembled here.

It has one process and may have threads. What it could reach with a system call is reached by no other way
that it has either (no files but its own, no network, no other processes): this is a layer, not the wall.
"""

from __future__ import annotations

import errno
import os
import struct

# name: number on x86_64, number on aarch64; None where the architecture has no such call
_FORBIDDEN: dict[str, tuple[int | None, int | None]] = {
    # Other processes: none can be started, so limits of one process are limits of the whole.
    "fork": (57, None),
    "vfork": (58, None),
    "execve": (59, 221),
    "execveat": (322, 281),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "kcmp": (312, 272),
    "pidfd_open": (434, 434),
    "pidfd_getfd": (438, 438),
    "pidfd_send_signal": (424, 424),
    # The network, and io_uring, whose requests no filter sees.
    "socket": (41, 198),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    # Memory that counts for no limit of the process.
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    # Mounts and namespaces.
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "acct": (163, 89),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    # The kernel itself.
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "personality": (135, 92),
    "iopl": (172, None),
    "ioperm": (173, None),
    "modify_ldt": (154, None),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
}
_CLONE = (56, 220)
_CLONE3 = 435  # takes its flags by pointer, which no filter can read: glibc then falls back to clone
_SOCKETPAIR = (53, 199)
_CLONE_THREAD = 0x10000
_SOCK_TYPE_MASK, _SOCK_STREAM = 0xF, 1  # a datagram socket could still send to an address

_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}  # column above, AUDIT_ARCH
_X32 = 0x40000000  # the x32 ABI of x86_64: the same calls under other numbers

# struct seccomp_data: nr, arch, instruction pointer, six arguments of 8 bytes (little-endian)
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_ALLOW, _KILL, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000


def program() -> bytes:
    """The filter for this machine. Raises OSError for an architecture whose numbers are not in the table."""
    machine = os.uname().machine
    if machine not in _ARCHITECTURES:
        raise OSError(errno.ENOSYS, f"no system call filter for {machine}")
    column, architecture = _ARCHITECTURES[machine]
    denied = _ERRNO | errno.EPERM
    code = [
        _instruction(_LOAD, _ARCHITECTURE),
        _instruction(_EQUAL, architecture, skip_if_true=1),
        _instruction(_RETURN, _KILL),
        _instruction(_LOAD, _NUMBER),
    ]
    if machine == "x86_64":
        code += [_instruction(_AT_LEAST, _X32, skip_if_false=1), _instruction(_RETURN, _KILL)]
    for numbers in _FORBIDDEN.values():
        if (number := numbers[column]) is not None:
            code += [_instruction(_EQUAL, number, skip_if_false=1), _instruction(_RETURN, denied)]
    code += [_instruction(_EQUAL, _CLONE3, skip_if_false=1), _instruction(_RETURN, _ERRNO | errno.ENOSYS)]
    code += [
        _instruction(_EQUAL, _CLONE[column], skip_if_false=4),
        _instruction(_LOAD, _FIRST_ARGUMENT),
        _instruction(_ANY_BIT, _CLONE_THREAD, skip_if_false=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, denied),
    ]
    code += [
        _instruction(_EQUAL, _SOCKETPAIR[column], skip_if_false=5),
        _instruction(_LOAD, _FIRST_ARGUMENT + 8),
        _instruction(_AND, _SOCK_TYPE_MASK),
        _instruction(_EQUAL, _SOCK_STREAM, skip_if_false=1),
        _instruction(_RETURN, _ALLOW),
        _instruction(_RETURN, denied),
    ]
    return b"".join([*code, _instruction(_RETURN, _ALLOW)])


def _instruction(code: int, value: int, *, skip_if_true: int = 0, skip_if_false: int = 0) -> bytes:
    """struct sock_filter; a jump skips so many instructions."""
    return struct.pack("=HBBI", code, skip_if_true, skip_if_false, value)
