"""`mcpagent data export`: conversational rows of gold plans and of the successes of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.storage.datasets import read_tasks, write_jsonl
from mcpagent.storage.packages import is_installed
from mcpagent.storage.run_folder import RunFolder
from mcpagent.storage.trajectories import read_trajectories
from tests.running import ROOT, mcpagent, refused

SAMPLES = ROOT / "data" / "samples" / "train.jsonl"


def export(folder: Path, *words: str | Path) -> dict[str, Any]:
    done = mcpagent("data", "export", *words, "--out", "rows.jsonl", "--json", cwd=folder)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "rows.jsonl").read_text().splitlines()]


def test_a_row_holds_the_played_plan_and_the_schemas_that_were_offered(tmp_path: Path) -> None:
    tasks = list(read_tasks(SAMPLES))
    assert export(tmp_path, SAMPLES)["rows"] == len(tasks)
    for task, row in zip(tasks, rows(tmp_path), strict=True):
        assert list(row) == ["messages", "tools"]
        messages = row["messages"]
        assert [m["content"] for m in messages[:2]] == [m.content for m in task.prompt]
        calls = [call for message in messages for call in message.get("tool_calls", ())]
        assert [call["function"]["name"] for call in calls] == [s.tool for s in task.truth.tool_sequence]
        assert all(isinstance(call["function"]["arguments"], dict) for call in calls)
        results = [message for message in messages if message["role"] == "tool"]
        assert [r["tool_call_id"] for r in results] == [call["id"] for call in calls]
        assert len({call["id"] for call in calls}) == len(calls) and all(len(c["id"]) == 9 for c in calls)
        assert all(result["content"] for result in results)
        assert messages[-1]["role"] == "assistant" and messages[-1]["content"]
        offered = {f"{name}" for name in task.offered_tools or ()}
        named = {tool["function"]["name"] for tool in row["tools"]}
        assert named == {name.partition(".")[2] for name in offered}


def without_answer(task: Task) -> dict[str, Any]:
    record = task.model_dump(mode="json", exclude_unset=True)
    for name in ("final_answer", "reference_answer", "state"):
        record["reward_spec"]["ground_truth"].pop(name, None)
    return record


def test_a_plan_of_which_nobody_says_the_last_message_gives_no_row(tmp_path: Path) -> None:
    first, second = [task for task in read_tasks(SAMPLES) if task.truth.final_answer][:2]
    file = tmp_path / "tasks.jsonl"
    write_jsonl(file, [without_answer(first), second])
    document = export(tmp_path, file)
    assert document["rows"] == 1 and document["left_out"] == {"nothing says what the last message is": 1}


def test_a_task_that_a_judge_grades_is_exported_without_one(tmp_path: Path) -> None:
    task = next(iter(read_tasks(SAMPLES)))
    record = task.model_dump(mode="json", exclude_unset=True)
    record["reward_spec"]["method"] = "rule+judge"
    write_jsonl(tmp_path / "tasks.jsonl", [record])
    assert export(tmp_path, tmp_path / "tasks.jsonl")["rows"] == 1


def test_of_trajectories_the_successes_are_taken_each_once(tmp_path: Path) -> None:
    for policy in ("gold", "empty"):
        words = (
            "rollout",
            "--policy",
            policy,
            "--data",
            SAMPLES,
            "--samples",
            "2",
            "--out",
            f"{policy}.jsonl",
        )
        assert mcpagent(*words, cwd=tmp_path).returncode == 0
    episodes = [*read_trajectories(tmp_path / "gold.jsonl"), *read_trajectories(tmp_path / "empty.jsonl")]
    renamed = [e.model_copy(update={"id": f"{n}-{e.id}"}) for n, e in enumerate(episodes)]
    write_jsonl(tmp_path / "both.jsonl", renamed)
    document = export(tmp_path, "both.jsonl", "--data", SAMPLES)
    successes = sum(bool(episode.is_success) for episode in episodes)
    tasks = len(episodes) // 4
    assert successes >= 2 * tasks and document["episodes"] == 4 * tasks
    assert document["left_out"]["the same conversation again"] == successes - document["rows"] >= tasks
    assert document["left_out"]["no success"] == 4 * tasks - successes
    # A run knows its tasks; its evaluations, which are of held-out ones, are no rows.
    settings = f"data:\n  train: {SAMPLES}\n"
    run = RunFolder.create(tmp_path / "run", config_yaml=settings, manifest={})
    write_jsonl(run.trajectories / "step-000001.jsonl", renamed)
    write_jsonl(
        run.trajectories / "eval_step-000001.jsonl", [renamed[0].model_copy(update={"id": "held-out"})]
    )
    (tmp_path / "rows.jsonl").unlink()
    assert export(tmp_path, "run") == document
    assert "--data FILE" in refused(
        mcpagent("data", "export", "gold.jsonl", "--out", "x.jsonl", cwd=tmp_path)
    )


@pytest.mark.skipif(is_installed("datasets"), reason="datasets is installed")
def test_parquet_without_datasets_is_an_error_before_anything_is_played(tmp_path: Path) -> None:
    said = refused(mcpagent("data", "export", SAMPLES, "--out", "rows.parquet", cwd=tmp_path))
    assert "pip install datasets" in said and ".jsonl" in said and "Gold plans" not in said
    (tmp_path / "chats.parquet").write_bytes(b"PAR1")
    said = refused(mcpagent("convert", "chats.parquet", "--servers", "builtin", cwd=tmp_path))
    assert "pip install datasets" in said and not (tmp_path / "rows.parquet").exists()
