"""`python -m examples.bfcl`: the board's number, from BFCL's own checker."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from examples.bfcl.__main__ import FORCED, NOT_PLAYED, find_package, judge
from examples.bfcl.checker import CATEGORIES, check
from examples.bfcl.package import BfclPackage
from mcpagent.core.intervals import rate_interval
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.running import ROOT
from tests.third_party.bfcl import Call, Oracle, fetch_package

pytestmark = pytest.mark.bfcl
PER_CATEGORY = 2


@pytest.fixture(scope="module")
def package(pytestconfig: pytest.Config) -> BfclPackage:
    assert pytestconfig.cache is not None
    return find_package(fetch_package(pytestconfig.cache.mkdir("third_party") / "bfcl"))


@pytest.fixture(scope="module")
def played(package: BfclPackage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the gold policy's benchmark."""
    out = tmp_path_factory.mktemp("board")
    command = [sys.executable, "-m", "examples.bfcl", "gold", "--package", str(package.root)]
    command += ["--out", str(out), "--max-tasks", str(PER_CATEGORY)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "verdict in 8 of 8 episodes" in done.stdout
    return out


def test_the_gold_policy_has_the_whole_board_and_the_number_is_the_mean_of_four_categories(
    played: Path,
) -> None:
    document = json.loads((played / "board.json").read_text())
    assert set(document["categories"]) == set(CATEGORIES)
    n = len(CATEGORIES) * PER_CATEGORY
    assert document["overall"] == rate_interval(n, n).model_dump(mode="json")
    assert (document["agreed"], document["differing"]) == (n, {})
    evaluation = json.loads((played / "evaluation.json").read_text())
    assert evaluation["provenance"]["temperature"] == 0.0


def test_an_episode_is_judged_as_bfcls_checker_judges_it_and_what_did_not_end_well_is_wrong(
    package: BfclPackage, played: Path
) -> None:
    tasks = {task.id: task for task in read_tasks(played / "tasks" / "tasks.jsonl")}
    gold = {t.task_id: t for t in read_trajectories(played / "evaluation.jsonl.zst", with_tokens=False)}
    bases, others = [
        [t for name, t in gold.items() if ("base" in name) is is_base] for is_base in (True, False)
    ]
    silent = _without_last_calls(bases[0])
    busy = _repeated(bases[1], times=21)
    lost = others[0].model_copy(update={"stop_reason": StopReason.FAILED})
    board = judge(package, [silent, busy, lost, *others[1:]], categories=CATEGORIES)
    assert board.categories["base"] == rate_interval(0, 2)
    assert board.errors["base"][FORCED] == 1
    assert board.errors[_category(lost)] == {NOT_PLAYED: 1}
    assert board.unscored == 1
    # 0, 1, 1 and 1/2 of two tasks each.
    assert board.overall is not None and board.overall.value == pytest.approx((0 + 0.5 + 1 + 1) / 4)
    oracle = Oracle(package, "base")
    assert oracle.verdict(tasks[silent.task_id], _calls(silent))[0] is False


def test_without_a_category_there_is_no_number_of_the_board(package: BfclPackage, played: Path) -> None:
    gold = [
        t
        for t in read_trajectories(played / "evaluation.jsonl.zst", with_tokens=False)
        if _category(t) == "base"
    ]
    board = judge(package, gold, categories=["base"])
    assert board.overall is None
    assert board.categories["base"].value == 1.0


def test_a_call_that_was_refused_and_a_name_of_python_do_nothing_in_the_checker(
    package: BfclPackage, tmp_path: Path
) -> None:
    target = tmp_path / "written"
    evil = {"tool": "open", "arguments": {"file": str(target), "mode": "w"}}
    row = package.rows("base")[0]
    turns = [[[evil], [{"tool": None, "arguments": {}}]] for _ in row["question"]]
    (verdict,) = check(package, [{"id": row["id"], "turns": turns}])
    assert verdict["valid"] is False
    assert not target.exists()


def _category(trajectory: Trajectory) -> str:
    return trajectory.task_id.removeprefix("multi_turn_").rpartition("_")[0]


def _without_last_calls(trajectory: Trajectory) -> Trajectory:
    last = max(turn.user_turn for turn in trajectory.turns if turn.tool_calls)
    kept = [t for t in trajectory.turns if t.user_turn != last or not t.tool_calls]
    return trajectory.model_copy(update={"turns": tuple(kept)})


def _repeated(trajectory: Trajectory, *, times: int) -> Trajectory:
    calling = next(turn for turn in trajectory.turns if turn.tool_calls)
    return trajectory.model_copy(update={"turns": (*[calling] * (times - 1), *trajectory.turns)})


def _calls(trajectory: Trajectory) -> list[list[Call]]:
    turns: list[list[Call]] = [[] for _ in range(1 + max(t.user_turn for t in trajectory.turns))]
    for turn in trajectory.turns:
        turns[turn.user_turn] += [Call(call.tool, call.arguments) for call in turn.tool_calls]
    return turns
