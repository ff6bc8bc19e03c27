"""The rows that an evaluation is read against: reference calls and silence."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from mcpagent.cli.evaluate import app
from mcpagent.core.tasks import Task
from mcpagent.evaluate.summary import EvalResult
from mcpagent.run.calibration import gold_fault, row_of
from mcpagent.run.evaluate import EvalOutcome, evaluate_model
from tests.evaluate.records import trajectory
from tests.run.world import config, dataset, samples, with_id


def evaluated(model: str, data: Path) -> EvalOutcome:
    return evaluate_model(config(), model=model, data=data, calibrate=True)


def test_reference_calls_are_right_everywhere_and_silence_nowhere(tmp_path: Path) -> None:
    outcome = evaluated("over-eager", dataset(tmp_path / "heldout.jsonl", samples(count=3)))
    gold, empty = outcome.result.calibration["gold"], outcome.result.calibration["empty"]
    assert (gold.task_success.value, gold.n_episodes, gold.failed) == (1.0, 3, ())
    assert (empty.task_success.value, empty.mean_reward.value) == (0.0, 0.0)
    assert len(empty.failed) == 3
    assert outcome.result.n_episodes == 3, "the rows are beside the evaluation, not in it"
    again = EvalResult.model_validate_json(outcome.result.model_dump_json())
    assert again.calibration == outcome.result.calibration


def test_a_task_that_its_own_reference_fails_is_named(tmp_path: Path) -> None:
    wrong = with_id(_with_answer(samples(count=2)[0], "never said by any tool"), "wrong-task")
    data = dataset(tmp_path / "t.jsonl", [wrong, samples(count=2)[1]])
    out = tmp_path / "result.json"
    done = CliRunner().invoke(app, ["model", "empty", "--data", str(data), "--out", str(out)])
    assert done.exit_code == 0, done.output
    assert "the reference calls fail 1 of 2 tasks (wrong-task)" in done.stdout
    gold = EvalResult.model_validate_json(out.read_text()).calibration["gold"]
    assert (gold.task_success.value, gold.failed) == (0.5, ("wrong-task",))
    table = [line for line in done.stdout.splitlines() if "gold: the reference calls" in line]
    assert len(table) == 1 and "50.0 %" in table[0]


def _with_answer(task: Task, text: str) -> Task:
    record = task.model_dump(mode="json", exclude_none=True)
    record["reward_spec"]["ground_truth"]["final_answer"] = {"type": "string", "value": text}
    return Task.model_validate(record)


def test_the_rows_can_be_left_out(tmp_path: Path) -> None:
    data = dataset(tmp_path / "t.jsonl", samples(count=1))
    done = CliRunner().invoke(app, ["model", "empty", "--data", str(data), "--no-calibration", "--json"])
    assert done.exit_code == 0 and EvalResult.model_validate_json(done.stdout).calibration == {}


def test_an_episode_of_the_reference_that_could_not_be_scored_is_not_a_failed_one() -> None:
    scores = {"right": 1.0, "wrong": 0.0, "broken": None}
    played = [
        trajectory(name, success=score).model_copy(
            update={"errors": ("the server is gone",) if score is None else ()}
        )
        for name, score in scores.items()
    ]
    row = row_of(played)
    assert (row.failed, row.unscored, row.error) == (("wrong",), 1, "the server is gone")
    assert "fail 1 of 3 tasks (wrong)" in str(gold_fault({"gold": row}))
    without = row.model_copy(update={"failed": ()})
    expected = "the reference calls of 1 of 3 tasks could not be scored: the server is gone"
    assert gold_fault({"gold": without}) == expected
    assert gold_fault({"gold": without.model_copy(update={"unscored": 0})}) is None
