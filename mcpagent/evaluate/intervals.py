"""95% intervals and tests for evaluation numbers. The task is the independent unit, never the attempt.

Wilson's interval: E. B. Wilson, JASA 22 (1927) 209. Percentile bootstrap and sign-flip permutation:
Efron and Tibshirani, An Introduction to the Bootstrap (1993), chapters 13 and 15.

The bootstrap is scipy's, over the means of tasks, which is what clusters it. Two things stay our own
(compared with scipy 1.17): `binomtest(...).proportion_ci("wilson")` takes whole numbers of successes, and
tasks whose attempts succeed equally often give fractions; `permutation_test` permutes pairs of indices
instead of drawing signs, so that it takes 5 to 10 times as long and gives another p value than the one on
record for the same seed.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from mcpagent.core.intervals import rate_interval
from mcpagent.core.records import Metric, Record

RESAMPLES = 2000
PERMUTATIONS = 10_000
EXACT_UP_TO = 12  # 2^12 sign patterns are fewer than PERMUTATIONS: enumerate them all
_DRAWN = 500_000  # numbers drawn at once: 4 MB, whatever the number of tasks
_EQUAL = 1e-12  # two sums of the same numbers in another order

FloatArray = NDArray[np.float64]


class PairedDifference(Record):
    """`b` minus `a` over the tasks that both hold. Both p values are two-sided, None without tasks.

    `p_value` is exact: of equal sides it finds at most 5% different at 0.05, and with few tasks far fewer,
    because whole counts of signs jump over 5%. `mid_p` counts what is exactly as far from 0 by half (H. O.
    Lancaster, JASA 56 (1961) 223), and finds about 5% (tests/slow/test_intervals.py)."""

    difference: Metric
    p_value: float | None
    wins: int  # tasks on which b is better
    losses: int
    ties: int
    unpaired: int  # tasks that only one side holds; they are left out
    mid_p: float | None = None


def clustered_mean(values_by_task: Sequence[Sequence[float]], *, seed: int, rate: bool = True) -> Metric:
    """Return the mean over tasks of each task's mean, with an interval that resamples whole tasks.

    Attempts at one task are alike, so counting them as independent would make the interval too narrow.
    `n` is the number of tasks with at least one value. With `rate` the values lie in 0..1, and Wilson's
    interval over tasks takes its place if there is one 0/1 value a task (it is the better interval then),
    or no spread between tasks. A mean that is not a rate needs two tasks for an interval.
    """
    means = _task_means(values_by_task)
    n = len(means)
    if rate and n and (means.min() < 0.0 or means.max() > 1.0):
        raise ValueError("a rate takes values in 0..1; pass rate=False for other means")
    independent = all(len(v) <= 1 for v in values_by_task) and bool(np.isin(means, (0.0, 1.0)).all())
    if n == 0 or (rate and (independent or np.ptp(means) < _EQUAL)):
        return rate_interval(min(float(means.sum()), n), n)
    value = float(means.mean())
    if n == 1:
        return Metric(value=value, ci_low=None, ci_high=None, n=1)
    low, high = percentiles(_resampled_means(means, seed))
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def paired_difference(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], *, seed: int
) -> PairedDifference:
    """Compare rates by task id: bootstrap interval of the mean of `b - a`, sign-flip p value.

    A task counts once, with the mean of its attempts on each side. Where every task differs by the same
    amount, the interval is widened by what `n` tasks without an exception
    still allow (Wilson's bound for 0 out of n).
    """
    deltas = _deltas(a, b)
    wins, losses = int((deltas > _EQUAL).sum()), int((deltas < -_EQUAL).sum())
    p_value, mid_p = sign_flip_p(deltas, seed) if len(deltas) else (None, None)
    return PairedDifference(
        difference=_difference_metric(deltas, seed=seed),
        p_value=p_value,
        mid_p=mid_p,
        wins=wins,
        losses=losses,
        ties=len(deltas) - wins - losses,
        unpaired=len(a.keys() | b.keys()) - len(deltas),
    )


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p values adjusted for their number, in the same order: with those below 0.05 called different,
    the chance that any is called so wrongly is 0.05 at most (S. Holm, Scand. J. Statist. 6 (1979) 65)."""
    adjusted = [0.0] * len(p_values)
    highest = 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[index]))
        adjusted[index] = highest
    return adjusted


def unpaired_difference(a: Sequence[float], b: Sequence[float], *, seed: int) -> Metric:
    """Return the mean of `b` minus that of `a`, each side resampled on its own; an interval needs two values
    on both."""
    n = len(a) + len(b)
    if not a or not b:
        return Metric(value=None, ci_low=None, ci_high=None, n=n)
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    value = float(right.mean() - left.mean())
    if len(a) < 2 or len(b) < 2:
        return Metric(value=value, ci_low=None, ci_high=None, n=n)
    low, high = percentiles(_resampled_means(right, seed) - _resampled_means(left, seed + 1))
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def _deltas(a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]]) -> FloatArray:
    """Return the mean of `b` less that of `a` for each task that both hold, in the order of their ids."""
    shared = sorted(t for t in a.keys() & b.keys() if a[t] and b[t])
    return _task_means([b[t] for t in shared]) - _task_means([a[t] for t in shared])


def _task_means(values_by_task: Sequence[Sequence[float]]) -> FloatArray:
    return np.array([math.fsum(v) / len(v) for v in values_by_task if len(v)], dtype=np.float64)


def _resampled_means(means_N: FloatArray, seed: int) -> FloatArray:
    """Return [RESAMPLES] means of N draws with replacement."""
    from scipy.stats import bootstrap  # more than a second to import: only for what needs it

    rng = np.random.default_rng(seed)
    return bootstrap(
        (means_N,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=_rows_at_once(len(means_N)),
        method="percentile",
        rng=rng,
    ).bootstrap_distribution


def _rows_at_once(n: int) -> int:
    """Return how many rows of `n` numbers are drawn at once; the numbers are the same for any count."""
    return max(1, min(500, _DRAWN // n))


def percentiles(estimates: FloatArray) -> tuple[float, float]:
    """Return the bounds of the 95% interval that resampled estimates give."""
    low, high = np.quantile(estimates, (0.025, 0.975))
    return float(low), float(high)


def _difference_metric(deltas_N: FloatArray, *, seed: int) -> Metric:
    n = len(deltas_N)
    if n == 0:
        return Metric(value=None, ci_low=None, ci_high=None, n=0)
    value = float(deltas_N.mean())
    if np.ptp(deltas_N) < _EQUAL:
        slack = rate_interval(0, n).ci_high or 0.0
        return Metric(value=value, ci_low=max(-1.0, value - slack), ci_high=min(1.0, value + slack), n=n)
    low, high = percentiles(_resampled_means(deltas_N, seed))
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def sign_flip_p(deltas_N: FloatArray, seed: int) -> tuple[float, float]:
    """Return the share of sign patterns whose sum is at least as far from 0, and the same with those exactly
    as far counted by half: all patterns for few tasks, a sample of them otherwise."""
    moved = deltas_N[np.abs(deltas_N) > _EQUAL]
    if not len(moved):
        return 1.0, 1.0
    observed, slack = abs(float(moved.sum())), _EQUAL * len(moved)

    def counts(signs: NDArray[np.floating]) -> tuple[int, int]:
        sums = np.abs(signs @ moved)
        return int((sums >= observed - slack).sum()), int((sums > observed + slack).sum())

    if len(moved) <= EXACT_UP_TO:
        every = np.array(list(itertools.product((-1.0, 1.0), repeat=len(moved))))
        reached, passed = counts(every)
        return reached / len(every), (reached + passed) / 2 / len(every)
    rng = np.random.default_rng(seed)
    reached = passed = 0
    at_once = _rows_at_once(len(moved))
    for start in range(0, PERMUTATIONS, at_once):
        rows = min(at_once, PERMUTATIONS - start)
        flips = rng.integers(0, 2, size=(rows, len(moved))) * 2.0 - 1.0
        more = counts(flips)
        reached, passed = reached + more[0], passed + more[1]
    # The observed pattern is one of the patterns: the estimate is never 0 (Phipson and Smyth 2010).
    return (reached + 1) / (PERMUTATIONS + 1), (reached + passed + 1) / 2 / (PERMUTATIONS + 1)
