from __future__ import annotations

import pytest

from mcpagent.errors import UserError
from mcpagent.evaluate.compare import compare
from mcpagent.evaluate.summary import summarise
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
