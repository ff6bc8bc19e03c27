"""Nothing of a call outlives it. Without the guard within Python: what ends a call must hold alone."""

from __future__ import annotations

import asyncio
import os
import signal
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from mcpagent.servers.sandbox import inside
from mcpagent.servers.sandbox.bubblewrap import BubblewrapSandbox
from mcpagent.servers.sandbox.contract import SandboxKind, SandboxLimits
from tests.running import BOUND_S, Python, children
from tests.servers.sandbox.boxes import FULL_PYTHON
from tests.tools.wild import wait_for_end

pytestmark = pytest.mark.system

QUICK = SandboxLimits(wall_s=0.5, cpu_s=1)
FOREVER = "\nimport time\nwhile True: time.sleep(1)\n"
LIBC = "import ctypes, os, signal\nlibc = ctypes.CDLL(None, use_errno=True)\n"
# What code does so that nothing reaches it: other process groups and sessions, no death signal, all signals
# blocked or ignored, a stopped process, other namespaces, another program, a tracer, many short lives.
HIDE = LIBC + (
    "def hide():\n"
    "    libc.prctl(1, 0, 0, 0, 0)\n"  # PR_SET_PDEATHSIG
    "    try: os.setsid()\n"
    "    except OSError: os.setpgid(0, 0)\n"
    "    signal.pthread_sigmask(signal.SIG_BLOCK, range(1, 65))\n"
)
WAYS = {
    "alone": HIDE + "hide()" + FOREVER,
    "daemon": HIDE + "hide()\nif os.fork() == 0:\n    os.setsid()\n    if os.fork() == 0:\n"
    "        os.closerange(0, 64)" + FOREVER.replace("\n", "\n        ") + "\nos._exit(0)",
    "daemon of one that stays": HIDE + "hide()\nif os.fork() == 0: hide()" + FOREVER,
    "stopped": HIDE + "hide()\nif os.fork() == 0: hide()\nos.kill(os.getpid(), signal.SIGSTOP)" + FOREVER,
    "closed": HIDE + "hide()\nos.closerange(0, 64)" + FOREVER,
    "new namespaces": HIDE
    + "hide()\nlibc.unshare(0x10000000 | 0x20000000)\nif os.fork() == 0: hide()"
    + FOREVER,
    "exec": HIDE
    + "hide()\nos.execv('/bin/sh', ['sh', '-c', 'trap \"\" 1 2 3 15; while :; do sleep 1; done'])",
    "traced": HIDE + "hide()\nchild = os.fork()\nif child: libc.ptrace(16, child, 0, 0)" + FOREVER,
    "fork storm": HIDE
    + "hide()\nfor _ in range(200):\n    if os.fork() == 0:"
    + FOREVER.replace("\n", "\n        "),
    "vfork storm": HIDE
    + "hide()\nimport subprocess\nwhile True: subprocess.Popen(['/bin/sh', '-c', 'sleep 600 &'])",
    "process 1 is shot": HIDE + "hide()\nfor number in range(1, 65):\n"
    "    try: os.kill(1, number)\n    except OSError: pass" + FOREVER,
}


GUARD = "    sys.addaudithook(_refuse_processes)\n"


def unguarded(limits: SandboxLimits = QUICK) -> BubblewrapSandbox:
    """A sandbox whose code may make processes and call the C library."""
    sandbox = BubblewrapSandbox(limits)
    text = Path(inside.__file__).read_text()
    assert GUARD in text
    with tempfile.NamedTemporaryFile("w", suffix=".py", delete=False) as file:
        file.write(text.replace(GUARD, ""))
    sandbox._command = [file.name if part == inside.__file__ else part for part in sandbox._command]
    return sandbox


@contextmanager
def nothing_left() -> Iterator[None]:
    """Everything that was started in a pid namespace other than ours is gone at the end."""
    before = _elsewhere()
    yield
    assert wait_for_end(_elsewhere() - before) == set()


def _elsewhere() -> set[int]:
    here = os.readlink("/proc/self/ns/pid")  # noqa: PTH115 - a link that leads to no path
    found = set()
    for process in Path("/proc").glob("[0-9]*"):
        try:
            namespace = os.readlink(process / "ns" / "pid")  # noqa: PTH115
        except OSError:
            continue  # it ended in the meantime
        if namespace != here:
            found.add(int(process.name))
    return found


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize("way", WAYS)
def test_whatever_the_code_does_it_ends_with_its_call(kind: SandboxKind, way: str) -> None:
    with nothing_left():
        outcome = unguarded().run_blocking(WAYS[way], {})
        assert outcome.value is None


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize("way", ["alone", "daemon of one that stays", "stopped"])
async def test_what_hides_ends_with_a_cancelled_call(kind: SandboxKind, way: str) -> None:
    with nothing_left():
        sandbox = unguarded()
        call = asyncio.create_task(sandbox.run(WAYS[way], {}))
        async with asyncio.timeout(20):
            while not children():
                await asyncio.sleep(0.001)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize("way", ["alone", "daemon of one that stays", "stopped"])
def test_what_hides_ends_with_a_server_that_was_killed(kind: SandboxKind, way: str) -> None:
    # Nothing but the kill ends the call: at a limit of its own it would, before slow eyes have seen it.
    script = (
        "import tests.servers.sandbox.test_survivors as t\n"
        f"code = 'print(1, flush=True)\\n' + t.WAYS[{way!r}]\n"
        f"limits = t.SandboxLimits(wall_s={BOUND_S})\n"
        f"t.unguarded(limits).run_blocking(code, {{}})\n"
    )
    with nothing_left(), Python("-c", script) as server:
        wanted = {"alone": 2, "daemon of one that stays": 3, "stopped": 3}[way]  # with process 1
        before: set[int] = set()
        while len(before) < wanted:
            assert server.poll() is None
            before = {
                child.pid for child in psutil.Process(server.pid).children(recursive=True)
            } & _elsewhere()
        server.send_signal(signal.SIGKILL)
    assert wait_for_end(before) == set()


@pytest.mark.parametrize("kind", FULL_PYTHON)
def test_memory_of_all_processes_together_ends_a_call(kind: SandboxKind) -> None:
    code = (
        "import os, time\nfor _ in range(8):\n"
        "    if os.fork() == 0:\n        kept = b'x' * 100_000_000\n        time.sleep(60)\ntime.sleep(60)"
    )
    with nothing_left():
        outcome = unguarded(SandboxLimits(wall_s=BOUND_S)).run_blocking(code, {})
    assert "bytes of memory" in str(outcome.error)
