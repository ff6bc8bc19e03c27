"""What the intervals and the comparison promise, over 1,000 evaluations of each size (docs/evaluation.md)."""

from __future__ import annotations

import numpy as np
import pytest

from mcpagent.evaluate.intervals import clustered_mean, sign_flip_p

pytestmark = pytest.mark.slow
TRIALS = 1000
COMPARISONS = 3000  # the share of 1,000 has a standard error of 0.7 points, of a band of 3
SETTINGS = [(n, k) for n in (40, 120, 240) for k in (1, 2, 4)]
# Success rates of tasks: spread evenly, or a strong policy with some tasks that it hardly ever solves.
SHAPES = {"even": (1.0, 1.0), "strong": (1.2, 0.4)}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k"), SETTINGS)
def test_95_percent_intervals_hold_the_truth_in_93_to_97_of_100_evaluations(
    n: int, k: int, shape: str
) -> None:
    share = covered(n, k, shape)
    print(f"interval, {n} tasks, {k} attempts, {shape}: {share:.1%}")
    assert 0.93 <= share <= 0.97


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("n", "k"), SETTINGS)
def test_a_difference_is_found_between_equal_policies_in_5_of_100_comparisons(
    n: int, k: int, shape: str
) -> None:
    share, exactly = called_different(n, k, shape)
    print(f"compare, {n} tasks, {k} attempts, {shape}: {share:.1%} (exact test: {exactly:.1%})")
    assert 0.035 <= share <= 0.065
    assert exactly <= 0.065, "the exact test never errs upwards"


def covered(n: int, k: int, shape: str) -> float:
    a, b = SHAPES[shape]
    rng = np.random.default_rng([n, k, len(shape)])
    hits = 0
    for trial in range(TRIALS):
        rates = rng.beta(a, b, size=(n, 1))
        values = (rng.random((n, k)) < rates).astype(float)
        metric = clustered_mean(values.tolist(), seed=trial)
        assert metric.ci_low is not None and metric.ci_high is not None
        hits += metric.ci_low <= a / (a + b) <= metric.ci_high
    return hits / TRIALS


def called_different(n: int, k: int, shape: str) -> tuple[float, float]:
    """Shares of the comparisons, by the p value that verdicts go by and by the exact one."""
    rng = np.random.default_rng([n, k, len(shape)])
    rejected = exactly = 0
    for trial in range(COMPARISONS):
        rates = rng.beta(*SHAPES[shape], size=(n, 1))
        left, right = ((rng.random((n, k)) < rates).mean(axis=1) for _ in range(2))
        p_value, mid_p = sign_flip_p(right - left, trial)
        rejected, exactly = rejected + (mid_p < 0.05), exactly + (p_value < 0.05)
    return rejected / COMPARISONS, exactly / COMPARISONS
