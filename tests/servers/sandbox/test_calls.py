"""What ordinary code gives, on every backend."""

from __future__ import annotations

import asyncio
import math
import os
import threading
import time
from contextlib import AsyncExitStack
from typing import Any

import psutil
import pytest
from mcp import Client

from mcpagent.servers.sandbox.contract import AT_ONCE, SandboxKind
from tests.running import children
from tests.servers.calls import text_of
from tests.servers.sandbox.boxes import (
    FULL_PYTHON,
    KINDS,
    LIMITS,
    clients,
    execute,
    result_of,
    sandbox_of,
    server_of,
)

pytestmark = pytest.mark.system


def run(kind: SandboxKind, code: str) -> Any:
    async def main() -> Any:
        async with Client(server_of(kind)) as client:
            return await execute(client, code)

    return asyncio.run(main())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "result", "output"),
    [
        ("6 * 7", 42, ""),
        ("x = 6 * 7", None, ""),
        ("", None, ""),
        ("print('seen')\n'last'", "last", "seen\n"),
        ("def f(n):\n    return 1 if n < 2 else n * f(n - 1)\nf(20)", math.factorial(20), ""),
        ("import json\njson.loads('[1, {\"a\": null}]')", [1, {"a": None}], ""),
        ("(1, [2.5, True])", [1, [2.5, True]], ""),
        ("{1: 'a', 'b': (2,)}", {"1": "a", "b": [2]}, ""),
        # What JSON has no word for is its repr.
        ("float('nan'), float('inf')", ["nan", "inf"], ""),
        ("2 ** 70, b'x'", ["1180591620717411303424", "b'x'"], ""),
        ("'\\ud800'", "\ufffd", ""),
        ("'é\\U0001f600'", "é\U0001f600", ""),
    ],
)
def test_the_last_expression_is_the_result(kind: SandboxKind, code: str, result: Any, output: str) -> None:
    done = run(kind, code)
    assert done.structured_content == {"result": result, "output": output}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("code", "message"),
    [
        ("x = 1\n1 / 0", "ZeroDivisionError: division by zero{} (line 2: 1 / 0)"),
        ("def f():\n    return {}['k']\n\nf()", "KeyError: "),
        ("raise ValueError('a reason')", "ValueError: a reason{} (line 1: raise ValueError('a reason'))"),
        ("x = (", "SyntaxError: "),
        ("10 ** 5000", "4300 digits"),
        ("'x' * 10**6", "The result has more than 256000 bytes."),
    ],
)
def test_an_error_names_itself_and_its_line(kind: SandboxKind, code: str, message: str) -> None:
    done = run(kind, code)
    assert done.is_error
    # Where a subset of Python runs, the error may come of that, and says so.
    note = " [Python (subset)]" if kind is SandboxKind.MONTY else ""
    assert message.format(note) in text_of(done)
    assert note in text_of(done)


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_printed_before_an_error_is_shown(kind: SandboxKind) -> None:
    assert text_of(run(kind, "print('so far')\n1 / 0")).endswith("\nPrinted before:\nso far\n")


@pytest.mark.parametrize("kind", FULL_PYTHON)
@pytest.mark.parametrize(
    ("code", "result"),
    [
        ("open('f', 'w').write('kept')\nopen('f').read()", "kept"),
        ("import tempfile\ntempfile.TemporaryFile(dir='.').write(b'ab')", 2),
        ("from dataclasses import dataclass\n@dataclass\nclass A:\n    x: int\nrepr(A(1))", "A(x=1)"),
        ("import statistics, decimal, zoneinfo\nstatistics.median([3, 1, 2])", 2),
        ("__name__", "__main__"),
        ("list({'a', 'b', 'c', 'd', 'e'}) == list({'a', 'b', 'c', 'd', 'e'})", True),
        ("import socket\nsocket.gethostname()", "sandbox"),
        ("import os\nos.listdir('.'), dict(os.environ), os.getuid()", [[], {}, 1000]),
        ("import sys\nsys.exit()", None),
        ("import sys\nsys.stderr.write('both\\n')", 5),
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
        ("import resource\nresource.getrlimit(resource.RLIMIT_NPROC)", [64, 64]),
        ("import logging, csv, gzip, hashlib\ngzip.decompress(gzip.compress(b'a')).decode()", "a"),
        ("from concurrent.futures import ThreadPoolExecutor as T\nsum(T(3).map(abs, range(100)))", 4950),
    ],
)
def test_ordinary_python_works(kind: SandboxKind, code: str, result: Any) -> None:
    done = run(kind, code)
    assert not done.is_error, text_of(done)
    assert done.structured_content["result"] == result


@pytest.mark.parametrize("kind", FULL_PYTHON)
async def test_the_order_of_a_set_is_the_same_in_every_call(kind: SandboxKind) -> None:
    async with Client(server_of(kind)) as client:
        first, second = [await result_of(client, "list({'a', 'b', 'c', 'd', 'e', 'f'})") for _ in "12"]
        assert first == second


@pytest.mark.parametrize("kind", KINDS)
async def test_forty_calls_that_sleep_delay_no_other(kind: SandboxKind) -> None:
    sandbox = sandbox_of(kind)
    sleeps = f"import time\ntime.sleep({LIMITS.wall_s * 0.6})"
    begun_s = time.monotonic()
    sleepers = [asyncio.create_task(sandbox.run(sleeps, {})) for _ in range(40)]
    await asyncio.sleep(0)
    assert (await sandbox.run("1 + 1", {})).value == 2
    taken_s = time.monotonic() - begun_s
    await asyncio.gather(*sleepers)
    # Forty starts on a busy machine, but no wave of sleepers after another: each would take 1.8 s.
    assert taken_s < time.monotonic() - begun_s


@pytest.mark.parametrize("kind", KINDS)
async def test_of_32_calls_at_once_the_last_have_their_whole_time(kind: SandboxKind) -> None:
    """More calls that sleep until they are stopped than can run at once, then some that would be stopped
    themselves if waiting for their turn used up their time."""
    sleepers = AT_ONCE + 4
    async with AsyncExitStack() as stack:
        episodes = await clients(stack, kind, max(32, sleepers + 4))
        forever = f"import time\nfor _ in range(100): time.sleep({LIMITS.wall_s})"
        slow = [asyncio.create_task(execute(client, forever)) for client in episodes[:sleepers]]
        quick = [asyncio.create_task(result_of(client, "'done'")) for client in episodes[sleepers:]]
        assert await asyncio.gather(*quick) == ["done"] * len(quick)
        assert all(done.is_error for done in await asyncio.gather(*slow))


@pytest.mark.parametrize("kind", FULL_PYTHON)
async def test_the_process_of_a_cancelled_call_is_killed(kind: SandboxKind) -> None:
    before = children()  # of other tests, which share this process
    call = asyncio.create_task(sandbox_of(kind).run("import time\ntime.sleep(60)", {}))
    async with asyncio.timeout(20):
        while not (below := [child for child in children() if child not in before]):
            await asyncio.sleep(0.001)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    # Much sooner than at its own limit.
    _, left = psutil.wait_procs(below, timeout=LIMITS.wall_s / 2)
    assert [process for process in left if not _is_dead_child_of_init(process)] == []


def _is_dead_child_of_init(process: psutil.Process) -> bool:
    """What a killed process had started goes to init, which reaps it when it gets to it."""
    try:
        return process.status() == psutil.STATUS_ZOMBIE and process.ppid() != os.getpid()
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize("kind", KINDS)
def test_one_server_serves_several_event_loops_in_a_process_with_threads(kind: SandboxKind) -> None:
    """As in a trainer: the pool's thread and others, torch loaded, and children made meanwhile."""
    import torch

    results: list[Any] = []

    def episode(number: int) -> None:
        async def main() -> None:
            async with Client(server_of(kind)) as client:
                results.append([await result_of(client, f"{number} + {step}") for step in range(5)])

        asyncio.run(main())

    threads = [threading.Thread(target=episode, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    product = torch.eye(64) @ torch.eye(64)
    for thread in threads:
        thread.join()
    assert sorted(results) == [[number + step for step in range(5)] for number in range(4)]
    assert product.trace() == 64
