"""When a failing server is tried again, and when calls of it fail at once instead of waiting."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from enum import StrEnum

BACKOFF_FIRST_S = 0.2
BACKOFF_MAX_S = 30.0
FAILURES_TO_OPEN = 5


class BreakerState(StrEnum):
    """What happens to a call of the server."""

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
        if self._failures < FAILURES_TO_OPEN:
            return BreakerState.CLOSED
        return BreakerState.OPEN if self.delay_s > 0 else BreakerState.HALF_OPEN

    @property
    def delay_s(self) -> float:
        """Seconds until the next try; 0 where it is due."""
        return max(0.0, self._next_try_s - self._clock()) if self._failures else 0.0

    @property
    def refusal(self) -> str | None:
        """Why a call fails at once; None while it may be made."""
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
        backoff_s = min(BACKOFF_MAX_S, BACKOFF_FIRST_S * 2 ** min(self._failures - 1, 16))
        self._next_try_s = self._clock() + backoff_s * random.uniform(0.75, 1.0)
