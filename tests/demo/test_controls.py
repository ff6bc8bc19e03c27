"""What comparing attempts is for: the experiment from a start that succeeds and wastes calls."""

from __future__ import annotations

import json
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tools import ToolSpec
from mcpagent.core.trajectory import Trajectory
from mcpagent.demo.controls import Wasteful, run_controls, wasteful
from mcpagent.demo.job import Stages, open_job
from mcpagent.demo.quickstart import run_stages
from mcpagent.reward.terms import DEFAULT_REWARD, regraded
from mcpagent.storage.datasets import read_tasks
from mcpagent.storage.run_folder import RunFolder
from mcpagent.tools.pool import ToolPool
from mcpagent.train.sft import demonstrate
from tests.demo.test_explored import cut_short
from tests.env.world import with_builtins
from tests.run.world import samples

ARMS = {"grpo": "none", "rejection_sampling": "rejection", "best_of_each_group": "best"}


def test_a_wasteful_demonstration_is_right_and_repeats_lookups_alone() -> None:
    tasks = {task.id: task for task in samples(count=40)}

    async def play(pool: ToolPool) -> tuple[list[Trajectory], dict[str, ToolSpec]]:
        return list(await demonstrate(list(tasks.values()), tools=pool, seed=1)), dict(pool.tools)

    played, catalog = with_builtins(play)
    augmentation = wasteful(played, catalog)
    repeats = lookups = 0
    for place, demonstration in enumerate(played * 8):
        again = augmentation.rewritten(demonstration, seed=place)
        assert again == augmentation.rewritten(demonstration, seed=place)
        called = [result.tool for result in demonstration.tool_results]
        added = [result.tool for result in again.tool_results]
        for tool in called:
            added.remove(tool)
        assert "send_slack_message" not in added and set(added) <= set(called)
        # The reward, which knows nothing of how the demonstration was made, counts the same calls.
        graded = regraded(tasks[demonstration.task_id], again, DEFAULT_REWARD)
        assert graded.is_success
        assert graded.term("excess") == len(added)
        assert graded.term("sequence_exact") == float(not added)
        repeats += len(added)
        lookups += sum(tool != "send_slack_message" for tool in called)
    assert lookups > 100 and 0.65 < repeats / lookups < 0.95, "four of five are made twice"
    assert len({len(augmentation.rewritten(played[0], seed=n).turns) for n in range(20)}) > 1


def test_a_call_that_changes_something_is_never_repeated() -> None:
    tasks = [task for task in samples(count=40) if task.truth.state]
    played = list(with_builtins(lambda pool: demonstrate(tasks, tools=pool, seed=1)))
    nothing = Wasteful([])
    assert played and [nothing.rewritten(each, seed=0) for each in played] == played


@pytest.mark.slow
@pytest.mark.system
def test_the_wasteful_experiment_runs_resumes_and_stands_in_the_report(tmp_path: Path) -> None:
    @contextmanager
    def begin(title: str, total: int | None) -> Any:
        yield lambda *_, **__: None

    def job() -> Any:
        made = cut_short(open_job(tmp_path / "run", seed=0, stages=Stages(begin=begin)))
        return replace(made, counts={"train": 40, "validation": 4, "heldout": 6})

    document = run_stages(job(), run_controls)
    assert run_stages(job(), run_controls) == document, "a finished one says the same again"
    rows = {row["name"]: row for row in document["wasteful"]}
    assert list(rows) == ["wasteful start", "GRPO", "rejection sampling", "best of each group"]
    heldout = list(read_tasks(tmp_path / "run" / "data" / "heldout.jsonl"))
    of_one_call = [task for task in heldout if task.truth.complexity == "simple" and not task.truth.abstain]
    assert {row["as_planned"]["n"] for row in rows.values()} == {len(of_one_call)}
    assert 0 < len(of_one_call) < len(heldout)
    assert rows["GRPO"]["as_planned_less_than_grpo"]["value"] == 0.0
    report = Path(document["report"]).read_text(encoding="utf-8")
    assert "Right, but wasteful" in report and all(row["what"] in report for row in rows.values())
    # All arms begin alike and differ in which attempts count.
    place = tmp_path / "run" / "wasteful"
    configs = {name: RunFolder.open(place / name).config_path.read_text(encoding="utf-8") for name in ARMS}
    first = {name: RunFolder.open(place / name).metrics()[0] for name in ARMS}
    assert len({record["reward_mean"] for record in first.values()}) == 1
    for name, control in ARMS.items():
        assert f"control: {control}" in configs[name]
        assert f"{place / 'start'}" in configs[name]
    assert document["tool_calls"]["trajectories"] == document["tool_calls"]["servers"] > 0
    stored = json.loads((tmp_path / "run" / "eval" / "wasteful.json").read_text(encoding="utf-8"))
    assert stored == document["wasteful"]
