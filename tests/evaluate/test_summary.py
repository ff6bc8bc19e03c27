from __future__ import annotations

import itertools

import pytest
from pydantic import ValidationError

from mcpagent.core.intervals import rate_interval
from mcpagent.core.records import Metric
from mcpagent.core.tools import FailureKind
from mcpagent.core.trajectory import StopReason
from mcpagent.evaluate.summary import EvalResult, pass_metrics, summarise
from tests.evaluate.records import call, result, trajectory, turn


def test_unscored_episodes_are_counted_apart() -> None:
    episodes = [
        trajectory("good", success=1.0),
        trajectory("bad", success=0.0),
        trajectory("server died", success=0.0, stop_reason=StopReason.FAILED),
        trajectory("judge was down", success=None),
    ]
    summary = summarise(episodes)
    assert (summary.n_tasks, summary.n_episodes, summary.unscored) == (4, 4, 2)
    assert summary.metrics["task_success"] == rate_interval(1, 4)
    assert summary.metrics["task_success_scored"] == rate_interval(1, 2)
    assert summary.metrics["mean_reward"].n == summary.metrics["mean_turns"].n == 2
    assert summary.stop_reasons == {"answered": 3, "failed": 1}
    assert summary.tasks["server died"].success == ()


def test_no_episode_at_all_has_no_values() -> None:
    summary = summarise([])
    assert summary.metrics["task_success"] == Metric(value=None, ci_low=None, ci_high=None, n=0)
    assert summary.by_complexity == {}


def test_a_term_that_only_some_tasks_have_is_averaged_over_those() -> None:
    with_answer = trajectory("number", answer=1.0, coverage=0.5)
    without = trajectory("no answer asked", answer=None, coverage=1.0)
    metrics = summarise([with_answer, without]).metrics
    assert (metrics["answer_accuracy"].value, metrics["answer_accuracy"].n) == (1.0, 1)
    assert (metrics["coverage"].value, metrics["coverage"].n) == (0.75, 2)


def test_rates_of_calls_are_shares_within_an_episode() -> None:
    # One episode: 3 calls parsed, 1 did not; of 3 results 1 is an error. The other made no call at all.
    busy = trajectory(
        "busy",
        turns=[
            turn(0, "a", calls=[call(0), call(1)], results=[result(0), result(1)], broken=["{oops"]),
            turn(1, "b", calls=[call(2)], results=[result(2, "no such", failure=FailureKind.TOOL_ERROR)]),
            turn(2, "c"),
        ],
        invalid_rate=0.25,
        sequence_exact=0.0,
    )
    silent = trajectory("silent", turns=[turn(0, "I do not know")], invalid_rate=0.0, sequence_exact=1.0)
    metrics = summarise([busy, silent]).metrics
    assert metrics["parse_failure_rate"].value == pytest.approx(1 / 4)
    assert metrics["parse_failure_rate"].n == 1  # a silent episode has no share of calls
    assert metrics["tool_error_rate"].value == pytest.approx(1 / 3)
    assert metrics["invalid_call_rate"].value == pytest.approx(0.125)
    assert metrics["tool_sequence_accuracy"].value == 0.5
    assert metrics["mean_turns"].value == 2.0
    assert metrics["mean_tool_calls"].value == 1.5


def test_mean_reward_is_the_weighted_sum_of_the_terms() -> None:
    # 0.6 * 1 + 0.4 * 0.5 - 0.1 = 0.7 and 0.6 * 0 + 0.4 * 0.25 - 0 = 0.1
    episodes = [
        trajectory("a", success=1.0, partial=0.5, penalty=0.1),
        trajectory("b", success=0.0, partial=0.25, penalty=0.0),
    ]
    assert summarise(episodes).metrics["mean_reward"].value == pytest.approx(0.4)


def test_breakdown_by_complexity_sums_to_the_whole() -> None:
    episodes = [
        trajectory("s", complexity="simple", success=1.0),
        trajectory("m", complexity="moderate", success=1.0),
        trajectory("m2", complexity="moderate", success=0.0, stop_reason=StopReason.FAILED),
        trajectory("c", complexity="complex", success=0.0),
        trajectory("c", complexity="complex", success=1.0, attempt=1),
    ]
    summary = summarise(episodes)
    parts = summary.by_complexity
    assert list(parts) == ["simple", "moderate", "complex"]
    assert [p.task_success.value for p in parts.values()] == [1.0, 0.5, 0.5]
    assert sum(p.n_tasks for p in parts.values()) == summary.n_tasks == 4
    assert sum(p.n_episodes for p in parts.values()) == summary.n_episodes == 5
    assert [p.unscored for p in parts.values()] == [0, 1, 0]


def test_every_task_counts_once_however_many_attempts_it_has() -> None:
    many = [trajectory("often", success=0.0, attempt=i) for i in range(9)]
    assert summarise([*many, trajectory("once", success=1.0)]).metrics["task_success"].value == 0.5


@pytest.mark.parametrize(("n", "c", "k"), [(4, 1, 2), (5, 3, 2), (6, 2, 4), (8, 8, 8), (8, 0, 4)])
def test_pass_at_k_equals_counting_every_choice_of_k_attempts(n: int, c: int, k: int) -> None:
    # Independent slow version: enumerate the choices of k out of n attempts.
    attempts = [1.0] * c + [0.0] * (n - c)
    choices = list(itertools.combinations(attempts, k))
    found = pass_metrics([attempts], seed=0)
    assert found[f"pass@{k}"].value == pytest.approx(sum(max(x) for x in choices) / len(choices))
    assert found[f"pass^{k}"].value == pytest.approx(sum(min(x) for x in choices) / len(choices))


def test_pass_at_k_is_given_for_powers_of_two_and_the_number_of_samples() -> None:
    names = {f"pass{sign}{k}" for sign in "@^" for k in (2, 4, 6)}
    assert set(pass_metrics([[1.0] * 6], seed=0)) == names
    assert pass_metrics([[1.0], [0.0]], seed=0) == {}
    metrics = summarise([trajectory("t", attempt=i, success=float(i == 0)) for i in range(4)]).metrics
    assert metrics["pass@4"].value == 1.0
    assert metrics["task_success"].value == 0.25


def test_a_task_with_too_few_attempts_says_nothing_about_k() -> None:
    found = pass_metrics([[1.0, 0.0, 0.0, 0.0], [1.0]], seed=0)
    assert (found["pass@4"].value, found["pass@4"].n) == (1.0, 1)


def test_order_of_the_episodes_does_not_matter() -> None:
    episodes = [trajectory(f"t{i % 7}", success=float(i % 3 == 0), attempt=i // 7) for i in range(28)]
    assert summarise(episodes) == summarise(list(reversed(episodes)))


def test_the_result_document_survives_json_and_has_the_contracted_fields() -> None:
    result_document = summarise([trajectory("t")]).with_provenance({"data": "held_out.json", "seed": 3})
    document = result_document.model_dump(mode="json")
    assert {"metrics", "by_complexity", "n_tasks", "n_episodes", "unscored", "provenance"} <= set(document)
    assert set(document["metrics"]["task_success"]) == {"value", "ci_low", "ci_high", "n"}
    assert EvalResult.model_validate_json(result_document.model_dump_json()) == result_document


def test_task_success_counts_what_dropped_out_as_failed() -> None:
    episodes = [
        trajectory("good", success=1.0),
        trajectory("half", success=1.0),
        trajectory("half", success=None, attempt=1),
        trajectory("lost", success=None, complexity="complex"),
    ]
    summary = summarise(episodes)
    assert list(summary.metrics)[:2] == ["task_success", "task_success_scored"]
    # By task: 1, 1/2 and 0.
    assert summary.metrics["task_success"].value == pytest.approx(0.5)
    assert summary.metrics["task_success"].n == 3
    assert summary.metrics["task_success_scored"] == rate_interval(2, 2)
    assert summary.by_complexity["simple"].task_success.value == pytest.approx(0.75)
    assert summary.by_complexity["complex"].task_success == rate_interval(0, 1)
    assert summary.by_complexity["complex"].task_success_scored.value is None
    # Of the two attempts at "half" one succeeded and one was lost.
    assert (summary.metrics["pass@2"].value, summary.metrics["pass^2"].value) == (1.0, 0.0)


def test_a_result_of_before_task_success_counted_all_episodes_is_refused() -> None:
    older = summarise([trajectory("t")]).with_provenance({}).model_dump(mode="json") | {"schema_version": 1}
    with pytest.raises(ValidationError, match="schema_version"):
        EvalResult.model_validate(older)
