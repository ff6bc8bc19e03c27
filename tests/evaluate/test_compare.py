from __future__ import annotations

from collections.abc import Iterable

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
