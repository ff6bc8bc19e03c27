from __future__ import annotations

import pytest

from mcpagent.errors import UserError
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.summary import EvalSummary, summarise
from tests.evaluate.records import trajectory


def test_a_checkpoint_that_solves_more_of_the_same_tasks_is_better() -> None:
    before = summarise([trajectory(f"t{i}", success=float(i < 10)) for i in range(40)])
    after = summarise([trajectory(f"t{i}", success=float(i < 30)) for i in range(40)])
    found = compare(before, after)
    assert (found.a.value, found.b.value, found.difference.value) == (0.25, 0.75, 0.5)
    assert (found.wins, found.losses, found.ties) == (20, 0, 20)
    assert found.verdict == "b is better"
    assert compare(after, before).verdict == "a is better"


def test_two_wins_and_one_loss_show_no_difference() -> None:
    before = summarise([trajectory(f"t{i}", success=float(i == 0)) for i in range(20)])
    after = summarise([trajectory(f"t{i}", success=float(i in (1, 2))) for i in range(20)])
    found = compare(before, after)
    assert found.p_value == 1.0  # of 8 sign patterns of three moves every one sums to at least 1
    assert found.verdict == "no difference shown"


def test_values_are_taken_over_the_shared_tasks_only() -> None:
    before = summarise([trajectory("x", success=0.0), trajectory("only before", success=1.0)])
    after = summarise([trajectory("x", success=1.0)])
    found = compare(before, after)
    assert (found.a.value, found.a.n, found.unpaired) == (0.0, 1, 1)


def test_one_complexity_or_the_reward_can_be_compared() -> None:
    before = summarise([trajectory("s", success=1.0), trajectory("c", complexity="complex", success=0.0)])
    after = summarise([trajectory("s", success=1.0), trajectory("c", complexity="complex", success=1.0)])
    assert compare(before, after, complexity="complex").difference.value == 1.0
    assert compare(before, after, complexity="simple").difference.value == 0.0
    assert compare(before, after, measure="reward").difference.value == pytest.approx(0.5)


def test_evaluations_without_a_shared_task_are_refused_with_the_remedy() -> None:
    with pytest.raises(UserError, match="share no scored task") as error:
        compare(summarise([trajectory("x")]), summarise([trajectory("y")]))
    assert "eval checkpoint" in (error.value.remedy or "")


def scored(successes: int, failures: int, *, lost: int = 0) -> EvalSummary:
    """One attempt at each of so many tasks; the lost ones come last."""
    outcomes = [1.0] * successes + [0.0] * failures + [None] * lost
    return summarise([trajectory(f"t{i}", success=outcome) for i, outcome in enumerate(outcomes)])


def test_of_two_equal_policies_the_one_whose_failures_dropped_out_is_not_called_better() -> None:
    honest, flattered = scored(30, 30), scored(30, 15, lost=15)
    for a, b in ((honest, flattered), (flattered, honest)):
        found = compare(a, b)
        assert found.verdict == "no verdict"
        assert found.why_no_verdict is not None and "15 of the 60 episodes" in found.why_no_verdict
        assert found.difference_all.value == 0.0, "with what is missing counted as failed they are equal"
        assert (found.a_all.value, found.b_all.value) == (0.5, 0.5)
    found = compare(honest, flattered)
    assert (found.a_count.unscored, found.b_count.unscored, found.b_count.episodes) == (0, 15, 60)


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [
        (scored(10, 90), scored(90, 10), "b is better"),
        (scored(10, 88, lost=2), scored(90, 8, lost=2), "b is better"),  # 2 % each
        (scored(10, 87, lost=3), scored(90, 7, lost=3), "no verdict"),  # above
        (scored(10, 89, lost=1), scored(90, 10), "no verdict"),  # the counts differ
        (scored(10, 90), scored(90, 9, lost=1), "no verdict"),
    ],
)
def test_a_verdict_needs_few_unscored_episodes_and_as_many_on_both_sides(
    a: EvalSummary, b: EvalSummary, verdict: str
) -> None:
    found = compare(a, b)
    assert found.verdict == verdict
    assert (found.why_no_verdict is None) == (verdict != "no verdict")


def test_the_counts_are_those_of_the_complexity_that_is_compared() -> None:
    lost = [trajectory(f"c{i}", complexity="complex", success=None) for i in range(5)]
    one = summarise([*(trajectory(f"s{i}", success=0.0) for i in range(20)), *lost])
    two = summarise([*(trajectory(f"s{i}", success=1.0) for i in range(20)), *lost])
    assert compare(one, two).verdict == "no verdict"
    assert compare(one, two, complexity="simple").verdict == "b is better"
