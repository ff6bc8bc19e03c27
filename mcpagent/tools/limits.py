"""What can be set for each server, and the gate that holds its calls to it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType

from aiolimiter import AsyncLimiter

START_TIMEOUT_S = 60.0  # a cold `npx -y` or `uvx` takes up to 13 s on an idle machine


@dataclass(frozen=True, kw_only=True)
class ServerLimits:
    """How one server is called; None is the pool's own value.

    `start_timeout_s` bounds one start, and also how long a call waits in all for its server to be up again.
    `safe_to_retry` names tools that are repeated after a loss although the server gives no hint that they
    may be. `survives_restart`: a new process of the server knows what the old one was told (a file, a remote
    service), so episodes that wrote to it go on after a restart.
    """

    timeout_s: float | None = None
    start_timeout_s: float = START_TIMEOUT_S
    max_in_flight: int | None = None
    calls_per_minute: float | None = None
    safe_to_retry: Sequence[str] = ()
    survives_restart: bool = False


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
