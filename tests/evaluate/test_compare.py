from __future__ import annotations

from collections.abc import Iterable

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.errors import UserError
from mcpagent.evaluate.compare import Comparison, compare
from mcpagent.evaluate.summary import EvalSummary, summarise
from tests.env.world import make_task
from tests.evaluate.records import trajectory
from tests.run.world import with_id


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


def _by_class(*rates: tuple[str, int, int, int]) -> tuple[EvalSummary, EvalSummary]:
    """Evaluations of classes: name, with @ of servers that are unseen, number, solved by a, solved by b."""
    tasks: list[Task] = []
    sides: tuple[list[Trajectory], list[Trajectory]] = ([], [])
    for kind, n, *solved in rates:
        info = {"class": kind.partition("@")[0], **({"unseen_servers": ["s"]} if "@" in kind else {})}
        of_kind = [
            with_id(make_task(), f"{kind}-{i:03}").model_copy(update={"extra_info": info}) for i in range(n)
        ]
        tasks += of_kind
        for side, right in zip(sides, solved, strict=True):
            side += [trajectory(task.id, success=float(i >= n - right)) for i, task in enumerate(of_kind)]
    a, b = (summarise(side, tasks=tasks) for side in sides)
    return a, b


def _fallen(comparison: Comparison) -> list[str]:
    return [part.name for part in comparison.parts if part.has_fallen]


def test_a_class_that_fell_is_named_however_much_the_whole_has_gained() -> None:
    # The quickstart that passed every verdict: single look-ups from 98 to 74 %, pairs from 10 to 90.
    a, b = _by_class(("simple", 100, 98, 74), ("pairs", 100, 10, 90), ("rare", 4, 4, 0))
    found = compare(a, b)
    assert found.verdict == "b is better" and _fallen(found) == ["class simple"]
    _, _, rare, simple = found.parts
    assert (simple.a.value, simple.b.value, simple.difference.n) == (0.98, 0.74, 100)
    assert simple.difference.value == pytest.approx(-0.24) and simple.adjusted_p is not None
    assert simple.adjusted_p < 0.001 and rare.adjusted_p is None, "no outcome of four tasks decides anything"
    assert [part.name for part in found.parts] == ["all tasks", "class pairs", "class rare", "class simple"]
    assert _fallen(compare(b, a)) == ["all tasks", "class pairs"]


def test_servers_that_training_has_not_seen_are_guarded_too() -> None:
    a, b = _by_class(("single", 60, 30, 55), ("single@unseen", 40, 30, 10))
    assert _fallen(compare(a, b)) == ["training unseen servers"]


def test_what_fell_by_chance_or_in_one_class_of_many_is_not_said_to_have_fallen() -> None:
    assert _fallen(compare(*_by_class(("simple", 100, 98, 95), ("pairs", 100, 10, 90)))) == []
    # Six of six: 1/64 alone, as of all tasks, 13/64 among thirteen parts.
    many = compare(*_by_class(("k0", 6, 6, 0), *((f"k{n}", 6, 6, 6) for n in range(1, 12))))
    assert _fallen(many) == [] and {part.adjusted_p for part in many.parts} == {13 / 64, 1.0}
    # All tasks and the other class are surer, so nothing is left to correct this one for.
    assert compare(*_by_class(("k0", 6, 6, 0), ("k1", 60, 0, 60))).parts[1].adjusted_p == 1 / 64
