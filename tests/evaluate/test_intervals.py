"""Oracles: numbers worked by hand, definitions written out, and scipy."""

from __future__ import annotations

import math
import tracemalloc

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from mcpagent.core.intervals import rate_interval
from mcpagent.core.records import Metric
from mcpagent.evaluate.intervals import (
    RESAMPLES,
    clustered_mean,
    paired_difference,
    unpaired_difference,
)


def _interval(metric: Metric) -> tuple[float, float]:
    assert metric.ci_low is not None and metric.ci_high is not None
    return metric.ci_low, metric.ci_high


def test_no_task_gives_no_value_instead_of_zero() -> None:
    empty = Metric(value=None, ci_low=None, ci_high=None, n=0)
    assert rate_interval(0, 0) == empty
    assert clustered_mean([], seed=0) == empty
    assert clustered_mean([[], []], seed=0) == empty


def test_tasks_without_values_are_left_out_of_n() -> None:
    metric = clustered_mean([[1.0, 0.0], [], [0.0, 0.0]], seed=0)
    assert (metric.value, metric.n) == (0.25, 2)


def test_one_binary_value_a_task_uses_wilson() -> None:
    assert clustered_mean([[1.0]] * 8 + [[0.0]] * 2, seed=0) == rate_interval(8, 10)


@pytest.mark.parametrize("value", [0.0, 1.0])
def test_unanimous_tasks_still_get_an_interval_as_wide_as_their_number_allows(value: float) -> None:
    metric = clustered_mean([[value] * 8] * 20, seed=0)
    assert metric == rate_interval(20 * value, 20)
    low, high = _interval(metric)
    assert high - low > 0.1


def test_one_task_says_nothing_about_the_spread_of_a_mean_that_is_no_rate() -> None:
    metric = clustered_mean([[3.0, 4.0]], seed=0, rate=False)
    assert (metric.value, metric.ci_low, metric.ci_high, metric.n) == (3.5, None, None, 1)


def test_a_rate_outside_0_to_1_is_refused() -> None:
    with pytest.raises(ValueError, match="rate=False"):
        clustered_mean([[3.0], [1.0]], seed=0)


@given(
    values=st.lists(st.lists(st.sampled_from([0.0, 1.0]), max_size=4), max_size=12),
    seed=st.integers(0, 2**31),
)
def test_interval_holds_the_value_stays_in_range_and_repeats(values: list[list[float]], seed: int) -> None:
    metric = clustered_mean(values, seed=seed)
    assert metric == clustered_mean(values, seed=seed)
    if metric.value is None:
        assert metric.n == 0
    else:
        low, high = _interval(metric)
        assert 0.0 <= low <= metric.value <= high <= 1.0


def test_five_wins_in_five_tasks_have_a_p_value_of_two_in_thirty_two() -> None:
    # Of the 2^5 sign patterns only all-plus and all-minus reach the observed sum.
    a = {f"t{i}": [0.0] for i in range(5)}
    b = {f"t{i}": [1.0] for i in range(5)}
    result = paired_difference(a, b, seed=0)
    assert (result.p_value, result.mid_p) == (pytest.approx(2 / 32), pytest.approx(1 / 32))
    assert (result.wins, result.losses, result.ties, result.unpaired) == (5, 0, 0, 0)
    # All five moved by 1: the lower bound allows what 0 exceptions in 5 allow, z^2 / (5 + z^2) = 0.434482.
    assert _interval(result.difference) == pytest.approx((1 - 0.434482, 1.0), abs=1e-6)


def test_sign_flip_p_agrees_with_the_binomial_for_many_equal_moves() -> None:
    # 30 tasks moved by one: 21 up, 9 down. Two-sided sign test: 2 * P(Bin(30, 1/2) >= 21).
    exact = 2 * sum(math.comb(30, k) for k in range(21, 31)) / 2**30
    a = {f"t{i}": [float(i >= 21)] for i in range(30)}
    b = {f"t{i}": [float(i < 21)] for i in range(30)}
    result = paired_difference(a, b, seed=3)
    assert result.p_value == pytest.approx(exact, abs=0.01)  # 10 000 draws: standard error 0.002
    # The mid-p leaves out half of what is exactly as far: P(Bin(30, 1/2) = 21), from either side.
    assert result.mid_p == pytest.approx(exact - math.comb(30, 21) / 2**30, abs=0.01)


def test_equal_sides_show_no_difference() -> None:
    a = {f"t{i}": [1.0, 0.0] for i in range(40)}
    result = paired_difference(a, a, seed=0)
    assert (result.difference.value, result.p_value, result.ties) == (0.0, 1.0, 40)
    low, high = _interval(result.difference)
    assert low < 0.0 < high


def test_only_shared_tasks_are_paired_and_the_rest_is_counted() -> None:
    result = paired_difference(
        {"x": [0.0], "only_a": [1.0], "unscored": []}, {"x": [1.0], "only_b": [0.0]}, seed=0
    )
    assert (result.difference.n, result.unpaired, result.wins) == (1, 3, 1)


def test_no_shared_task_gives_neither_difference_nor_p_value() -> None:
    result = paired_difference({"x": [0.0]}, {"y": [1.0]}, seed=0)
    assert (result.difference.value, result.p_value, result.unpaired) == (None, None, 2)


def test_pairing_removes_what_the_tasks_have_in_common() -> None:
    # Task difficulty spreads widely, the gain is 0.1 everywhere but for a little noise.
    rng = np.random.default_rng(2)
    base = rng.uniform(0.0, 0.8, size=100)
    a = {str(i): [float(v)] for i, v in enumerate(base)}
    b = {str(i): [float(v + 0.1 + rng.normal(0, 0.01))] for i, v in enumerate(base)}
    paired = _interval(paired_difference(a, b, seed=0).difference)
    apart = _interval(unpaired_difference([v[0] for v in a.values()], [v[0] for v in b.values()], seed=0))
    assert paired[1] - paired[0] < 0.1 * (apart[1] - apart[0])
    assert paired[0] > 0.09


def test_unpaired_difference_matches_the_standard_error_of_two_means() -> None:
    rng = np.random.default_rng(4)
    a, b = rng.normal(0.0, 1.0, 200), rng.normal(1.0, 2.0, 300)
    low, high = _interval(unpaired_difference(a.tolist(), b.tolist(), seed=0))
    expected = 2 * 1.96 * math.sqrt(float(a.var()) / 200 + float(b.var()) / 300)
    assert high - low == pytest.approx(expected, rel=0.08)
    assert (low + high) / 2 == pytest.approx(float(b.mean() - a.mean()), abs=0.03)


def test_unpaired_difference_of_single_values_has_no_interval() -> None:
    assert unpaired_difference([1.0], [3.0], seed=0) == Metric(value=2.0, ci_low=None, ci_high=None, n=2)
    assert unpaired_difference([], [3.0], seed=0).value is None


@pytest.mark.parametrize("n", [2, 3, 13, 240, 1001])
def test_an_interval_on_record_is_found_again(n: int) -> None:
    # The definition, row by row: 2000 resamples of the tasks' means, drawn in rows of 500 from the seed.
    values = np.random.default_rng(n).random((n, 3))
    draws = np.random.default_rng(7)
    rows = [draws.integers(0, n, size=(500, n)) for _ in range(4)]
    means = np.concatenate([values.mean(axis=1)[row].mean(axis=1) for row in rows])
    metric = clustered_mean(values.tolist(), seed=7)
    assert _interval(metric) == pytest.approx(tuple(np.quantile(means, [0.025, 0.975])), abs=1e-12)
    assert metric.value == pytest.approx(values.mean(), abs=1e-12)


@pytest.mark.parametrize(("successes", "n"), [(0, 1), (1, 1), (0, 240), (3, 10), (17, 23), (999, 1000)])
def test_wilson_interval_of_whole_numbers_is_that_of_scipy(successes: int, n: int) -> None:
    theirs = stats.binomtest(successes, n).proportion_ci(method="wilson")
    metric = rate_interval(successes, n)
    assert metric.value == successes / n
    assert _interval(metric) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


@pytest.mark.parametrize("n", [2, 5, 9, 12])
def test_the_exact_sign_flip_p_value_is_that_of_scipy(n: int) -> None:
    deltas = np.random.default_rng(n).normal(0.4, 1.0, n)
    theirs = stats.permutation_test(
        (deltas,), lambda x, axis: np.abs(x.sum(axis=axis)), permutation_type="samples", alternative="greater"
    )
    a = {str(i): [0.0] for i in range(n)}
    ours = paired_difference(a, {str(i): [delta] for i, delta in enumerate(deltas)}, seed=0)
    assert ours.p_value == pytest.approx(theirs.pvalue, abs=1e-12)


def test_the_interval_of_many_tasks_is_that_of_one_draw_and_takes_no_more_memory() -> None:
    values = np.random.default_rng(2).random(5_000)
    tracemalloc.start()
    try:
        metric = clustered_mean([[value] for value in values], seed=9)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 20e6, "500 rows of 5,000 numbers are 20 MB, and they are held three times"
    whole = stats.bootstrap(
        (values,),
        np.mean,
        n_resamples=RESAMPLES,
        batch=RESAMPLES // 4,
        method="percentile",
        rng=np.random.default_rng(9),
    ).confidence_interval
    assert (metric.ci_low, metric.ci_high) == (whole.low, whole.high)
