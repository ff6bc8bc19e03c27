"""What is demonstrated: every class of the data in its share, refusals and questions back too."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from typer.testing import CliRunner

from mcpagent.cli.main import load_app
from mcpagent.config.environment import resource_path
from mcpagent.core.tasks import Task
from mcpagent.core.trajectory import Trajectory
from mcpagent.env.parsing import DIALECT_OF
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.servers.provider import builtin_servers
from mcpagent.storage.datasets import write_jsonl
from mcpagent.storage.trajectories import read_trajectories
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.pool import ToolPool
from mcpagent.train.sft import demonstrate, writable
from tests.synth.explore.worlds import harbour, library
from tests.synth.running import explored, generated

SERVERS = [name for name in BUILTIN_NAMES if name != "python"]


def full() -> ToolPool:
    return ToolPool(builtin_servers(SERVERS, limited=False))


def worlds() -> ToolPool:
    return ToolPool([harbour().served(), library().served()])


def of_templates(count: int) -> Sequence[Task]:
    templates = load_templates(resource_path("templates/full")).for_servers(SERVERS)
    return generated(full(), templates, {"train": count}, seed=5).tasks["train"]


def of_exploring(count: int) -> Sequence[Task]:
    return explored(worlds(), {"train": count, "heldout": 20}, seed=0).tasks["train"]


def classes(tasks: Sequence[Task]) -> Counter[str]:
    return Counter(str(task.extra_info["class"]) for task in tasks)


@pytest.mark.parametrize(
    ("make", "pool", "refusals"),
    [
        (of_templates, full, {"missing_parameter", "missing_function", "irrelevance"}),
        (of_exploring, worlds, {"missing_parameter", "missing_function", "unknown_entity"}),
    ],
)
def test_refusals_and_questions_back_are_demonstrated_and_right_in_the_share_of_the_data(
    make: Callable[[int], Sequence[Task]], pool: Callable[[], ToolPool], refusals: set[str]
) -> None:
    tasks = {task.id: task for task in make(90)}

    async def played() -> tuple[Sequence[Trajectory], dict[str, int]]:
        async with pool() as opened:
            shown = await demonstrate([*tasks.values()], tools=opened, seed=1)
            catalog = opened.tools
            kept = {
                name: sum(1 for _ in writable(shown, tasks, catalog=catalog, tool_format=name))
                for name in DIALECT_OF
            }
            return shown, kept

    shown, kept = asyncio.run(played())
    assert classes([tasks[each.task_id] for each in shown]) == classes([*tasks.values()])
    assert set(kept.values()) == {len(tasks)}, "every tool format can write them all"
    of_refusal = [each for each in shown if tasks[each.task_id].extra_info["class"] in refusals]
    assert {tasks[each.task_id].extra_info["class"] for each in of_refusal} == refusals
    assert all(each.is_success for each in of_refusal)
    for each in of_refusal:
        truth = tasks[each.task_id].truth
        if truth.is_refusal and truth.answer_line:
            assert each.final_answer == "Answer: none"
        if truth.user_turns:
            assert not each.turns[0].tool_calls and each.turns[0].user_message == truth.user_turns[0]


def test_a_warm_start_on_a_part_of_the_data_has_each_class_in_its_share(
    tiny_checkpoint: Path, tmp_path: Path
) -> None:
    tasks = sorted(of_templates(90), key=lambda task: task.extra_info["class"])  # as files joined by `cat`
    write_jsonl(tmp_path / "train.jsonl", tasks)
    settings = {
        "model.name": tiny_checkpoint,
        "data.train": tmp_path / "train.jsonl",
        "tools.builtin": json.dumps(SERVERS),
        "tools.limited": "false",
        "training.max_steps": 1,
        "training.batch_size": 2,
        "training.eval_samples": 0,
        "sft.max_tasks": 30,
        "output_dir": tmp_path,
        "name": "run",
    }
    options = [word for key, value in settings.items() for word in ("--set", f"{key}={value}")]
    done = CliRunner().invoke(load_app("train"), ["--algo", "sft", *options])
    assert done.exit_code == 0, done.output
    file = tmp_path / "run" / "trajectories" / "demonstrations.jsonl.zst"
    by_id = {task.id: task for task in tasks}
    shown = classes([by_id[each.task_id] for each in read_trajectories(file, with_tokens=False)])
    assert shown.total() == 30
    for kind, count in classes(tasks).items():
        assert abs(shown[kind] - count / 3) < 2, (shown, classes(tasks))
