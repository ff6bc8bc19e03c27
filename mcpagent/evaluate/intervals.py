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

from mcpagent.core.records import Metric, Record

Z_95 = 1.959963984540054  # standard normal quantile at 0.975
RESAMPLES = 2000
PERMUTATIONS = 10_000
EXACT_UP_TO = 12  # 2^12 sign patterns are fewer than PERMUTATIONS: enumerate them all
_CHUNK = 500  # rows drawn at once, so that memory stays near 4 MB for 1000 tasks
_EQUAL = 1e-12  # two sums of the same numbers in another order

FloatArray = NDArray[np.float64]


class PairedDifference(Record):
    """`b` minus `a` over the tasks that both hold. `p_value` is two-sided, None without tasks."""

    difference: Metric
    p_value: float | None
    wins: int  # tasks on which b is better
    losses: int
    ties: int
    unpaired: int  # tasks that only one side holds; they are left out


def rate_interval(successes: float, n: int) -> Metric:
    """A rate of `successes` out of `n` independent trials with Wilson's interval; `n` 0 has no value."""
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


def clustered_mean(values_by_task: Sequence[Sequence[float]], *, seed: int, rate: bool = True) -> Metric:
    """Mean over tasks of each task's mean, with an interval that resamples whole tasks.

    Attempts at one task are alike, so counting them as independent would make the interval too narrow.
    `n` is the number of tasks with at least one value. With `rate` the values lie in 0..1, and Wilson's
    interval over tasks stands in wherever resampling cannot speak: one 0/1 value a task (where it is the
    better interval), or no spread between tasks. A mean that is not a rate needs two tasks for an interval.
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
    low, high = _percentiles(_resampled_means(means, seed))
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def paired_difference(
    a: Mapping[str, Sequence[float]], b: Mapping[str, Sequence[float]], *, seed: int, rate: bool = True
) -> PairedDifference:
    """Compare values by task id: bootstrap interval of the mean of `b - a`, sign-flip p value.

    A task counts once, with the mean of its attempts on each side. Where every task differs by the same
    amount and the values are rates, the interval is widened by what `n` tasks without an exception
    still allow (Wilson's bound for 0 out of n).
    """
    shared = sorted(t for t in a.keys() & b.keys() if a[t] and b[t])
    unpaired = len(a.keys() | b.keys()) - len(shared)
    deltas = _task_means([b[t] for t in shared]) - _task_means([a[t] for t in shared])
    wins, losses = int((deltas > _EQUAL).sum()), int((deltas < -_EQUAL).sum())
    return PairedDifference(
        difference=_difference_metric(deltas, seed=seed, rate=rate),
        p_value=_sign_flip_p(deltas, seed) if shared else None,
        wins=wins,
        losses=losses,
        ties=len(shared) - wins - losses,
        unpaired=unpaired,
    )


def unpaired_difference(a: Sequence[float], b: Sequence[float], *, seed: int) -> Metric:
    """Mean of `b` minus mean of `a`, each side resampled on its own; both need two values for an interval."""
    n = len(a) + len(b)
    if not a or not b:
        return Metric(value=None, ci_low=None, ci_high=None, n=n)
    left, right = np.asarray(a, dtype=np.float64), np.asarray(b, dtype=np.float64)
    value = float(right.mean() - left.mean())
    if len(a) < 2 or len(b) < 2:
        return Metric(value=value, ci_low=None, ci_high=None, n=n)
    low, high = _percentiles(_resampled_means(right, seed) - _resampled_means(left, seed + 1))
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def _task_means(values_by_task: Sequence[Sequence[float]]) -> FloatArray:
    return np.array([math.fsum(v) / len(v) for v in values_by_task if len(v)], dtype=np.float64)


def _resampled_means(means_N: FloatArray, seed: int) -> FloatArray:
    """[RESAMPLES] means of N draws with replacement."""
    from scipy.stats import bootstrap  # more than a second to import: only for what needs it

    rng = np.random.default_rng(seed)
    return bootstrap(
        (means_N,), np.mean, n_resamples=RESAMPLES, batch=_CHUNK, method="percentile", rng=rng
    ).bootstrap_distribution


def _percentiles(estimates: FloatArray) -> tuple[float, float]:
    low, high = np.quantile(estimates, (0.025, 0.975))
    return float(low), float(high)


def _difference_metric(deltas_N: FloatArray, *, seed: int, rate: bool) -> Metric:
    n = len(deltas_N)
    if n == 0:
        return Metric(value=None, ci_low=None, ci_high=None, n=0)
    value = float(deltas_N.mean())
    if rate and np.ptp(deltas_N) < _EQUAL:
        slack = rate_interval(0, n).ci_high or 0.0
        return Metric(value=value, ci_low=max(-1.0, value - slack), ci_high=min(1.0, value + slack), n=n)
    if n == 1:
        return Metric(value=value, ci_low=None, ci_high=None, n=1)
    low, high = _percentiles(_resampled_means(deltas_N, seed))
    return Metric(value=value, ci_low=low, ci_high=high, n=n)


def _sign_flip_p(deltas_N: FloatArray, seed: int) -> float:
    """Share of sign patterns whose sum is at least as far from 0: exact for few tasks, sampled otherwise."""
    moved = deltas_N[np.abs(deltas_N) > _EQUAL]
    if not len(moved):
        return 1.0
    observed = abs(float(moved.sum())) - _EQUAL * len(moved)
    if len(moved) <= EXACT_UP_TO:
        signs = np.array(list(itertools.product((-1.0, 1.0), repeat=len(moved))))
        return float((np.abs(signs @ moved) >= observed).mean())
    rng = np.random.default_rng(seed)
    extreme = 0
    for start in range(0, PERMUTATIONS, _CHUNK):
        rows = min(_CHUNK, PERMUTATIONS - start)
        flips = rng.integers(0, 2, size=(rows, len(moved))) * 2.0 - 1.0
        extreme += int((np.abs(flips @ moved) >= observed).sum())
    # The observed pattern is one of the patterns: the estimate is never 0 (Phipson and Smyth 2010).
    return (extreme + 1) / (PERMUTATIONS + 1)
