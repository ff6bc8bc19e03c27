"""`python -m examples.bfcl`: the board's number and verdicts on single turns, from BFCL's own checkers."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from examples.bfcl.__main__ import CUT, FORCED, NOT_PLAYED, UNPARSED, board_of, find_package, verdicts
from examples.bfcl.checker import check
from examples.bfcl.package import IRRELEVANCE, MULTI_TURN, SINGLE_TURN, BfclPackage
from mcpagent.core.intervals import rate_interval
from mcpagent.core.tools import ParseFailure
from mcpagent.core.trajectory import StopReason, Trajectory
from mcpagent.run.evaluate import compare_files
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.trajectories import read_trajectories
from tests.running import ROOT
from tests.third_party.bfcl import Call, Oracle, fetch_package
from tests.third_party.bfcl_ast import damages, rows

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
    command += [
        "--out",
        str(out),
        "--max-tasks",
        str(PER_CATEGORY),
        "--seed",
        "1",
    ]  # no plan of over 20 steps
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    assert "verdict in 8 of 8 episodes" in done.stdout
    return out


def test_the_gold_policy_has_the_whole_board_and_the_number_is_the_mean_of_four_categories(
    played: Path,
) -> None:
    document = json.loads((played / "board.json").read_text())
    assert set(document["categories"]) == set(MULTI_TURN)
    n = len(MULTI_TURN) * PER_CATEGORY
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
    episodes = [silent, busy, lost, *others[1:]]
    board = board_of(episodes, verdicts(package, episodes), categories=MULTI_TURN)
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
    board = board_of(gold, verdicts(package, gold), categories=["base"])
    assert board.overall is None
    assert board.categories["base"].value == 1.0


def test_a_call_that_was_refused_and_a_name_of_python_do_nothing_in_the_checker(
    package: BfclPackage, tmp_path: Path
) -> None:
    target = tmp_path / "written"
    evil = {"tool": "open", "arguments": {"file": str(target), "mode": "w"}, "refused": False}
    refused = {"tool": "pwd", "arguments": {}, "refused": True}
    row = package.rows("base")[0]
    turns = [[[evil], [refused]] for _ in row["question"]]
    (verdict,) = check(package, [{"id": row["id"], "turns": turns}])
    assert verdict["valid"] is False
    assert not target.exists()


@pytest.fixture(scope="module")
def single_turn(package: BfclPackage, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the single-turn benchmark of the gold policy and of one that never calls."""
    out = tmp_path_factory.mktemp("single_turn")
    for policy in ("gold", "empty"):
        _play_questions(package, policy, out / policy)
    return out


def _play_questions(package: BfclPackage, policy: str, out: Path, *more: str) -> None:
    command = [sys.executable, "-m", "examples.bfcl", policy, "--single-turn", "--max-tasks", "6", *more]
    command += ["--package", str(package.root), "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=ROOT)
    assert done.returncode == 0, done.stderr


def test_who_makes_the_right_calls_is_right_and_silence_is_right_where_nothing_fits(
    single_turn: Path,
) -> None:
    rates = {}
    for policy in ("gold", "empty"):
        document = json.loads((single_turn / policy / "board.json").read_text())
        rates[policy] = {name: metric["value"] for name, metric in document["categories"].items()}
        assert document["overall"]["n"] == 24
    assert rates["gold"] == dict.fromkeys(SINGLE_TURN, 1.0)
    assert rates["empty"] == {**dict.fromkeys(SINGLE_TURN, 0.0), IRRELEVANCE: 1.0}


def test_what_was_played_before_an_interruption_is_not_played_again(
    package: BfclPackage, single_turn: Path, tmp_path: Path
) -> None:
    out = shutil.copytree(single_turn / "gold", tmp_path / "gold")
    (out / "board.json").unlink()
    _play_questions(package, "gold", out, "--resume")
    whole, resumed = (
        list(read_trajectories(at / "evaluation.jsonl.zst")) for at in (single_turn / "gold", out)
    )
    assert [t.turns[0].wall_s for t in resumed] == [t.turns[0].wall_s for t in whole]
    assert (out / "board.json").read_text() == (single_turn / "gold" / "board.json").read_text()


def test_two_models_are_compared_task_by_task_and_by_category_on_bfcls_verdicts(single_turn: Path) -> None:
    found = compare_files(single_turn / "gold" / "judged.json", single_turn / "empty" / "judged.json")
    assert (found.difference.value, found.difference.n, found.unpaired) == (-0.75, 24, 0)
    assert (found.losses, found.ties, found.verdict) == (18, 6, "a is better")
    of_class = {part.name.removeprefix("class "): part for part in found.parts if "class " in part.name}
    differences = {name: part.difference.value for name, part in of_class.items()}
    assert differences == {**dict.fromkeys(SINGLE_TURN, -1.0), IRRELEVANCE: 0.0}


def test_a_single_turn_is_judged_by_the_calls_that_were_written(package: BfclPackage) -> None:
    """Right calls are valid, and BFCL's checker refuses them with one thing wrong."""
    wrong = {
        *("no call", "a call twice", "an unknown call too", "another function", "a call fewer"),
        *("an argument left out", "an unexpected argument", "a number plus one", "a boolean flipped"),
    }
    chosen = [row for row in rows(package.root) if row.category in SINGLE_TURN][1::40]
    assert {row.category for row in chosen} == {*SINGLE_TURN} - {IRRELEVANCE}
    cases = [(row, case) for row in chosen for case in damages(row) if case.kind in {"right", *wrong}]
    assert {case.kind for _, case in cases} == {"right", *wrong}
    said = check(package, [_single(row.id, case.calls) for row, case in cases])
    for (row, case), verdict in zip(cases, said, strict=True):
        assert verdict["valid"] == (case.kind == "right"), (row.id, case, verdict)


def test_a_call_where_nothing_fits_is_wrong_whatever_it_is(package: BfclPackage) -> None:
    name = package.rows(IRRELEVANCE)[0]["id"]
    silent, called = check(package, [_single(name, []), _single(name, [{"f": {}}])])
    assert (silent["valid"], called["valid"]) == (True, False)


@pytest.mark.parametrize("category", SINGLE_TURN)
def test_a_turn_that_does_not_parse_or_was_cut_off_is_wrong_in_every_category(
    package: BfclPackage, single_turn: Path, category: str
) -> None:
    evaluation = single_turn / "gold" / "evaluation.jsonl.zst"
    right = next(t for t in read_trajectories(evaluation, with_tokens=False) if category in t.task_id)
    failure = ParseFailure(raw="{", reason="is not JSON")
    broken = right.turns[0].model_copy(update={"parse_failures": (failure,)})
    for change, error in (
        ({}, None),
        ({"turns": (broken,)}, UNPARSED),
        ({"stop_reason": StopReason.MAX_TOKENS}, CUT),
        ({"stop_reason": StopReason.CONTEXT_OVERFLOW}, CUT),
    ):
        assert verdicts(package, [right.model_copy(update=change)]) == {right.task_id: error}


def _single(name: str, calls: list[dict[str, dict[str, object]]]) -> dict[str, object]:
    """An episode whose one turn made `calls`."""
    step = [{"tool": t, "arguments": a, "refused": False} for call in calls for t, a in call.items()]
    return {"id": name, "turns": [[step]]}


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
