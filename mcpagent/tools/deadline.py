"""Deadlines that count the peer's time, not that of a loop that was held up."""

from __future__ import annotations

import asyncio
from typing import Any

_LATE_S = 0.1  # a timer that fires later than this was held up
_EXTENSION_MAX_S = 10.0  # in all, so that a loop that is always late does not wait for ever


async def settled(future: asyncio.Future[Any], timeout_s: float) -> bool:
    """Wait until `future` is done, at most `timeout_s`; True if it is. Never cancels it, raises nothing of
    it.

    A loop that is held up (a computation that keeps the interpreter to itself) runs its timers late, and
    before it has read what arrived meanwhile; it may not even have sent the request. So a timer that fires
    late is set again, by its lateness.
    """
    if future.done():
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
