from __future__ import annotations

import math
from collections.abc import Iterable

import numpy as np
import pytest

from mcpagent.errors import UserError
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.summary import EvalSummary, summarise
from tests.evaluate.records import trajectory


def evaluated(outcomes: Iterable[float | None]) -> EvalSummary:
    """One attempt at each task, with these successes."""
    return summarise([trajectory(f"t{i}", success=outcome) for i, outcome in enumerate(outcomes)])


def test_a_checkpoint_that_solves_more_of_the_same_tasks_is_better() -> None:
    before, after = evaluated([1.0] * 10 + [0.0] * 30), evaluated([1.0] * 30 + [0.0] * 10)
    found = compare(before, after)
    assert (found.a.value, found.b.value, found.difference.value) == (0.25, 0.75, 0.5)
    assert (found.wins, found.losses, found.ties) == (20, 0, 20)
    assert found.verdict == "b is better"
    assert compare(after, before).verdict == "a is better"


def test_two_wins_and_one_loss_show_no_difference() -> None:
    found = compare(evaluated([1.0, 0.0, 0.0] + [0.0] * 17), evaluated([0.0, 1.0, 1.0] + [0.0] * 17))
    assert found.exact_p == 1.0  # of 8 sign patterns of three moves every one sums to at least 1
    assert found.p_value == (2 + 6 / 2) / 8  # two of them to 3; of those that sum to 1, the half
    assert found.verdict == "no difference shown"


def test_values_are_taken_over_the_shared_tasks_only() -> None:
    before = summarise([trajectory("x", success=0.0), trajectory("only before", success=1.0)])
    after = summarise([trajectory("x", success=1.0)])
    found = compare(before, after)
    assert (found.a.value, found.a.n, found.unpaired) == (0.0, 1, 1)


def test_one_complexity_can_be_compared() -> None:
    before = summarise([trajectory("s", success=1.0), trajectory("c", complexity="complex", success=0.0)])
    after = summarise([trajectory("s", success=1.0), trajectory("c", complexity="complex", success=1.0)])
    assert compare(before, after, complexity="complex").difference.value == 1.0
    assert compare(before, after, complexity="simple").difference.value == 0.0


def test_evaluations_without_a_shared_task_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="share no task") as error:
        compare(summarise([trajectory("x")]), summarise([trajectory("y")]))
    assert "eval checkpoint" in (error.value.remedy or "")


def scored(successes: int, failures: int, *, lost: int = 0) -> EvalSummary:
    """One attempt at each of so many tasks; the lost ones come last."""
    return evaluated([1.0] * successes + [0.0] * failures + [None] * lost)


def test_of_two_equal_policies_the_one_whose_failures_dropped_out_is_not_called_better() -> None:
    honest, flattered = scored(30, 30), scored(30, 15, lost=15)
    for a, b in ((honest, flattered), (flattered, honest)):
        found = compare(a, b)
        assert found.verdict == "no verdict"
        assert found.why_no_verdict is not None and "15 of the 60 episodes" in found.why_no_verdict
        assert found.difference.value == 0.0, "with what is missing counted as failed they are equal"
        assert (found.a.value, found.b.value) == (0.5, 0.5)
    found = compare(honest, flattered)
    # 30 of 45 tasks are scored on both sides and succeed on both.
    assert (found.a_scored.value, found.b_scored.value) == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert (found.difference_scored.value, found.difference_scored.n) == (0.0, 45)
    assert (found.a_count.unscored, found.b_count.unscored, found.b_count.episodes) == (0, 15, 60)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        ((10, 90, 0), (90, 10, 0), "b is better"),
        ((10, 88, 2), (90, 8, 2), "b is better"),  # 2 % each
        ((10, 87, 3), (90, 7, 3), "no verdict"),  # above
        ((10, 89, 1), (90, 10, 0), "no verdict"),  # the counts differ
        ((10, 90, 0), (90, 9, 1), "no verdict"),
    ],
)
def test_a_verdict_needs_few_unscored_episodes_and_as_many_on_both_sides(
    a: tuple[int, int, int], b: tuple[int, int, int], verdict: str
) -> None:
    """`a` and `b`: how many tasks succeed, fail and are lost."""
    found = compare(*(scored(good, bad, lost=lost) for good, bad, lost in (a, b)))
    assert found.verdict == verdict
    assert (found.why_no_verdict is None) == (verdict != "no verdict")


def test_the_counts_are_those_of_the_complexity_that_is_compared() -> None:
    lost = [trajectory(f"c{i}", complexity="complex", success=None) for i in range(5)]
    one = summarise([*(trajectory(f"s{i}", success=0.0) for i in range(20)), *lost])
    two = summarise([*(trajectory(f"s{i}", success=1.0) for i in range(20)), *lost])
    assert compare(one, two).verdict == "no verdict"
    assert compare(one, two, complexity="simple").verdict == "b is better"


@pytest.mark.system
def test_as_many_tasks_as_are_said_to_be_needed_find_the_difference_in_4_of_5_comparisons() -> None:
    # b wins 12 % and loses 4 % of the tasks: 8 points. Played anew with the number that is said.
    rng = np.random.default_rng(5)

    def sides(n: int) -> tuple[EvalSummary, EvalSummary]:
        kinds = rng.choice(4, size=n, p=[0.12, 0.04, 0.5, 0.34])
        return evaluated(float(k in (1, 2)) for k in kinds), evaluated(float(k in (0, 2)) for k in kinds)

    a, b = _fixed(60, 20, 250, 170)
    comparison = compare(a, b)
    assert comparison.needed is not None and comparison.difference.value == pytest.approx(0.08)
    # Their spread is sqrt(0.16 - 0.08^2) = 0.3919; ((1.96 + 0.8416) * 0.3919 / 0.08)^2 = 188.4.
    assert comparison.needed.for_seen in (189, 190)
    assert comparison.needed.smallest == pytest.approx(2.8016 * 0.3919 / 500**0.5, rel=0.01)
    hits = sum(compare(*sides(comparison.needed.for_seen)).verdict == "b is better" for _ in range(60))
    assert 0.65 <= hits / 60 <= 0.95


def _fixed(wins: int, losses: int, both: int, neither: int) -> tuple[EvalSummary, EvalSummary]:
    a = [0.0] * wins + [1.0] * losses + [1.0] * both + [0.0] * neither
    b = [1.0] * wins + [0.0] * losses + [1.0] * both + [0.0] * neither
    return evaluated(a), evaluated(b)


def test_equal_results_need_no_number_of_tasks_and_one_task_tells_of_none() -> None:
    same = _fixed(0, 0, 20, 20)
    needed = compare(*same).needed
    assert needed is not None and needed.for_seen is None
    # No exception in 40 tasks: Wilson's bound 3.8415 / 43.8415 is the most that may differ.
    assert needed.smallest == pytest.approx(2.8015852 * math.sqrt(3.8414588 / 43.8414588 / 40))
    assert compare(*_fixed(1, 0, 0, 0)).needed is None
