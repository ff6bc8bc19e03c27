"""Expected numbers are worked by hand from the definitions of the reward."""

from __future__ import annotations

import pytest

from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.core.trajectory import Completion, StopReason, Trajectory, Turn, total_reward
from mcpagent.reward.record import record_of
from mcpagent.reward.rule import TERM_NAMES, grade_by_rule, turn_terms, with_penalty
from tests.reward.records import QUOTE, SEND, episode, made, make_task, reward, term, turn, values

PLAN_ONLY = make_task(tool_sequence=[QUOTE, SEND])
WITH_ANSWER = make_task(tool_sequence=[QUOTE], final_answer={"type": "number", "value": "${step1.close}"})


def test_the_gold_episode_scores_one() -> None:
    gold = episode(turn(made(ticker="AAPL")), turn(made("send", message="187.2")))
    assert reward(PLAN_ONLY, gold) == pytest.approx(1.0)
    assert values(PLAN_ONLY, gold) == {
        "success": 1.0,
        "partial": 1.0,
        "penalty": 0.0,
        "S": 1.0,
        "coverage": 1.0,
        "answer": None,
        "answer_form": None,
        "must_call": None,
        "state": None,
        "abstain": None,
        "excess": 0.0,
        "invalid_rate": 0.0,
        "stray_writes": 0.0,
        "sequence_exact": 1.0,
    }


def test_half_the_plan_earns_its_coverage() -> None:
    # coverage (1 + 0) / 2 = 0.5; partial = (0.5 * 0 + 0.25 * 0.5) / 0.75 = 1/6; R = 0.4 / 6
    half = episode(turn(made(ticker="AAPL")))
    assert values(PLAN_ONLY, half)["coverage"] == 0.5
    assert reward(PLAN_ONLY, half) == pytest.approx(0.4 / 6)


def test_a_right_name_with_wrong_arguments_earns_a_fifth() -> None:
    wrong = episode(turn(made(ticker="MSFT")), answer="The answer is 187.2.")
    # the reference cannot be resolved, since no call carried out step 1: the answer fails too
    assert values(WITH_ANSWER, wrong)["coverage"] == pytest.approx(0.2)
    assert values(WITH_ANSWER, wrong)["answer"] == 0.0
    assert reward(WITH_ANSWER, wrong) == pytest.approx(0.4 * 0.25 * 0.2)


def test_references_are_resolved_against_what_this_episode_really_got() -> None:
    other = episode(turn(made(ticker="AAPL", structured={"close": 99.5})), turn(made("send", message="99.5")))
    assert values(PLAN_ONLY, other)["S"] == 1.0
    stale = episode(
        turn(made(ticker="AAPL", structured={"close": 99.5})), turn(made("send", message="187.2"))
    )
    assert values(PLAN_ONLY, stale)["S"] == 0.0


def test_a_call_that_uses_a_result_must_come_after_it_in_a_later_step() -> None:
    together = episode(turn(made(ticker="AAPL"), made("send", message="187.2")))
    before = episode(turn(made("send", message="187.2")), turn(made(ticker="AAPL")))
    assert values(PLAN_ONLY, together)["S"] == 0.0
    assert values(PLAN_ONLY, before)["S"] == 0.0


def test_order_is_free_where_no_reference_forces_it() -> None:
    free = make_task(tool_sequence=[QUOTE, {**SEND, "params": {"message": "hi"}}])
    swapped = episode(turn(made("send", message="hi")), turn(made(ticker="AAPL")))
    assert values(free, swapped)["S"] == 1.0
    assert values(free, swapped)["sequence_exact"] == 0.0
    parallel = make_task(
        tool_sequence=[
            {**QUOTE, "parallel_group": 1},
            {**SEND, "params": {"message": "hi"}, "parallel_group": 1},
        ]
    )
    assert values(parallel, swapped)["sequence_exact"] == 1.0


def test_alternatives_count_with_their_own_rules() -> None:
    task = make_task(
        tool_sequence=[
            {
                **QUOTE,
                "alternatives": [
                    {
                        "server": "chat",
                        "tool": "ask",
                        "params": {"text": "AAPL close"},
                        "match": {"text": {"regex": "AAPL"}},
                    }
                ],
            }
        ]
    )
    assert values(task, episode(turn(made("ask", text="close of AAPL?"))))["S"] == 1.0
    assert values(task, episode(turn(made("ask", text="close of MSFT?"))))["S"] == 0.0


def test_where_several_calls_fit_the_assignment_finds_the_one_that_fits_all() -> None:
    either = {**QUOTE, "match": {"ticker": {"any_of": ["MSFT"]}}}
    task = make_task(tool_sequence=[either, {**QUOTE, "step": 2}])
    # Step 1 takes AAPL or MSFT, step 2 only AAPL: taking AAPL for step 1 would leave step 2 without a call.
    both = episode(turn(made(ticker="AAPL"), made(ticker="MSFT")))
    assert values(task, both)["S"] == 1.0


def test_a_retry_after_an_error_carries_out_the_step() -> None:
    retried = episode(
        turn(made(ticker="AAPL", failure=FailureKind.TOOL_ERROR)),
        turn(made(ticker="AAPL")),
        turn(made("send", message="187.2")),
    )
    assert values(PLAN_ONLY, retried)["S"] == 1.0
    assert values(PLAN_ONLY, retried)["excess"] == 1.0


def test_the_penalty_is_capped_and_can_be_switched_off_without_losing_its_value() -> None:
    # other calls: 9 distinct ones, one is free: excess 8, 0.04 * 8 = 0.32, capped at 0.15
    noisy = episode(
        *[turn(made(ticker=f"T{i}")) for i in range(9)], turn(made(ticker="AAPL")), answer="187.2"
    )
    terms = grade_by_rule(WITH_ANSWER, noisy)
    assert term(terms, "excess").value == 8.0
    assert total_reward(terms) == pytest.approx(0.85)
    warm = with_penalty(terms, active=False)
    assert total_reward(warm) == pytest.approx(1.0)
    assert term(warm, "penalty").value == pytest.approx(0.15)
    assert with_penalty(warm, active=True) == terms


def test_invalid_calls_cost_by_their_share() -> None:
    # attempts: gold, unknown tool, broken arguments, unparsed: 3 of 4 invalid; two others, one of them free
    record = episode(
        turn(made("zzz", failure=FailureKind.UNKNOWN_TOOL, server="x"), parse_failures=1),
        turn(made(failure=FailureKind.INVALID_ARGUMENTS, ticker=5)),
        turn(made(ticker="AAPL")),
        answer="187.2",
    )
    assert values(WITH_ANSWER, record)["invalid_rate"] == 0.75
    assert values(WITH_ANSWER, record)["penalty"] == pytest.approx(0.04 * 1 + 0.1 * 0.75)


def test_must_call_is_a_gate_that_takes_a_tool_a_server_or_both() -> None:
    right = episode(turn(made(ticker="AAPL")), answer="187.2")
    for name in ("stocks.quote", "quote", "stocks"):
        task = make_task(success={"must_call_tool": name}, final_answer={"type": "number", "value": 187.2})
        assert values(task, right)["success"] == 1.0
        assert values(task, episode(answer="187.2"))["success"] == 0.0
    elsewhere = make_task(success={"must_call_tool": "chat"}, final_answer={"type": "number", "value": 187.2})
    assert values(elsewhere, right)["success"] == 0.0


def test_must_call_alone_is_a_task() -> None:
    task = make_task(success={"must_call_tool": "stocks"})
    assert reward(task, episode(turn(made(ticker="AAPL")))) == pytest.approx(1.0)
    assert reward(task, episode()) == 0.0


def test_the_end_state_is_a_gate() -> None:
    task = make_task(
        tool_sequence=[QUOTE],
        state={"chat": [{"call": {"tool": "history"}, "expect": {"messages[0].text": "${step1.close}"}}]},
    )

    def state(text: str) -> tuple[ToolResult, ...]:
        return (made("history", structured={"messages": [{"text": text}]})[1],)

    calls = turn(made(ticker="AAPL"))
    assert values(task, episode(calls, state=state("187.2")))["success"] == 1.0
    assert values(task, episode(calls, state=state("188")))["success"] == 0.0
    assert values(task, episode(calls))["success"] is None  # the state was not read: not a zero
    broken = (made("history", failure=FailureKind.TOOL_ERROR)[1],)
    assert values(task, episode(calls, state=broken))["success"] == 0.0


def test_abstaining_means_no_call_and_an_end() -> None:
    task = make_task(abstain=True)
    assert reward(task, episode(answer="None of the tools is needed.")) == pytest.approx(1.0)
    assert reward(task, episode(answer="")) == reward(task, episode(answer=" ... ")) == 0.0
    assert reward(task, episode(turn(made(ticker="AAPL")))) == 0.0
    assert values(task, episode(turn(parse_failures=1)))["success"] == 0.0
    line = {"answer_line": True, "final_answer": {"type": "abstention", "value": "cannot"}}
    assert reward(make_task(abstain=True, **line), episode(answer="Answer: none")) == pytest.approx(1.0)
    assert reward(make_task(abstain=True, **line), episode(answer="Answer: 187.2")) == 0.0
    rambling = episode(turn(), answer=None, stop=StopReason.MAX_TOKENS)
    assert reward(task, rambling) == 0.0


@pytest.mark.parametrize(
    "record",
    [
        episode(turn(made(ticker="AAPL")), answer=None, stop=StopReason.FAILED),
        episode(turn(made(ticker="AAPL")), answer=None, stop=StopReason.TIMEOUT),
        episode(turn(made(ticker="AAPL", failure=FailureKind.TIMEOUT)), answer="187.2"),
        episode(turn(made(ticker="AAPL", failure=FailureKind.CRASHED)), answer="187.2"),
        episode(turn(made(ticker="AAPL")), state=(made("history", failure=FailureKind.SCHEMA)[1],)),
    ],
)
def test_a_failure_of_the_machinery_is_unscored_and_never_a_zero(record) -> None:
    terms = grade_by_rule(WITH_ANSWER, record)
    assert [term.name for term in terms] == list(TERM_NAMES)
    assert all(term.value is None for term in terms)
    assert total_reward(terms) is None
    scored = grade_by_rule(WITH_ANSWER, episode(turn(made(ticker="AAPL")), answer="187.2"))
    assert [term.weight for term in terms] == [term.weight for term in scored]


def test_each_step_reports_what_it_contributed() -> None:
    record = episode(
        turn(made(ticker="MSFT"), made(ticker="MSFT")), turn(made(ticker="AAPL")), turn(), answer="187.2"
    )
    by_turn = [{t.name: t.value for t in terms} for terms in turn_terms(WITH_ANSWER, record)]
    assert by_turn == [
        {"coverage": 0.0, "excess": 1.0, "invalid_rate": 0.0},
        {"coverage": 1.0, "excess": 0.0, "invalid_rate": 0.0},
        {"coverage": 0.0, "excess": 0.0, "invalid_rate": None},
    ]


def test_a_stored_trajectory_is_graded_as_the_episode_was() -> None:
    task = make_task(
        tool_sequence=[QUOTE],
        setup={"chat": [{"tool": "send", "arguments": {}}]},
        state={"chat": [{"call": {"tool": "history"}, "expect": {"n": 1}}]},
    )
    call, result = made(ticker="AAPL")
    set_up, end = made("send")[1], made("history", structured={"n": 1})[1]
    stored = Trajectory(
        id="t#0",
        task_id="t",
        group_id="t",
        turns=(Turn(index=0, completion=Completion(text="x"), tool_calls=(call,), tool_results=(result,)),),
        final_answer="Done.",
        stop_reason=StopReason.ANSWERED,
        state_results=(set_up, end),
    )
    again = Trajectory.model_validate_json(stored.model_dump_json())
    played = episode(turn((call, result)), state=(end,))
    assert grade_by_rule(task, record_of(task, again)) == grade_by_rule(task, played)
    assert values(task, played)["success"] == 1.0


def test_a_malformed_reference_fails_its_step_and_nothing_else() -> None:
    task = make_task(tool_sequence=[QUOTE, {**SEND, "params": {"message": "${step1.}"}}])
    record = episode(turn(made(ticker="AAPL")), turn(made("send", message="187.2")))
    assert values(task, record)["coverage"] == pytest.approx((1.0 + 0.2) / 2)
