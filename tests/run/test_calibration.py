"""The rows beside an evaluation: reference calls, silence, the untrained model."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from mcpagent.cli.evaluate import app
from mcpagent.config.loader import dump_config
from mcpagent.console import Console
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.evaluate.summary import CalibrationRow, EvalResult, TaskOutcome, summarise
from mcpagent.run.calibration import gold_fault, row_of, stored_base
from mcpagent.run.episodes import open_episodes
from mcpagent.run.evaluate import EvalOutcome, evaluate_model
from mcpagent.storage.run_folder import RunFolder
from tests.evaluate.records import trajectory
from tests.run.world import SHORT, config, dataset, samples, with_id

GREEDY = (SHORT, "rollout.temperature=0")


def evaluated(model: Path | str, data: Path, *settings: str, base: bool = False) -> EvalOutcome:
    chosen = config(*GREEDY, *settings)
    return evaluate_model(chosen, model=str(model), data=data, calibrate=True, base=base)


def rows(outcome: EvalOutcome) -> dict[str, CalibrationRow]:
    return outcome.result.calibration


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return dataset(tmp_path_factory.mktemp("data") / "heldout.jsonl", samples(count=3))


@pytest.fixture(scope="module")
def run(tiny_checkpoint: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run that began with the tiny model and has one checkpoint, that model again."""
    trained = config(SHORT, f"model.name={tiny_checkpoint}")
    folder = tmp_path_factory.mktemp("runs") / "tiny"
    made = RunFolder.create(folder, config_yaml=dump_config(trained), manifest={})
    shutil.copytree(tiny_checkpoint, made.checkpoint_dir(4))
    return made


def test_reference_calls_are_right_everywhere_and_silence_nowhere(data: Path) -> None:
    outcome = evaluated("over-eager", data)
    gold, empty = rows(outcome)["gold"], rows(outcome)["empty"]
    assert (gold.task_success.value, gold.n_episodes, gold.failed, gold.source) == (1.0, 3, (), "played")
    assert (empty.task_success.value, empty.mean_reward.value) == (0.0, 0.0)
    assert len(empty.failed) == 3
    assert set(rows(outcome)) == {"gold", "empty"}, "no run says what this policy began with"
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


def test_what_the_run_measured_of_its_first_weights_is_the_row_of_the_base(
    run: RunFolder, tiny_checkpoint: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    without = evaluated(run.path, data)
    assert "base" not in rows(without)
    assert "no row for the untrained model" in capsys.readouterr().err
    played = evaluated(run.path, data, base=True)
    assert rows(played)["base"].source == str(tiny_checkpoint)
    reference = evaluated(tiny_checkpoint, data)
    assert rows(played)["base"].task_success == reference.result.metrics["task_success"]
    first = reference.result
    stored = run.evaluations / "untrained.json"
    facts = {**first.provenance, "step": 0}
    marked = {
        name: outcome.model_copy(update={"success": (1.0,)}) if index else outcome
        for index, (name, outcome) in enumerate(first.tasks.items())
    }
    stored.write_text(first.model_copy(update={"provenance": facts, "tasks": marked}).model_dump_json())
    row = rows(evaluated(run.path, data))["base"]
    assert row.source == str(stored), "found, not played"
    assert (row.task_success.value, row.task_success.n) == (pytest.approx(2 / 3), 3)
    part = rows(evaluated(run.path, data, "data.max_tasks=1"))["base"]
    assert (part.n_episodes, part.task_success.n) == (1, 1), "over the tasks of this evaluation only"
    capsys.readouterr()
    other = evaluated(run.path, data, "rollout.max_new_tokens=5")
    assert "base" not in rows(other)
    assert "untrained.json has another max new tokens" in capsys.readouterr().err


def test_the_base_of_what_no_run_made_is_not_known(tiny_checkpoint: Path, data: Path, tmp_path: Path) -> None:
    alone = tmp_path / "alone"
    shutil.copytree(tiny_checkpoint, alone)
    with pytest.raises(UserError, match="trained from is not recorded"):
        evaluated(alone, data, base=True)


def test_a_measurement_of_the_first_weights_stands_only_beside_what_was_measured_alike(
    run: RunFolder, data: Path, tmp_path: Path
) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    evaluations = RunFolder.open(tmp_path / "run").evaluations
    evaluations.mkdir(exist_ok=True)
    chosen = config(*GREEDY)
    with open_episodes(
        chosen, policy=str(tmp_path / "run"), samples=1, console=Console(), data=data
    ) as setup:
        facts = setup.provenance(samples=1)
        names = [task.id for task in setup.tasks]
        # One right, one wrong, and one that could not be scored.
        outcomes = {
            name: TaskOutcome(complexity="simple", success=success, reward=success, unscored=1 - len(success))
            for name, success in zip(names, ((1.0,), (0.0,), ()), strict=True)
        }
        measured = summarise([]).with_provenance(facts).model_copy(update={"tasks": outcomes})

        def row_beside(name: str = "untrained", **update: Any) -> CalibrationRow | str | None:
            shutil.rmtree(evaluations)
            evaluations.mkdir()
            stored = {"step": 0, **facts, **update}
            tasks = {key: value for key, value in outcomes.items() if key != update.get("without")}
            result = measured.model_copy(update={"provenance": stored, "tasks": tasks})
            (evaluations / f"{name}.json").write_text(result.model_dump_json())
            return stored_base(setup, facts)

        row = row_beside()
        assert isinstance(row, CalibrationRow)
        assert (row.n_episodes, row.unscored, row.task_success.value) == (3, 1, 0.5)
        assert isinstance(row_beside("warm_start_greedy", step=None), CalibrationRow)
        other = {
            "samples": 2,
            "temperature": 0.5,
            "max_new_tokens": 999,
            "max_turns": 99,
            "catalog_hash": "0",
        }
        for name, value in other.items():
            assert row_beside(**{name: value}) == f"untrained.json has another {name.replace('_', ' ')}"
        elsewhere = "the run measured it on other tasks, or not at all"
        assert row_beside(dataset={**facts["dataset"], "sha256": "0"}) == elsewhere
        assert row_beside(without=names[0]) == elsewhere
        assert row_beside(step=4) == elsewhere, "trained by then"


def test_an_episode_of_the_reference_that_could_not_be_scored_is_not_a_failed_one() -> None:
    scores = {"right": 1.0, "wrong": 0.0, "broken": None}
    played = [
        trajectory(name, success=score).model_copy(
            update={"errors": ("the server is gone",) if score is None else ()}
        )
        for name, score in scores.items()
    ]
    row = row_of(summarise(played), source="played", played=played)
    assert (row.failed, row.unscored, row.error) == (("wrong",), 1, "the server is gone")
    assert "fail 1 of 3 tasks (wrong)" in str(gold_fault({"gold": row}))
    without = row.model_copy(update={"failed": ()})
    expected = "the reference calls of 1 of 3 tasks could not be scored: the server is gone"
    assert gold_fault({"gold": without}) == expected
    assert gold_fault({"gold": without.model_copy(update={"unscored": 0})}) is None
