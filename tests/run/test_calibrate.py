"""`data validate --calibrate`: tasks are kept where a policy sometimes succeeds and sometimes does not."""

from __future__ import annotations

import json
from pathlib import Path

from mcpagent.console import Console
from mcpagent.core.tasks import Task
from mcpagent.run.rollout import calibrate_file
from mcpagent.storage.datasets import read_tasks
from tests.env.world import make_task
from tests.run.world import config, dataset, samples, with_id
from tests.running import mcpagent

SAMPLES = 4


def asking_for(name: str, pattern: str) -> Task:
    """Solved by any answer that the pattern is found in."""
    check = {"type": "regex", "value": pattern}
    return with_id(make_task(final_answer=check, reference_answer="-", tools=["fmp.fmp_get_quote"]), name)


def given() -> list[Task]:
    # An untrained model draws from 512 tokens alike, one of which ends the answer: of answers of at most 350
    # tokens about half end in time, and count. A word of forty letters is in none of them.
    return [asking_for("never", "[a-z]{40}"), *(asking_for(f"ends-{n}", ".*") for n in range(4))]


def test_a_model_keeps_what_it_sometimes_solves_with_how_often(tiny_checkpoint: Path, tmp_path: Path) -> None:
    before = {task.id: task for task in given()}
    path = dataset(tmp_path / "tasks.jsonl", before.values())
    report = calibrate_file(
        path,
        config=config("rollout.max_new_tokens=350"),
        policy=str(tiny_checkpoint),
        samples=SAMPLES,
        console=Console(is_json=True),
    )
    kept = list(read_tasks(path))
    assert (report["tasks"], report["unscored"]) == (5, 0)
    assert report["kept"] == len(kept) == 5 - report["always"] - report["never"] and report["never"] >= 1
    names = [task.id for task in kept]
    assert len(names) >= 2 and "never" not in names
    assert names == [name for name in before if name in names], "in the order of the file"
    for task in kept:
        found = task.extra_info["difficulty"]
        assert 0 < found["successes"] < found["attempts"] == SAMPLES
        assert found["p"] == found["successes"] / SAMPLES  # quarters
        assert found["policy"] == str(tiny_checkpoint)
        rest = {key: value for key, value in task.extra_info.items() if key != "difficulty"}
        assert task.model_copy(update={"extra_info": rest}) == before[task.id]


def test_a_policy_that_always_does_the_same_keeps_nothing(tmp_path: Path) -> None:
    console = Console(is_json=True)
    # Silence is never right: one of the five asks for no call, but it is to be answered.
    for policy, always in (("gold", 5), ("empty", 0)):
        path = dataset(tmp_path / f"{policy}.jsonl", samples(count=5))
        report = calibrate_file(path, config=config(), policy=policy, samples=2, console=console)
        assert (report["always"], report["never"], report["kept"]) == (always, 5 - always, 0)
        assert path.read_text() == ""


def test_a_file_without_a_valid_record_is_reported_and_not_played(tmp_path: Path) -> None:
    source, out = tmp_path / "tasks.jsonl", tmp_path / "kept.jsonl"
    source.write_text("{}\n")
    options = [source, "--calibrate", "gold", "--out", out, "--no-catalog", "--json"]
    done = mcpagent("data", "validate", *options)
    assert done.returncode == 2
    document = json.loads(done.stdout)
    assert document["rejects"] == {"schema": 1} and "calibration" not in document
