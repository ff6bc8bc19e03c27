"""Confidence intervals that need no more than a formula."""

from __future__ import annotations

import math

from mcpagent.core.records import Metric

Z_95 = 1.959963984540054  # standard normal quantile at 0.975
MAX_UNSCORED = 0.02  # share of episodes: with more, what is missing could be the whole difference


def rate_interval(successes: float, n: int) -> Metric:
    """Return a rate of `successes` out of `n` independent trials with Wilson's interval; `n` 0 has no
    value."""
    if n == 0:
        return Metric(value=None, ci_low=None, ci_high=None, n=0)
    if not 0 <= successes <= n:
        raise ValueError(f"{successes} successes out of {n} trials")
    rate = successes / n
    shrink = 1 + Z_95**2 / n
    centre = (rate + Z_95**2 / (2 * n)) / shrink
    half = Z_95 / shrink * math.sqrt(rate * (1 - rate) / n + Z_95**2 / (4 * n**2))
    # Rounding may put a bound 1e-17 on the wrong side of the rate itself (0 of n, n of n).
    return Metric(
        value=rate, ci_low=max(0.0, min(rate, centre - half)), ci_high=min(1.0, max(rate, centre + half)), n=n
    )
