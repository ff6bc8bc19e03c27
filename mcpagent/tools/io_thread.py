"""One background thread with an event loop: episodes and tools live there, models compute elsewhere."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Coroutine
from concurrent.futures import CancelledError, Future, wait
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, TypeVar

from mcpagent.interrupts import stopping

T = TypeVar("T")

_CANCEL_GRACE_S = 10.0


class _Loop(asyncio.SelectorEventLoop):
    async def shutdown_default_executor(self, timeout: float | None = None) -> None:
        """Python 3.12 starts no thread once the interpreter ends, and asyncio joins its executor in one: its
        threads have ended by then."""
        with suppress(RuntimeError):
            await super().shutdown_default_executor()


class IOThread:
    """Runs coroutines on its own loop, so that a long computation of the caller delays no tool call.

    Everything that shares a `ToolPool` must run on one IOThread: there is no thread hop per call.
    """

    def __init__(self) -> None:
        self._ready = threading.Event()
        self._loop: asyncio.AbstractEventLoop
        self._stop: asyncio.Event
        self._thread = threading.Thread(target=self._run, name="mcpagent-io", daemon=True)
        self._thread.start()
        self._ready.wait()

    def _run(self) -> None:
        with asyncio.Runner(loop_factory=_Loop) as runner:
            runner.run(self._main())

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self._ready.set()
        await self._stop.wait()

    def run(self, coro: Coroutine[Any, Any, T]) -> T:
        """Run `coro` on the loop and block for its result. Ctrl-C cancels it, waits for its clean-up
        (at most 10 s) and raises KeyboardInterrupt here."""
        outcome: Future[T] = Future()
        tasks: list[asyncio.Task[T]] = []
        # The interrupt may come at any moment; what is scheduled on the loop afterwards runs after the start.
        try:
            self._begin(coro, outcome, tasks)
            return outcome.result()
        except KeyboardInterrupt:
            stopping()
            self._loop.call_soon_threadsafe(lambda: [task.cancel() for task in tasks])
            wait([outcome], timeout=_CANCEL_GRACE_S)
            raise

    def submit(self, coro: Coroutine[Any, Any, T]) -> Future[T]:
        """Run `coro` on the loop without waiting for it: for callers with a loop of their own, which await
        `asyncio.wrap_future` of what this gives."""
        outcome: Future[T] = Future()
        self._begin(coro, outcome, [])
        return outcome

    def _begin(self, coro: Coroutine[Any, Any, T], outcome: Future[T], tasks: list[asyncio.Task[T]]) -> None:
        if threading.current_thread() is self._thread or not self._thread.is_alive():
            coro.close()
            raise RuntimeError("IOThread.run needs a living loop and must be called from another thread")

        def settle(task: asyncio.Task[T]) -> None:
            if outcome.cancelled():
                return  # no caller waits for it any more
            if task.cancelled():
                outcome.set_exception(CancelledError())
            elif (error := task.exception()) is not None:
                outcome.set_exception(error)
            else:
                outcome.set_result(task.result())

        def start() -> None:
            tasks.append(self._loop.create_task(coro))
            tasks[0].add_done_callback(settle)

        self._loop.call_soon_threadsafe(start)

    def close(self) -> None:
        """Cancel what is still running and join the thread. Idempotent."""
        if self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._stop.set)
            self._thread.join()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
