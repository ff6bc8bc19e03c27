"""What a run says of a dataset's answers before it plays them, and by which grader they were graded."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.answer_line import ASKED_BEFORE, ASKS_FOR_LINE, stated
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.reward.answer.verdict import GRADER
from mcpagent.run.episodes import open_tasks
from mcpagent.run.evaluate import compare_files, evaluate_model, partial_file, regrade
from mcpagent.run.rollout import collect_rollouts
from mcpagent.run.train import run_training
from mcpagent.storage.datasets import write_jsonl
from tests.run.world import config, dataset, samples, short_run, with_id
from tests.running import mcpagent

UNSTATED: list[tuple[str, dict[str, Any]]] = [
    ("options", {"type": "choice", "value": "a;b", "options": ["a;b", "c"]}),
    ("value", {"type": "name", "value": "two\nlines"}),
    ("value", {"type": "set", "value": []}),
    ("value", {"type": "pairs", "value": {"a": {"b": 1}}}),
    ("value", {"type": "number", "value": 0.123456789}),
]


def record(check: dict[str, Any], *, system: str = ASKS_FOR_LINE, generator: str | None = None) -> Task:
    plan = [{"step": 1, "server": "fmp", "tool": "fmp_get_quote", "params": {"ticker": "A"}}]
    truth = {"task_id": "t1", "tool_sequence": plan, "answer_line": True, "final_answer": check}
    prompt = [{"role": "system", "content": system}, {"role": "user", "content": "Which?"}]
    info = {} if generator is None else {"generator": generator}
    return Task.model_validate({"prompt": prompt, "reward_spec": {"ground_truth": truth}, "extra_info": info})


def opened(tmp_path: Path, *tasks: Task) -> list[str]:
    """Return the notes of a start on these tasks."""
    path, notes = tmp_path / "tasks.jsonl", list[str]()
    write_jsonl(path, tasks)
    open_tasks(config(), path, on_note=notes.append).close()
    return notes


@pytest.mark.parametrize(("key", "check"), UNSTATED)
def test_an_answer_that_no_question_can_state_is_refused_with_its_place_and_key(
    key: str, check: dict[str, Any], tmp_path: Path
) -> None:
    with pytest.raises(UserError) as refused:
        opened(tmp_path, record({"type": "yes_no", "value": True}), with_id(record(check), "t2"))
    assert f"{tmp_path / 'tasks.jsonl'}:2 (t2)" == refused.value.where, refused.value
    assert refused.value.message.startswith(f"final_answer.{key}: ")


@pytest.mark.parametrize("command", ["rollout", "validate"])
def test_commands_refuse_it_before_anything_starts(command: str, tmp_path: Path) -> None:
    path = tmp_path / "tasks.jsonl"
    write_jsonl(path, [record(UNSTATED[0][1])])
    words = {
        "rollout": ("rollout", "--policy", "gold", "--data", path, "--out", tmp_path / "out.jsonl.zst"),
        "validate": ("data", "validate", path, "--no-catalog"),
    }[command]
    done = mcpagent(*words)
    assert done.returncode == 2, done.stderr
    assert "tasks.jsonl:1" in done.stderr and "final_answer.options" in done.stderr
    assert [file.name for file in tmp_path.iterdir()] == ["tasks.jsonl"]


@pytest.mark.parametrize("sentence", ASKED_BEFORE)
def test_a_dataset_made_before_is_opened_with_one_note_that_names_the_command(
    sentence: str, tmp_path: Path
) -> None:
    number = {"type": "number", "value": 3}
    old = [record(number, system=sentence), record(UNSTATED[0][1], system=sentence)]
    old = [with_id(task, f"t{n}") for n, task in enumerate(old * 2)]
    (note,) = opened(tmp_path, *old)
    assert note.startswith(f"{tmp_path / 'tasks.jsonl'}: 2 of 4 questions ")
    assert f"mcpagent data restate {tmp_path / 'tasks.jsonl'} --out FILE" in note


def test_nothing_is_noted_of_what_states_its_form_and_of_datasets_of_others(tmp_path: Path) -> None:
    task = record({"type": "number", "value": 3})
    assert opened(tmp_path, stated(task)) == []
    truth = task.truth.model_copy(update={"answer_line": False})
    spec = task.reward_spec.model_copy(update={"ground_truth": truth})
    without_line = task.model_copy(update={"reward_spec": spec})
    assert opened(tmp_path, without_line) == []
    ours = {"extra_info": {"generator": "explore"}}
    assert len(opened(tmp_path, without_line.model_copy(update=ours))) == 1


def graded_before(path: Path, *keys: str) -> None:
    """Make a document say of its reward what those of the first grader said: nothing of the grader."""
    document = json.loads(path.read_text())
    facts = document
    for key in keys:
        facts = facts[key]
    assert facts["reward"].pop("grader") == GRADER
    path.write_text(json.dumps(document))


def test_an_evaluation_by_another_grader_is_neither_compared_nor_resumed_until_it_is_regraded(
    tmp_path: Path,
) -> None:
    data = dataset(tmp_path / "tasks.jsonl", samples(count=1))
    new, old, again = (tmp_path / f"{name}.json" for name in ("new", "old", "again"))
    for out in (new, old):
        evaluate_model(config(), model="gold", data=data, out=out)
    assert compare_files(old, new).ties == 1
    graded_before(old, "provenance")
    assert compare_files(old, old).ties == 1  # under its own grader
    for pair in ((old, new), (new, old)):
        with pytest.raises(UserError, match="grader 1") as refused:
            compare_files(*pair)
        assert f"mcpagent eval regrade {old} --out" in str(refused.value.remedy)
    before = old.read_bytes()
    with pytest.raises(UserError, match="grader 1") as refused:
        evaluate_model(config(), model="gold", data=data, out=old, resume=True)
    assert f"mcpagent eval regrade {old} --out" in str(refused.value.remedy)
    assert old.read_bytes() == before and not partial_file(old).exists()
    regrade(old, config(), out=again)
    assert compare_files(again, new).ties == 1


def test_a_rollout_says_which_grader_graded_it(tmp_path: Path) -> None:
    data = dataset(tmp_path / "tasks.jsonl", samples(count=1))
    outcome = collect_rollouts(config(), policy="gold", data=data, out=tmp_path / "gold")
    assert outcome.as_json()["provenance"]["reward"]["grader"] == GRADER


def test_a_run_is_resumed_under_its_own_grader_alone(tiny_checkpoint: Path, tmp_path: Path) -> None:
    data = dataset(tmp_path / "data" / "train.jsonl", samples(count=2))
    steps = "training.max_steps=1"
    folder = run_training(short_run(tiny_checkpoint, data, steps), run_dir=tmp_path / "run").run_dir
    graded_before(folder / "manifest.json")
    before = {path: path.read_bytes() for path in folder.glob("*.json*")}
    with pytest.raises(UserError, match="grader 1") as refused:
        run_training(short_run(tiny_checkpoint, data), run_dir=tmp_path / "run", resume=True)
    assert "mcpagent eval regrade" in str(refused.value.remedy)
    assert {path: path.read_bytes() for path in folder.glob("*.json*")} == before
