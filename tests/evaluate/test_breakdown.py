"""Tasks and episodes by hand: what each episode is, and the numbers of a few with their arithmetic."""

from __future__ import annotations

from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.evaluate.breakdown import ERRORS, break_down
from tests.evaluate.records import call, result, trajectory, turn

STEP = {"step": 1, "server": "polygon", "tool": "get_aggs", "params": {"ticker": "AAPL"}}
SECOND = {"step": 2, "server": "polygon", "tool": "get_news", "params": {"ticker": "AAPL"}}
RIGHT = call(0, ticker="AAPL")


def task(name: str = "t", *, tools: list[str] | None = None, **truth: Any) -> Task:
    return Task.model_validate(
        {
            "prompt": [{"role": "user", "content": "What did AAPL close at?"}],
            "reward_spec": {"ground_truth": {"task_id": name, "tool_sequence": [STEP], **truth}},
            "extra_info": {"class": "single", **({} if tools is None else {"tools": tools})},
        }
    )


def failed(*calls: Any, name: str = "t", broken: list[str] | None = None, **others: Any) -> Trajectory:
    """An episode without success; each of `calls` is a call, or a call with the failure that it ended in."""
    pairs = [item if isinstance(item, tuple) else (item, None) for item in calls]
    results = [
        result(int(made.id[1:]), failure=failure).model_copy(update={"tool": made.tool})
        for made, failure in pairs
    ]
    turns = [turn(0, "a", calls=[made for made, _ in pairs], results=results, broken=broken or [])]
    return trajectory(name, turns=turns, **{"success": 0.0, **others})


ABSTAIN = task(tool_sequence=[], abstain=True)
CASES: dict[str, tuple[Task, Trajectory]] = {
    "infrastructure": (task(), failed(stop_reason=StopReason.FAILED)),
    "limit": (task(), failed(RIGHT, stop_reason=StopReason.MAX_TURNS)),
    "called_needlessly": (ABSTAIN, failed(RIGHT)),
    "wrong_refusal": (ABSTAIN, failed()),
    "no_tool_use": (task(), failed()),
    "malformed_call": (task(), failed(broken=["{oops"])),
    "out_of_form": (task(), failed(RIGHT, answer=0.0, answer_form=0.0)),
    "wrong_answer": (task(), failed(RIGHT, answer=0.0, answer_form=1.0)),
    "wrong_state": (task(), failed(RIGHT, answer=1.0, state=0.0)),
    "hallucinated_tool": (task(), failed((call(0, "get_oracle"), FailureKind.UNKNOWN_TOOL))),
    "error_not_recovered": (task(), failed((call(0, ticker="APPL"), FailureKind.TOOL_ERROR))),
    "wrong_arguments": (task(), failed(call(0, ticker="MSFT"))),
    "ended_early": (task(tool_sequence=[STEP, SECOND]), failed(RIGHT)),
    "wrong_tool": (task(), failed(call(0, "get_news", ticker="AAPL"))),
    "other": (task(), failed(RIGHT)),
}


@pytest.mark.parametrize("kind", ERRORS)
def test_each_way_to_fail_has_its_name(kind: str) -> None:
    of, episode = CASES[kind]
    assert list(break_down([of], [episode]).errors) == [kind]


def test_a_success_is_no_failure_and_the_first_episode_of_each_kind_is_its_example() -> None:
    tasks = [task(name) for name in ("a", "b", "c")]
    episodes = [
        *(failed(call(0, ticker="MSFT"), name=name, attempt=n) for n in (1, 0) for name in ("c", "b")),
        trajectory("a", turns=[turn(0, "a", calls=[RIGHT], results=[result(0)])]),
    ]
    errors = break_down(tasks, episodes).errors
    assert {kind: (e.episodes, e.example) for kind, e in errors.items()} == {"wrong_arguments": (4, "b-0")}
    assert break_down(tasks, episodes[::-1]).errors == errors


def test_abstention_has_precision_over_the_silent_and_recall_over_those_that_should_be() -> None:
    # Silent: two of three abstaining tasks, and one that should have called. Precision 2/3, recall 2/3.
    abstaining = [task(f"q{i}", tool_sequence=[], abstain=True) for i in range(3)]
    episodes = [
        trajectory("q0", turns=[turn(0, "I cannot.")]),
        trajectory("q1", turns=[turn(0, "I cannot.")]),
        failed(RIGHT, name="q2"),
        failed(name="calls"),
        trajectory("good", turns=[turn(0, "a", calls=[RIGHT], results=[result(0)])]),
    ]
    measures = break_down([*abstaining, task("calls"), task("good")], episodes).measures
    assert (measures["abstention_precision"].value, measures["abstention_precision"].n) == (
        pytest.approx(2 / 3),
        3,
    )
    assert (measures["abstention_recall"].value, measures["abstention_recall"].n) == (pytest.approx(2 / 3), 3)


def test_a_refusal_is_the_answer_none_whatever_was_looked_up_before() -> None:
    # `none` on the line: of two refusals one, which looked first, and of two other tasks one. Precision 1/2,
    # recall 1/2. Silence and `none` in the middle of a message refuse nothing.
    none = {"final_answer": {"type": "none"}, "answer_line": True}
    refusals = [task(name, tool_sequence=[], **none) for name in ("looked", "silent")]
    others = [task(name, answer_line=True) for name in ("gave up", "called")]
    looked = turn(0, "a", calls=[RIGHT], results=[result(0)])
    episodes = [
        trajectory("looked", turns=[looked], final_answer="**Answer:** None."),
        trajectory("silent", success=0.0, final_answer="There is none, I think."),
        trajectory("gave up", success=0.0, final_answer="Answer: none"),
        trajectory("called", turns=[looked], final_answer="Answer: 5"),
    ]
    measures = break_down([*refusals, *others], episodes).measures
    assert [(measures[f"abstention_{name}"].value, measures[f"abstention_{name}"].n) for name in RATES] == [
        (0.5, 2),
        (0.5, 2),
    ]


RATES = ("precision", "recall")


def test_habits_of_calling_are_shares_within_an_episode() -> None:
    two = task("two", tool_sequence=[{**STEP, "params": {"ticker": "AAPL", "limit": 5}}])
    # Four calls: the second repeats the first, the fourth is of a tool that is not offered. Of the two gold
    # arguments the best call has one right. An error came back, and the episode succeeded all the same.
    busy = trajectory(
        "two",
        turns=[
            turn(
                0,
                "a",
                calls=[
                    call(0, ticker="AAPL"),
                    call(1, ticker="AAPL"),
                    call(2, "get_news"),
                    call(3, "oracle"),
                ],
                results=[
                    *(result(n) for n in (0, 1, 2)),
                    result(3, failure=FailureKind.UNKNOWN_TOOL),
                ],
            )
        ],
    )
    clean = trajectory("one", turns=[turn(0, "a", calls=[RIGHT], results=[result(0)])])
    measures = break_down([two, task("one")], [busy, clean]).measures
    assert measures["repeated_call_rate"].value == pytest.approx((1 / 4 + 0) / 2)
    assert measures["hallucinated_call_rate"].value == pytest.approx((1 / 4 + 0) / 2)
    assert measures["argument_accuracy"].value == pytest.approx((1 / 2 + 1) / 2)
    assert (measures["recovery_rate"].value, measures["recovery_rate"].n) == (1.0, 1)


def test_an_argument_from_the_acceptable_set_is_right() -> None:
    wide = task("wide", tool_sequence=[{**STEP, "match": {"ticker": {"any_of": ["Apple"]}}}])
    made = [call(0, ticker="Apple")]
    episode = trajectory("wide", turns=[turn(0, "a", calls=made, results=[result(0)])])
    assert break_down([wide], [episode]).measures["argument_accuracy"].value == 1.0


def test_tasks_are_divided_by_class_server_steps_and_distractors_and_unscored_ones_count_as_failed() -> None:
    offered = ["polygon.get_aggs", *(f"polygon.other{i}" for i in range(5))]
    tasks = [task("a", tools=["polygon.get_aggs"]), task("b", tools=offered), task("c")]
    good = [turn(0, "a", calls=[RIGHT], results=[result(0)])]
    episodes = [
        trajectory("a", turns=good),
        failed(name="b", stop_reason=StopReason.FAILED),
        trajectory("c", turns=good),
    ]
    slices = break_down(tasks, episodes).slices
    assert list(slices) == ["complexity", "class", "server", "training", "steps", "distractors"]
    whole = slices["class"]["single"]
    assert (whole.n_tasks, whole.n_episodes, whole.task_success.value) == (3, 3, pytest.approx(2 / 3))
    assert slices["steps"]["1"] == slices["server"]["polygon"] == whole
    assert {name: part.task_success.value for name, part in slices["distractors"].items()} == {
        "0 to 4": 1.0,
        "5 to 9": 0.0,
        "whole catalog": 1.0,
    }


def test_times_are_the_nearest_ranks() -> None:
    episodes = [
        trajectory(f"t{i}", turns=[turn(0, "a").model_copy(update={"wall_s": float(i)})])
        for i in range(1, 21)
    ]
    times = break_down([task(f"t{i}") for i in range(1, 21)], episodes).episode_latency
    assert (times.p50_s, times.p95_s) == (10.0, 19.0)
