from __future__ import annotations

from collections.abc import Sequence

from mcpagent.checks.environment import check_environment
from mcpagent.core.records import CheckStatus
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from tests.env.world import make_task
from tests.evaluate.records import trajectory
from tests.run.world import with_id

PASS, FAIL, SKIP = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.SKIP


ACT = with_id(make_task(success={"must_call_tool": "fmp"}), "act")
REST = with_id(make_task(), "rest")
GOOD = {
    "gold": [trajectory("act"), trajectory("rest")],
    "empty": [trajectory("act", success=0.0)],
    "over_eager": [trajectory("act", success=0.0), trajectory("rest", success=0.0)],
}


def statuses(tasks: Sequence[Task] = (ACT, REST), **runs: Sequence[Trajectory]) -> list[CheckStatus]:
    return [check.status for check, _ in check_environment(tasks, **{**GOOD, **runs})]


def test_checks_without_a_task_of_their_kind_are_skipped() -> None:
    assert statuses([ACT]) == [PASS, PASS, PASS, SKIP, SKIP]


def test_each_broken_claim_fails_its_own_check() -> None:
    almost = trajectory("act", success=1.0, partial=0.75)  # a reward of 0.6 + 0.4 * 0.75
    assert statuses(gold=[almost, trajectory("rest")]) == [PASS, FAIL, PASS, PASS, PASS]
    assert statuses(empty=[trajectory("act")]) == [PASS, PASS, FAIL, PASS, PASS]
    assert statuses(gold=[trajectory("act"), trajectory("rest", success=0.0)])[3] is FAIL
    assert statuses(over_eager=[trajectory("rest")])[4] is FAIL
    assert statuses([with_id(make_task(user_turns=["x"]), "act")])[0] is FAIL


def test_a_refusal_that_is_an_answer_is_checked_as_one_that_is_silent() -> None:
    none = {"final_answer": {"type": "none"}, "answer_line": True}
    answers_none = with_id(make_task(**none), "rest")
    assert statuses([ACT, answers_none]) == [PASS] * 5
    assert statuses([ACT, answers_none], over_eager=[trajectory("rest")])[4] is FAIL


def test_an_episode_that_was_not_run_or_not_scored_proves_nothing() -> None:
    missing, ids = check_environment([ACT, REST], **{**GOOD, "gold": [trajectory("rest")]})[1]
    assert set(ids) == {"act"}
    assert (missing.status, "act: not run" in missing.detail) == (FAIL, True)
    gold = [trajectory("act", success=None), trajectory("rest")]
    unscored, _ = check_environment([ACT, REST], **{**GOOD, "gold": gold})[1]
    assert (unscored.status, "1 unscored" in unscored.detail) == (FAIL, True)
    assert unscored.remedy
