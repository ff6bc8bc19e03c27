"""How a service is called: paced by its rate, asked again while that can help, given up at a deadline.

Whose fault a failure is decides how it ends. The model's own (an unknown ticker) is a `ToolError`, which the
model reads. All else is an `UpstreamFailed`: a protocol error, so that the client records infrastructure
and no reward is made of it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TypeVar
from weakref import WeakKeyDictionary

from aiolimiter import AsyncLimiter
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, REQUEST_TIMEOUT
from pydantic import ValidationError
from tenacity import (
    AsyncRetrying,
    RetryCallState,
    retry_if_exception_type,
    stop_after_attempt,
    stop_any,
    stop_before_delay,
    wait_random_exponential,
)

from mcpagent.servers.live.settings import LiveSettings, Rate

T = TypeVar("T")

_MAX_PAUSE_S = 8.0
_MAX_FAULTS = 3


class UpstreamFailed(MCPError):
    """A failure that is not the model's."""

    def __init__(self, settings: LiveSettings, text: str, *, code: int = INTERNAL_ERROR) -> None:
        super().__init__(code=code, message=settings.redact(f"{settings.service}: {text}"))


class Transient(Exception):
    """An attempt failed in a way that may pass. `retry_after_s` is what the service asked to wait."""

    def __init__(self, text: str, *, retry_after_s: float | None = None) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s


class Pace:
    """One token bucket for every client of a server; a loop has its own, as asyncio's objects must."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._limiters: WeakKeyDictionary[asyncio.AbstractEventLoop, AsyncLimiter] = WeakKeyDictionary()

    async def wait(self) -> None:
        loop = asyncio.get_running_loop()
        if loop not in self._limiters:
            self._limiters[loop] = AsyncLimiter(self.rate.calls, self.rate.period_s)
        await self._limiters[loop].acquire()


async def persist(attempt: Callable[[], Awaitable[T]], *, settings: LiveSettings, pace: Pace) -> T:
    """What `attempt` returns, which is made again after a `Transient`. Raises UpstreamFailed at the end."""
    last: list[Transient] = []
    waits_for_its_turn = True

    async def paced() -> T:
        nonlocal waits_for_its_turn
        waits_for_its_turn = True
        await pace.wait()
        waits_for_its_turn = False
        try:
            return await attempt()
        except Transient as failure:
            last[:] = [failure]
            raise

    retrying = AsyncRetrying(
        retry=retry_if_exception_type(Transient),
        # A pause that would pass the deadline is not begun: the reason is known now.
        stop=stop_any(stop_after_attempt(settings.attempts), stop_before_delay(settings.deadline_s)),
        wait=_Pause(settings.backoff_s),
        reraise=True,
    )
    try:
        async with asyncio.timeout(settings.deadline_s):
            return await retrying(paced)
    except Transient as failure:
        asked = failure.retry_after_s
        wait = f"; it asks to wait {asked:g} s" if asked else ""
        raise UpstreamFailed(settings, f"{failure}{wait}") from None
    except TimeoutError:
        rate = f" (its rate here is {pace.rate})" if waits_for_its_turn else ""
        why = f"{rate}; before that: {last[0]}" if last else rate
        raise UpstreamFailed(
            settings, f"no answer within {settings.deadline_s:g} s{why}", code=REQUEST_TIMEOUT
        ) from None


def misshapen(settings: LiveSettings, error: ValidationError) -> UpstreamFailed:
    """An answer that is JSON, but not the documented one; the values in it are not repeated."""
    faults = [f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in error.errors()[:_MAX_FAULTS]]
    return UpstreamFailed(settings, f"its answer is not shaped as documented ({'; '.join(faults)})")


class _Pause:
    """What the service asked for, else a random pause that doubles."""

    def __init__(self, backoff_s: float) -> None:
        self._own = wait_random_exponential(multiplier=backoff_s, max=_MAX_PAUSE_S)

    def __call__(self, state: RetryCallState) -> float:
        failure = state.outcome.exception() if state.outcome is not None else None
        if isinstance(failure, Transient) and failure.retry_after_s is not None:
            return failure.retry_after_s
        return self._own(state)
