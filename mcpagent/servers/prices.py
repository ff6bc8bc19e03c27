"""Figures of a price series."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from itertools import accumulate, pairwise

from mcpagent.servers.builtin import Answer


class PriceAnalysis(Answer):
    """Shares, not percent: 0.05 is 5 %. `max_drawdown` is the largest fall from a peak, as a positive share;
    the volatility is that of the returns of one period, times the square root of the periods of a year."""

    n_prices: int
    total_return: float
    mean_return: float
    best_return: float
    worst_return: float
    annual_volatility: float
    max_drawdown: float


def analyse(prices: Sequence[float], *, periods_per_year: int) -> PriceAnalysis:
    """Of at least three positive prices, oldest first; simple returns, sample standard deviation (n - 1)."""
    returns = [after / before - 1 for before, after in pairwise(prices)]
    peaks = accumulate(prices, max)
    return PriceAnalysis(
        n_prices=len(prices),
        total_return=_rounded(prices[-1] / prices[0] - 1),
        mean_return=_rounded(statistics.fmean(returns)),
        best_return=_rounded(max(returns)),
        worst_return=_rounded(min(returns)),
        annual_volatility=_rounded(statistics.stdev(returns) * math.sqrt(periods_per_year)),
        max_drawdown=_rounded(max(1 - price / peak for price, peak in zip(prices, peaks, strict=True))),
    )


def _rounded(value: float) -> float:
    return round(value, 6)
