"""`mcpagent eval benchmark bfcl-multi-turn`: the board's number, from BFCL's own checker."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.evaluate.intervals import rate_interval
from mcpagent.evaluate.summary import summarise
from mcpagent.run.benchmark import FORCED, NOT_PLAYED, BoardResult, find_package, judged
from mcpagent.run.evaluate import EvalOutcome
from mcpagent.servers.bfcl.checker import CATEGORIES, check
from mcpagent.servers.bfcl.package import BfclPackage
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.running import mcpagent
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
    done = mcpagent(
        *("eval", "benchmark", "bfcl-multi-turn", "gold", "--package", package.root, "--out", out),
        *("--max-tasks", str(PER_CATEGORY), "--json"),
    )
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == json.loads((out / "board.json").read_text())
    return out


def test_the_gold_policy_has_the_whole_board_and_the_number_is_the_mean_of_four_categories(
    played: Path,
) -> None:
    document = json.loads((played / "board.json").read_text())
    assert set(document["categories"]) == set(CATEGORIES)
    n = len(CATEGORIES) * PER_CATEGORY
    assert document["overall"] == rate_interval(n, n).model_dump(mode="json")
    assert document["agreement"] == {"agreed": n, "differing": {}}
    assert document["provenance"]["temperature"] == 0.0


def test_an_episode_is_judged_as_bfcls_checker_judges_it_and_what_did_not_end_well_is_wrong(
    package: BfclPackage, played: Path
) -> None:
    tasks = {task.id: task for task in read_tasks(played / "tasks" / "all.jsonl")}
    gold = {t.task_id: t for t in read_trajectories(played / "evaluation.jsonl.zst", with_tokens=False)}
    bases, others = [
        [t for name, t in gold.items() if ("base" in name) is is_base] for is_base in (True, False)
    ]
    silent = _without_last_calls(bases[0])
    busy = _repeated(bases[1], times=21)
    lost = others[0].model_copy(update={"stop_reason": StopReason.FAILED})
    board = _judged(package, [silent, busy, lost, *others[1:]])
    base = board.categories["base"]
    assert base.accuracy == rate_interval(0, 2)
    assert base.errors[FORCED] == 1
    assert board.categories[_category(lost)].errors == {NOT_PLAYED: 1}
    assert board.unscored == 1
    # 0, 1, 1 and 1/2: the categories count alike.
    assert board.overall is not None and board.overall.value == pytest.approx((0 + 0.5 + 1 + 1) / 4)
    oracle = Oracle(package, "base")
    assert oracle.verdict(tasks[silent.task_id], _calls(silent))[0] is False


def test_without_a_category_there_is_no_number_of_the_board(package: BfclPackage, played: Path) -> None:
    gold = [
        t
        for t in read_trajectories(played / "evaluation.jsonl.zst", with_tokens=False)
        if _category(t) == "base"
    ]
    board = _judged(package, gold, categories=["base"])
    assert board.overall is None
    assert board.categories["base"].accuracy.value == 1.0


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


def _judged(
    package: BfclPackage, episodes: list[Trajectory], categories: list[str] | None = None
) -> BoardResult:
    result = summarise(episodes).with_provenance({})
    outcome = EvalOutcome(result=result, path=None, trajectories=None, in_run=None, failure=None)
    path = Path("board.json")
    return judged(package, episodes, categories=categories or CATEGORIES, outcome=outcome, path=path)


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
