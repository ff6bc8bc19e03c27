"""The battery: each test really tries to get out. An attack must end as a tool error, after which the same
server answers the next call; that it had no effect is checked from outside where it could have had one."""

from __future__ import annotations

import asyncio
import os
import socket
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
from mcp import Client

from mcpagent.servers.sandbox.contract import SandboxKind, SandboxLimits
from tests.servers.calls import text_of
from tests.servers.sandbox.boxes import (
    FULL_PYTHON,
    KINDS,
    LIMITS,
    PATIENT,
    clients,
    execute,
    result_of,
    server_of,
)

# Says with an exception that an attack did nothing; one that worked ends without.
LIBC = "import ctypes\nlibc = ctypes.CDLL(None, use_errno=True)\n"
CHECK = "\nif done < 0: raise OSError(ctypes.get_errno(), 'refused')"


def attack(kind: SandboxKind, code: str, limits: SandboxLimits = LIMITS) -> str:
    """The text of the tool error that the code must end as."""

    async def main() -> str:
        async with Client(server_of(kind, limits)) as client:
            done = await execute(client, code)
            assert done.is_error, f"not stopped: {done.structured_content}"
            assert await result_of(client, "1 + 1") == 2
            return text_of(done)

    return asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "code",
    [
        "open('/etc/passwd').read()",
        "open('/etc/hostname').read()",
        "open('/proc/self/environ').read()",
        "open('/proc/SERVER/environ').read()",
        "import os\nopen(f'/proc/{os.getppid()}/environ').read()",
        "import os\nos.listdir('/proc')",
        # Python itself may be installed below the home directory.
        f"import os, sys\nseen = set(os.listdir({str(Path.home())!r})) - set(sys.base_prefix.split('/'))\n"
        "if not seen: raise PermissionError('nothing of the home directory')",
        f"open({__file__!r}).read()",
        "import os\nos.stat('/etc/shadow')",
        "open('/dev/mem', 'rb').read(1)",
        "open('/dev/tty')",
        # An os.open of a path that exists only outside, by way of descriptors that may have been left open.
        "import os\n[os.open('../etc/passwd', 0, dir_fd=fd) for fd in range(64)]",
        "import os\nos.symlink('/etc/passwd', 'link')\nopen('link').read()",
        "import os\nos.symlink('/proc/self/root/etc/passwd', 'link')\nopen('link').read()",
        "import os\nos.link('/etc/passwd', 'link')",
        "import os\nos.chroot('/proc/1/root')",
        "import os\nos.mknod('disk', 0o60666, os.makedev(8, 0))\nopen('disk')",
    ],
)
def test_no_file_of_the_host_can_be_read(kind: SandboxKind, code: str) -> None:
    assert "root:" not in attack(kind, code.replace("SERVER", str(os.getpid())))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "code",
    [
        "open({path!r}, 'w').write('x')",
        "open('../' * 20 + {path!r}, 'w').write('x')",
        "import os\nos.symlink({folder!r}, 'd')\nopen('d/new', 'w').write('x')",
        "import os\nos.remove({existing!r})",
        "import os\nos.rename({existing!r}, 'mine')",
        # Metadata.
        "import os\nos.chmod({existing!r}, 0o777)",
        "import os\nos.utime({existing!r}, (0, 0))",
        "open('/usr/new', 'w')",
        "open('/new', 'w')",
        "import os\nos.chmod('/usr', 0o777)",
    ],
)
def test_nothing_outside_the_working_directory_can_be_written(
    kind: SandboxKind, code: str, tmp_path: Path
) -> None:
    existing = tmp_path / "existing"
    existing.write_text("kept")
    before = existing.stat()
    attack(kind, code.format(path=str(tmp_path / "new"), folder=str(tmp_path), existing=str(existing)))
    assert list(tmp_path.iterdir()) == [existing]
    assert existing.read_text() == "kept"
    assert (existing.stat().st_mode, existing.stat().st_mtime) == (before.st_mode, before.st_mtime)


@contextmanager
def listening(family: int, kind: int, address: Any) -> Iterator[socket.socket]:
    with socket.socket(family, kind) as listener:
        listener.bind(address)
        if kind == socket.SOCK_STREAM:
            listener.listen()
        listener.setblocking(False)
        yield listener


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("way", ["tcp", "tcp6", "udp", "unix", "unix datagram pair", "abstract", "asyncio"])
def test_no_listener_is_reached(kind: SandboxKind, way: str, tmp_path: Path) -> None:
    name = f"mcpagent-test-{os.getpid()}"
    path = str(tmp_path / "s")
    family, socket_kind, address, code = {
        "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0), "socket.create_connection({at}, 1)"),
        "tcp6": (socket.AF_INET6, socket.SOCK_STREAM, ("::1", 0), "socket.create_connection({at}, 1)"),
        "udp": (
            socket.AF_INET,
            socket.SOCK_DGRAM,
            ("127.0.0.1", 0),
            "s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)\ns.connect({at})\ns.send(b'x')\ns.recv(1)",
        ),
        "unix": (socket.AF_UNIX, socket.SOCK_STREAM, path, "socket.socket(socket.AF_UNIX).connect({at})"),
        "unix datagram pair": (
            socket.AF_UNIX,
            socket.SOCK_DGRAM,
            "\0" + name,
            "socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)[0].sendto(b'x', {at})",
        ),
        "abstract": (
            socket.AF_UNIX,
            socket.SOCK_STREAM,
            "\0" + name,
            "socket.socket(socket.AF_UNIX).connect({at})",
        ),
        "asyncio": (
            socket.AF_INET,
            socket.SOCK_STREAM,
            ("127.0.0.1", 0),
            "import asyncio\nasyncio.run(asyncio.open_connection(*{at}))",
        ),
    }[way]
    with listening(family, socket_kind, address) as listener:
        at = listener.getsockname()
        at = at[:2] if isinstance(at, tuple) else at.decode() if isinstance(at, bytes) else at
        attack(kind, "import socket\n" + code.format(at=repr(at)))
        with pytest.raises(BlockingIOError):
            listener.accept() if socket_kind == socket.SOCK_STREAM else listener.recv(1)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("while True: pass", "1 s|3 s|limit"),
        ("while True:\n    try:\n        while True: pass\n    except BaseException: pass", ""),
        ("10 ** 10 ** 9", ""),
        ("text = 'x' * 2**20\nfor _ in range(1024): print(text)", "100000 bytes"),
        ("import time\ntime.sleep(60)", "3 s|sleep limit"),
        ("def f(): f()\nf()", "RecursionError"),
    ],
)
def test_a_call_that_uses_too_much_is_stopped(kind: SandboxKind, code: str, reason: str) -> None:
    said = attack(kind, code)
    assert any(part in said for part in reason.split("|"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "reason"),
    [
        ("data = bytearray(10 * 2**30)", "MemoryError|not defined"),
        ("data = []\nwhile True: data.append('x' * 2**20)", "MemoryError|memory"),
    ],
)
def test_a_call_that_takes_too_much_memory_is_stopped(kind: SandboxKind, code: str, reason: str) -> None:
    said = attack(kind, code, PATIENT)
    assert any(part in said for part in reason.split("|"))
    assert len(said) < 3000  # of a gigabyte of output


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.write(1, b'x' * 65536)",
        "import os\nwhile True: os.write(2, b'x' * 65536)",
        "import os\nwhile True: os.write(3, b'x' * 65536)",
        "for n in range(100): open(str(n), 'wb').write(bytes(2**20))",
        "open('big', 'wb').write(bytes(2**26))",
        "import os\nos.truncate(os.open('sparse', os.O_CREAT | os.O_RDWR), 2**40)",
        "import threading, time\nwhile True: threading.Thread(target=time.sleep, args=(9,)).start()",
        "import os\nwhile True: os.dup(0)",
        "import mmap\nmmap.mmap(-1, 2**34)",
        "import resource\nresource.setrlimit(resource.RLIMIT_AS, (-1, -1))",
        "import os, time\nos.closerange(0, 64)\ntime.sleep(60)",
        "import ctypes\nctypes.string_at(0)",
        "import os\nos._exit(0)",
        "import os\nos.abort()",
        "import sys\nsys.exit('no')",
        "eval('(' * 100_000)",
    ],
)
def test_a_call_that_uses_too_much_of_the_system_is_stopped(kind: SandboxKind, code: str) -> None:
    assert attack(kind, code)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    "code",
    [
        "import os\nwhile True: os.fork()",
        "import subprocess\nsubprocess.run(['/bin/sh', '-c', 'id'])",
        "import os\nos.execv('/bin/sh', ['sh'])",
        "import os\nos.posix_spawn('/bin/sh', ['sh'], {})",
        "__import__('o' + 's').system('id') and 1 / 0",
        "getattr(__import__('o' + 's'), 'po' + 'pen')('id').read()",
        "().__class__.__base__.__subclasses__()[0].__init__.__globals__['os'].fork()",
        "import multiprocessing\nmultiprocessing.Process(target=print).start()",
        "import pty\npty.spawn('/bin/sh')",
    ],
)
def test_no_process_can_be_started(kind: SandboxKind, code: str) -> None:
    assert "uid=" not in attack(kind, code)


@pytest.mark.parametrize("kind", FULL_PYTHON)
def test_no_daemon_survives(kind: SandboxKind) -> None:
    """By every system call that makes a process. A survivor would carry the name that the code takes."""
    name = f"daemon{os.getpid() % 10**6}"
    code = LIBC + (
        "import os, time\n"
        f"libc.prctl(15, b{name!r}, 0, 0, 0)\n"  # PR_SET_NAME, inherited
        "numbers = {'x86_64': (57, 58, 56, 435), 'aarch64': (220, 435)}[os.uname().machine]\n"
        "for number in numbers:\n"  # fork, vfork, clone, clone3
        "    flags = ctypes.c_long(17)\n"  # SIGCHLD
        "    if libc.syscall(number, flags, 0, 0, 0, 0) == 0:\n"
        "        os.setsid()\n"
        "        time.sleep(600)\n"
        "raise PermissionError('no process')\n"
    )
    attack(kind, code)
    names = []
    for comm in Path("/proc").glob("[0-9]*/comm"):
        try:
            names.append(comm.read_text().strip())
        except OSError:
            continue  # it ended in the meantime
    assert name not in names


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize(
    "code",
    [
        "import os, signal\nos.kill({server}, signal.SIGKILL)",
        "import os, signal\nos.kill(os.getppid() or {server}, signal.SIGKILL)\n1 / 0",
        "import os, signal\nos.kill(-1, signal.SIGKILL)\n1 / 0",
        "import os, signal\nos.killpg({group}, signal.SIGKILL)",
        "import os, signal\nsignal.pidfd_send_signal(os.pidfd_open({server}), signal.SIGKILL)",
        LIBC + "done = libc.ptrace(16, {server}, 0, 0)" + CHECK,  # PTRACE_ATTACH
        LIBC + "done = libc.ptrace(0, 0, 0, 0)" + CHECK,  # PTRACE_TRACEME
        LIBC + "done = libc.process_vm_readv({server}, None, 0, None, 0, 0)" + CHECK,
        LIBC + "done = libc.unshare(0x10000000)" + CHECK,  # CLONE_NEWUSER: would give capabilities again
        LIBC + "done = libc.mount(b'x', b'/work', b'tmpfs', 0, None)" + CHECK,
        LIBC + "done = libc.umount2(b'/work', 2)" + CHECK,
        LIBC + "done = libc.syscall(321, 0, 0, 0)" + CHECK,  # bpf
        LIBC + "done = libc.syscall(425, 8, 0)" + CHECK,  # io_uring_setup
        "import os\nos.setuid(0)",
        "import os\nos.setpriority(os.PRIO_USER, 0, -20)",
        "import socket\nsocket.sethostname('mine')",
        "import time\ntime.clock_settime(time.CLOCK_REALTIME, 0)",
    ],
)
def test_no_other_process_and_no_power_over_the_system_is_in_reach(kind: SandboxKind, code: str) -> None:
    attack(kind, code.format(server=os.getpid(), group=os.getpgrp()))


@pytest.mark.parametrize("kind", KINDS)
def test_a_key_in_the_servers_environment_is_not_there(
    kind: SandboxKind, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PLANTED_API_KEY", "planted-secret")
    said = attack(
        kind, "import os\nraise ValueError(repr(dict(os.environ)) + repr(os.getenv('PLANTED_API_KEY')))"
    )
    assert "planted-secret" not in said


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("'the sandbox did not start'", "exit code 1"),
        ("'[' * 90_000", "exit code 1"),
        ("'{\"value\": ' + '9' * 5000 + '}'", "exit code 1"),
        ("'[]'", "exit code 1"),
        ('\'{"error": [], "line": "x"}\'', "[]"),
        ('\'{"error": "\\\\ud800", "line": 1}\'', "\ufffd"),
    ],
)
def test_what_the_code_writes_into_the_report_is_at_most_its_own_answer(
    kind: SandboxKind, text: str, said: str
) -> None:
    """It cannot pass for a failure of the infrastructure, which would not count as the model's."""
    assert said in attack(kind, f"import os\nos.write(3, ({text}).encode())\nos._exit(1)")


@pytest.mark.parametrize("kind", KINDS)
async def test_episodes_share_neither_results_nor_files_nor_names(kind: SandboxKind) -> None:
    async with AsyncExitStack() as stack:
        one, two = await clients(stack, kind, 2)
        await one.call_tool("store_execution_result", {"key": "k", "value": "secret-of-one"})
        await execute(one, "leftover = 'secret-of-one'\nopen('leftover', 'w').write(leftover)")
        for client in (one, two):
            assert (await execute(client, "leftover")).is_error
            assert (await execute(client, "open('leftover').read()")).is_error
        assert await result_of(two, "stored") == {}
        assert await result_of(one, "stored['k'] = 'changed'\nstored") == {"k": "changed"}
        assert await result_of(one, "stored") == {"k": "secret-of-one"}
        context = await two.call_tool("get_execution_context", {})
        assert context.structured_content["stored"] == {}


@pytest.mark.parametrize("kind", FULL_PYTHON)
async def test_an_episode_cannot_signal_another(kind: SandboxKind) -> None:
    kill_all = (
        "import os\nkilled = []\n"
        "for pid in [-1, *range(2, 4_000)]:\n"
        "    try:\n"
        "        if pid != os.getpid(): os.kill(pid, 9); killed.append(pid)\n"
        "    except ProcessLookupError: pass\n"
        "    except PermissionError: pass\n"
        "killed"
    )
    async with AsyncExitStack() as stack:
        one, two = await clients(stack, kind, 2)
        sleeper = asyncio.create_task(result_of(one, "import time\ntime.sleep(1)\n'alive'"))
        assert await result_of(two, kill_all) == []
        assert await sleeper == "alive"
