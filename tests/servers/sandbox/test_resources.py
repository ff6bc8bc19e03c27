"""What the kernel would keep for the code, or do for it, outside the limits of a process: refused."""

from __future__ import annotations

import asyncio
import ctypes
import fcntl
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent.servers.sandbox.contract import SandboxKind
from tests.servers.sandbox.boxes import FULL_PYTHON, sandbox_of
from tests.servers.sandbox.test_attacks import CHECK, LIBC

pytestmark = pytest.mark.system


def _number(call: str) -> int:
    """Of a system call on this machine, by libseccomp; negative where there is none."""
    return ctypes.CDLL("libseccomp.so.2").seccomp_syscall_resolve_name(call.encode())


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize(
    "code",
    [
        "import os\nos.setxattr(os.open('f', os.O_CREAT | os.O_RDWR), 'user.a', bytes(60_000))",
        "import os\nopen('f', 'w')\nos.setxattr('f', 'user.a', bytes(60_000))",
        "for n in range(10_000): open(f'{n}', 'w').close()",
        "import os\nfor n in range(10_000): os.mkdir(f'{n}')",
        "import os\nopen('f', 'w')\nfor n in range(10_000): os.link('f', f'{n}')",
        "import socket\na, b = socket.socketpair()\na.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 2**22)",
        "import socket, array\na, b = socket.socketpair()\nfor _ in range(99):\n    a.sendmsg([b'x'], "
        "[(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array('i', [0]))])",
        "import socket\nkept = [socket.socketpair() for _ in range(64)]",
        "import fcntl, os\nfcntl.fcntl(os.pipe()[1], 1031, 2**20)",  # F_SETPIPE_SZ
        "import os\nos.eventfd(0)",
        LIBC + "done = libc.inotify_init1(0)" + CHECK,
        LIBC + "done = libc.inotify_init()" + CHECK,
        LIBC + "done = libc.fanotify_init(0, 0)" + CHECK,
        "import fcntl\nfcntl.flock(open('/usr/bin/env'), fcntl.LOCK_EX)",
        "import fcntl\nfcntl.fcntl(open('/usr/bin/env'), fcntl.F_SETLEASE, fcntl.F_RDLCK)",
        "import fcntl\nfcntl.fcntl(open('/usr/bin'), fcntl.F_NOTIFY, fcntl.DN_ACCESS)",
        "import fcntl\nfcntl.fcntl(open('/usr/bin/env'), 37, bytes(32))",  # F_OFD_SETLK
        LIBC + "timer = ctypes.c_long()\ndone = libc.timer_create(0, None, ctypes.byref(timer))" + CHECK,
        LIBC + "done = libc.timerfd_create(0, 0)" + CHECK,
        LIBC + "done = libc.signalfd(-1, bytes(128), 0)" + CHECK,
        LIBC + "done = libc.sigqueue(0, 34, 0)" + CHECK,
        LIBC + "done = libc.mmap(None, 2**21, 3, 0x40022, -1, 0)" + CHECK,  # MAP_HUGETLB
        LIBC + "done = libc.shmget(0, 2**20, 0o1600)" + CHECK,
        LIBC + "done = libc.semget(0, 100, 0o1600)" + CHECK,
        LIBC + "done = libc.msgget(0, 0o1600)" + CHECK,
        LIBC + "done = libc.mlockall(3)" + CHECK,
        LIBC + "done = libc.prctl(1, 0, 0, 0, 0)" + CHECK,  # PR_SET_PDEATHSIG
        LIBC + "done = libc.prctl(36, 1, 0, 0, 0)" + CHECK,  # PR_SET_CHILD_SUBREAPER
        LIBC + "done = libc.prctl(4, 1, 0, 0, 0)" + CHECK,  # PR_SET_DUMPABLE
        LIBC + "done = libc.prctl(22, 2, 0, 0, 0)" + CHECK,  # PR_SET_SECCOMP
        "import os\nos.setsid()",
        "import os\nos.setpgid(0, 0)",
        "import os\nos.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))",
        "import resource\nresource.prlimit(1, resource.RLIMIT_CPU, (1, 1))",
    ],
)
def test_no_resource_is_had_outside_the_limits(kind: SandboxKind, code: str) -> None:
    outcome = asyncio.run(sandbox_of(kind).run(code, {}))
    assert outcome.error is not None, f"not refused: {outcome.value}"


# By number: neither the C library nor Python knows them all. Each exists on the kernels of this decade.
NAMES = """
fork vfork execve execveat setsid setpgid ptrace process_vm_readv process_vm_writev pidfd_open pidfd_getfd
pidfd_send_signal kcmp socket connect bind listen accept sendmsg sendmmsg recvmmsg setsockopt
io_uring_setup io_uring_enter io_uring_register io_setup io_submit io_getevents memfd_create memfd_secret
shmget shmat shmctl msgget msgsnd semget semop mq_open mq_timedsend mq_notify keyctl add_key request_key
bpf perf_event_open userfaultfd inotify_init inotify_init1 inotify_add_watch fanotify_init fanotify_mark
dnotify flock timer_create timer_settime timerfd_create signalfd signalfd4 eventfd eventfd2
rt_sigqueueinfo rt_tgsigqueueinfo sync syncfs sync_file_range statmount listmount mount umount2 unshare
setns pivot_root chroot open_tree move_mount fsopen fspick mount_setattr name_to_handle_at
open_by_handle_at quotactl quotactl_fd swapon swapoff acct mlock mlock2 mlockall mbind set_mempolicy
migrate_pages move_pages splice tee vmsplice readahead lookup_dcookie process_madvise process_mrelease
seccomp landlock_create_ruleset landlock_add_rule landlock_restrict_self personality modify_ldt iopl
ioperm reboot syslog sethostname setdomainname setuid setgid setgroups setresuid capset prctl
sched_setscheduler sched_setattr sched_setaffinity ioprio_set init_module finit_module delete_module
kexec_load kexec_file_load clock_settime settimeofday adjtimex clock_adjtime mknod mknodat
remap_file_pages membarrier vhangup
"""


@pytest.mark.parametrize("kind", FULL_PYTHON)
def test_the_kernels_other_calls_are_refused_by_both_sandboxes(kind: SandboxKind) -> None:
    """With arguments for which an allowed call would say something else than EPERM."""
    numbers = {name: _number(name) for name in NAMES.split()}
    known = {name: number for name, number in numbers.items() if number >= 0}
    assert len(known) > 100
    code = (
        LIBC
        + f"answers = {{}}\nfor name, number in {known}.items():\n"
        + "    done = libc.syscall(ctypes.c_long(number), *[ctypes.c_long(-1)] * 6)\n"
        + "    answers[name] = ctypes.get_errno() if done == -1 else 0\n"
        + "[name for name, code in answers.items() if code != 1]"
    )
    done = asyncio.run(sandbox_of(kind).run(code, {}))
    assert (done.error, done.value) == (None, [])


@pytest.mark.parametrize("kind", FULL_PYTHON)
def test_calls_that_no_list_can_know_are_refused(kind: SandboxKind) -> None:
    """Those of kernels to come, and the ABI of x32."""
    code = LIBC + "[libc.syscall(ctypes.c_long(n), 0, 0, 0) for n in range(453, 700)].count(-1)"
    assert asyncio.run(sandbox_of(kind).run(code, {})).value == 247
    x32 = LIBC + "libc.syscall(ctypes.c_long(0x40000000 + 39))"  # getpid
    done = asyncio.run(sandbox_of(kind).run(x32 + "\n'alive'", {}))
    assert os.uname().machine != "x86_64" or done.value != "alive"


@pytest.mark.parametrize("kind", FULL_PYTHON)
def test_a_file_of_the_host_is_not_locked(kind: SandboxKind) -> None:
    """What is granted there, so that sqlite works, is no lock."""
    path = os.path.realpath(os.__file__)
    code = f"import fcntl, time\nf = open({path!r})\nfcntl.lockf(f, fcntl.LOCK_SH)\ntime.sleep(0.5)\n'held'"

    async def main() -> None:
        call = asyncio.create_task(sandbox_of(kind).run(code, {}))
        with Path(path).open("rb") as file:
            while not call.done():
                # struct flock: type and whence, each of 2 bytes. F_GETLK puts the lock in, that a write lock
                # of ours would have to wait for, or F_UNLCK.
                asked = fcntl.fcntl(file, fcntl.F_GETLK, fcntl.F_WRLCK.to_bytes(2, sys.byteorder) + bytes(30))
                assert asked[:2] == fcntl.F_UNLCK.to_bytes(2, sys.byteorder)
                await asyncio.sleep(0.01)
        assert (await call).value == "held"

    asyncio.run(main())


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize(
    ("code", "result"),
    [
        (
            "import sqlite3\nbase = sqlite3.connect('d')\nbase.execute('create table t (a)')\n"
            "base.execute('insert into t values (1)')\nbase.commit()\nbase.close()\n"
            "sqlite3.connect('d').execute('select a from t').fetchone()",
            [1],
        ),
        ("import shutil\nopen('a', 'w').write('x')\nshutil.copy2('a', 'b')\nopen('b').read()", "x"),
        ("import os\nos.makedirs('a/b')\nimport shutil\nshutil.copytree('a', 'c')\nos.listdir('c')", ["b"]),
        ("import shutil, os\nshutil.rmtree('.', True)\nos.getcwd()", "/work"),
        ("import tempfile\nwith tempfile.NamedTemporaryFile() as f: f.write(b'a')\n'closed'", "closed"),
        ("import os\nf = open('f', 'w')\nf.write('x')\nf.flush()\nos.fsync(f.fileno())", None),
        ("import mmap\nm = mmap.mmap(-1, 4096)\nm[:2] = b'ab'\nm[:2].decode()", "ab"),
        (
            "import zipfile\nzipfile.ZipFile('z', 'w').writestr('a', 'b')\nzipfile.ZipFile('z').namelist()",
            ["a"],
        ),
        (
            "import queue, threading\nq = queue.Queue()\nthreading.Thread(target=q.put, args=(1,)).start()\n"
            "q.get()",
            1,
        ),
        ("import asyncio\nasync def f():\n    return await asyncio.to_thread(abs, -3)\nasyncio.run(f())", 3),
        (
            "import signal\nsignal.signal(signal.SIGUSR1, lambda *_: None)\n"
            "signal.raise_signal(signal.SIGUSR1)",
            None,
        ),
        ("import random, uuid, secrets\nlen(uuid.uuid4().hex), len(secrets.token_hex(4))", [32, 8]),
        ("import time, datetime\ntime.sleep(0.01)\ntime.process_time() < 5", True),
        ("import subprocess\ntry: subprocess.run(['ls'])\nexcept PermissionError: x = 'no'\nx", "no"),
        ("import os, sys\nos.isatty(1), os.cpu_count() > 0, sys.stdout.isatty()", [False, True, False]),
        # Root's threads are bounded by a cgroup alone.
        ("import resource\nresource.getrlimit(resource.RLIMIT_NPROC)", [64, 64]),
        ("import logging, csv, gzip, hashlib\ngzip.decompress(gzip.compress(b'a')).decode()", "a"),
        ("from concurrent.futures import ThreadPoolExecutor as T\nsum(T(3).map(abs, range(100)))", 4950),
    ],
)
def test_what_ordinary_python_needs_is_allowed(kind: SandboxKind, code: str, result: object) -> None:
    outcome = asyncio.run(sandbox_of(kind).run(code, {}))
    assert (outcome.error, outcome.value) == (None, result)


def test_without_libseccomp_no_linux_sandbox_is_taken_and_the_remedy_is_named() -> None:
    """In a root directory of its own, where an empty file lies over the library."""
    script = (
        "from mcpagent.servers.sandbox.choose import choose_sandbox\n"
        "from mcpagent.servers.sandbox.contract import SandboxKind\n"
        "print(choose_sandbox(SandboxKind.AUTO))"
    )
    found = subprocess.run(["ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    paths = re.findall(r"libseccomp\.so\.2 .*=> (\S+)", found)
    hide = "; ".join(f"mount --bind /dev/null {path} || exit 99" for path in paths)
    command = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", f'{hide}; exec "$@"', "sh"]
    done = subprocess.run([*command, sys.executable, "-c", script], capture_output=True, text=True)
    if done.returncode == 99:
        pytest.skip(f"no namespace to hide it in: {done.stderr.strip()}")
    assert "code runs in the monty sandbox" in done.stdout, done.stderr
    assert "libseccomp is not installed (apt install libseccomp2" in done.stdout
