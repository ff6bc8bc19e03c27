"""Limits on the calls of one server: concurrency, rate, the circuit breaker, deadlines."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from enum import StrEnum
from types import TracebackType
from typing import Any

from aiolimiter import AsyncLimiter

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.values import backoff_s
from mcpagent.errors import UserError
from mcpagent.tools.servers_config import ServerConfig

_MAX_IN_FLIGHT = 64  # calls at once on one server that says nothing of it


def limits_of(server: ServerConfig, config: ToolsConfig) -> ServerSection:
    """Return how one server is called, with nothing left open: by its own section, else by its entry in the
    servers file, else like all servers. Raises UserError for a workspace that episodes would share."""
    stated = config.per_server.get(server.name, ServerSection())
    isolation = stated.isolation or server.isolation
    if stated.workspace is not None and isolation == "shared":
        raise UserError(
            f"server {server.name!r} has a workspace, a copy for each episode, and is shared by all",
            where=f"tools.per_server.{server.name}.workspace",
            remedy=f"leave out tools.per_server.{server.name}.isolation",
        )
    decided = {
        "timeout_s": stated.timeout_s or server.timeout_s or config.timeout_s,
        "max_in_flight": stated.max_in_flight or _MAX_IN_FLIGHT,
        "isolation": isolation or ("episode" if stated.workspace else "shared"),
    }
    return stated.model_copy(update=decided)


class Gate:
    """Lets at most `max_in_flight` calls through at once, and no more than `calls_per_minute` in any minute:
    they are spaced evenly, since a service that counts by the minute would punish a burst."""

    def __init__(self, max_in_flight: int, *, calls_per_minute: float | None = None) -> None:
        self._slots = asyncio.Semaphore(max_in_flight)
        self._pace = None if calls_per_minute is None else AsyncLimiter(1, 60 / calls_per_minute)
        self.in_flight = 0
        self.most_in_flight = 0

    async def __aenter__(self) -> None:
        await self._slots.acquire()
        if self._pace is not None:
            try:
                await self._pace.acquire()
            except BaseException:
                self._slots.release()
                raise
        self.in_flight += 1
        if self.in_flight > self.most_in_flight:
            self.most_in_flight = self.in_flight

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.in_flight -= 1
        self._slots.release()


BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 30.0
FAILURES_TO_OPEN = 5


class BreakerState(StrEnum):
    """The state of the breaker, which decides about calls of the server."""

    CLOSED = "closed"  # it is made; after a failure it waits out the backoff
    OPEN = "open"  # it fails at once
    HALF_OPEN = "half_open"  # it is made, as the only one, and its outcome decides


class CircuitBreaker:
    """Counts the failures of one server since it last answered a call.

    A failure is a start that did not succeed, or a connection that ended by itself. After the n-th in a row
    the next try waits 0.2, 0.4, 0.8 ... 30 s (each less up to a quarter, at random, so that many clients of
    one service do not return at once). From the fifth on the breaker is open: until the next try is due,
    calls fail at once. Then it is half open, for one try: while that is under way, at most for another
    backoff, it is open for all others. An answer closes it, a failure opens it for longer. `clock` gives
    seconds.
    """

    def __init__(self, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._failures = 0
        self._next_try_s = 0.0  # by the clock
        self.reason = ""  # of the last failure
        self._is_trying = False  # the one try of the half-open breaker is under way

    @property
    def state(self) -> BreakerState:
        """Return what happens to a call that is made now."""
        if self._failures < FAILURES_TO_OPEN:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.delay_s > 0 else BreakerState.HALF_OPEN

    @property
    def delay_s(self) -> float:
        """Seconds until the next try; 0 if it is due."""
        return max(0.0, self._next_try_s - self._clock()) if self._failures else 0.0

    @property
    def refusal(self) -> str | None:
        """Return why a call fails at once; None while it may be made."""
        if self.state is not BreakerState.OPEN:
            return None
        when = "it is being tried again" if self._is_trying else f"the next try is in {self.delay_s:.1f} s"
        return f"the server failed {self._failures} times in a row (last: {self.reason}); {when}"

    def begin(self) -> None:
        """Note that a call or a start is tried. A try whose outcome is never told (its caller was cancelled)
        holds up the others for one backoff."""
        if self.state is BreakerState.HALF_OPEN:
            self._is_trying = True
            self._back_off()

    def failed(self, reason: str, *, is_lasting: bool = False, may_return: bool = False) -> None:
        """Note a failure. Those that arrive while the backoff runs are of the same fault and count once;
        one that `is_lasting` (no such command) opens the breaker, one that `may_return` (a service that is
        away for a moment) leaves it closed."""
        if self.delay_s > 0 and not self._is_trying:
            return
        self._is_trying = False
        self.reason = reason
        if not (may_return and self._failures == FAILURES_TO_OPEN - 1):
            self._failures = max(self._failures + 1, FAILURES_TO_OPEN if is_lasting else 0)
        self._back_off()

    def answered(self) -> None:
        """Note that the server answered a call."""
        self._failures = 0
        self._is_trying = False

    def _back_off(self) -> None:
        pause_s = backoff_s(self._failures, first_s=BACKOFF_FIRST_S, max_s=BACKOFF_MAX_S)
        self._next_try_s = self._clock() + pause_s


_LATE_S = 0.1  # a timer that fires later than this was held up
_EXTENSION_MAX_S = 10.0  # in all, so that a loop that is always late does not wait for ever


async def settled(future: asyncio.Future[Any], timeout_s: float) -> bool:
    """Wait until `future` is done, at most `timeout_s`; True if it is. Never cancels it, raises nothing of
    it.

    A loop that is held up (a computation that keeps the interpreter to itself) runs its timers late, and
    before it has read what arrived meanwhile; it may not even have sent the request. So a timer that fires
    late is set again, by its lateness.

    If it is done already, the loop still gets its turn, so that what waits for its end has heard of it: a
    caller that looks again would else see the same as before, for ever.
    """
    if future.done():
        await asyncio.sleep(0)
        return True
    loop = asyncio.get_running_loop()
    woken: asyncio.Future[None] = loop.create_future()
    extension_s = _EXTENSION_MAX_S

    def wake(_: object = None) -> None:
        if not woken.done():
            woken.set_result(None)

    def expire() -> None:
        nonlocal timer, extension_s
        late_s = min(loop.time() - timer.when(), extension_s)
        if late_s > _LATE_S:
            extension_s -= late_s
            timer = loop.call_later(late_s, expire)
        else:
            wake()

    timer = loop.call_later(timeout_s, expire)
    future.add_done_callback(wake)
    try:
        await woken
    finally:
        timer.cancel()
        future.remove_done_callback(wake)
    return future.done()
