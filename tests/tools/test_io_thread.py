from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import threading
from concurrent.futures import CancelledError

import pytest

from mcpagent.tools.io_thread import IOThread
from mcpagent.tools.pool import ToolPool
from tests.tools.support import call, memory_echo


def test_a_pool_is_entered_called_and_left_in_separate_runs() -> None:
    with IOThread() as io:
        pool = io.run(ToolPool([memory_echo()]).__aenter__())
        session = pool.session()
        assert io.run(call(session, "echo", text="hi")).content == "hi"
        io.run(session.close())
        io.run(pool.close())


def test_an_exception_reaches_the_caller() -> None:
    async def fail() -> None:
        raise LookupError("gone")

    with IOThread() as io, pytest.raises(LookupError, match="gone"):
        io.run(fail())


def test_ctrl_c_cancels_the_coroutine_waits_for_its_clean_up_and_reraises() -> None:
    events: list[str] = []

    async def endless() -> None:
        try:
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            events.append("cleaned up")

    with IOThread() as io:
        with pytest.raises(KeyboardInterrupt):
            io.run(endless())
        assert events == ["cleaned up"]
        assert io.run(asyncio.sleep(0, "alive")) == "alive"


def test_close_cancels_what_is_left_and_ends_the_thread() -> None:
    started = threading.Event()
    outcome: list[BaseException] = []

    async def endless() -> None:
        started.set()
        await asyncio.Event().wait()

    def caller(io: IOThread) -> None:
        try:
            io.run(endless())
        except CancelledError as error:
            outcome.append(error)

    before = threading.enumerate()
    io = IOThread()
    thread = threading.Thread(target=caller, args=(io,))
    thread.start()
    assert started.wait(5)
    io.close()
    thread.join(5)
    assert len(outcome) == 1
    assert set(threading.enumerate()) <= set(before)
    with pytest.raises(RuntimeError, match="living loop"):
        io.run(asyncio.sleep(0))


def test_running_from_the_loop_itself_is_refused_instead_of_deadlocking() -> None:
    with IOThread() as io:

        async def nested() -> None:
            io.run(asyncio.sleep(0))

        with pytest.raises(RuntimeError, match="another thread"):
            io.run(nested())


def test_a_thread_that_an_exiting_interpreter_closes_says_nothing() -> None:
    """As the bridges close theirs. Red on Python 3.12 and later, which start no thread by then."""
    code = (
        "import asyncio, atexit\nfrom mcpagent.tools.io_thread import IOThread\n"
        "io = IOThread()\natexit.register(io.close)\nio.run(asyncio.to_thread(print, 'done'))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.stdout, done.stderr, done.returncode) == ("done\n", "", 0)
