from __future__ import annotations

from collections.abc import Sequence

from mcpagent.checks.environment import check_environment
from mcpagent.core.records import CheckStatus
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import RewardTerm, StopReason, Trajectory
from tests.env.world import make_task

PASS, FAIL, SKIP = CheckStatus.PASS, CheckStatus.FAIL, CheckStatus.SKIP


def named(task: Task, name: str) -> Task:
    truth = task.truth.model_copy(update={"task_id": name})
    return task.model_copy(
        update={"reward_spec": task.reward_spec.model_copy(update={"ground_truth": truth})}
    )


def scored(task_id: str, success: float | None, reward: float = 1.0) -> Trajectory:
    partial = None if success is None else (reward - 0.6 * success) / 0.4
    return Trajectory(
        id=f"{task_id}#0",
        task_id=task_id,
        group_id=task_id,
        stop_reason=StopReason.ANSWERED,
        reward_terms=(
            RewardTerm(name="success", value=success, weight=0.6),
            RewardTerm(name="partial", value=partial, weight=0.4),
        ),
    )


ACT = named(make_task(success={"must_call_tool": "fmp"}), "act")
REST = named(make_task(), "rest")
GOOD = {
    "gold": [scored("act", 1.0), scored("rest", 1.0)],
    "empty": [scored("act", 0.0, 0.0)],
    "over_eager": [scored("act", 0.0, 0.0), scored("rest", 0.0, 0.0)],
}


def statuses(tasks: Sequence[Task] = (ACT, REST), **runs: Sequence[Trajectory]) -> list[CheckStatus]:
    return [check.status for check, _ in check_environment(tasks, **{**GOOD, **runs})]


def test_checks_without_a_task_of_their_kind_are_skipped() -> None:
    assert statuses([ACT]) == [PASS, PASS, PASS, SKIP, SKIP]


def test_each_broken_claim_fails_its_own_check() -> None:
    assert statuses(gold=[scored("act", 1.0, 0.9), scored("rest", 1.0)]) == [PASS, FAIL, PASS, PASS, PASS]
    assert statuses(empty=[scored("act", 1.0)]) == [PASS, PASS, FAIL, PASS, PASS]
    assert statuses(gold=[scored("act", 1.0), scored("rest", 0.0, 0.0)])[3] is FAIL
    assert statuses(over_eager=[scored("rest", 1.0)])[4] is FAIL
    assert statuses([named(make_task(user_turns=["x"]), "act")])[0] is FAIL


def test_an_episode_that_was_not_run_or_not_scored_proves_nothing() -> None:
    missing, ids = check_environment([ACT, REST], **{**GOOD, "gold": [scored("rest", 1.0)]})[1]
    assert set(ids) == {"act"}
    assert (missing.status, "act: not run" in missing.detail) == (FAIL, True)
    gold = [scored("act", None), scored("rest", 1.0)]
    unscored, _ = check_environment([ACT, REST], **{**GOOD, "gold": gold})[1]
    assert (unscored.status, "1 unscored" in unscored.detail) == (FAIL, True)
    assert unscored.remedy
