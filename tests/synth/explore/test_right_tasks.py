"""Tasks of a server of which a careless reader makes wrong ones: pages, errors, hidden values, changes."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.synth.explore.changes import Effects
from mcpagent.synth.explore.tasks import explore_dataset
from mcpagent.synth.tasks.prove import examine
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import Rejection
from tests.synth.running import in_own_process, tried

pytestmark = pytest.mark.system
LIBRARY = Path(__file__).with_name("library_server.py")


@pytest.fixture(scope="module")
def log(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("library") / "log"


@pytest.fixture(scope="module")
def made(log: Path) -> tuple[list[Task], Effects]:
    async def run() -> tuple[list[Task], Effects]:
        async with in_own_process("library", LIBRARY, log) as pool:
            learned, effects = await tried(pool, "library")
            data = await explore_dataset(pool, counts={"train": 80}, seed=2, learned=learned)
            return list(data.tasks["train"]), effects

    return asyncio.run(run())


@pytest.fixture(scope="module")
def tasks(made: tuple[list[Task], Effects]) -> list[Task]:
    return made[0]


def said(task: Task) -> str:
    return " ".join([task.prompt[-1].content, *task.truth.user_turns])


def checked(task: Task) -> str:
    """The values that the answer of a task has to say."""
    check = task.truth.final_answer
    return "" if check is None or task.truth.abstain else json.dumps(check.value)


def asked_for(task: Task) -> tuple[str, ...]:
    """What is asked for, and of which things there is a choice."""
    check = task.truth.final_answer
    things = check.options if check is not None and check.type == "choice" else ()
    return (said(task).lower().partition("the ")[2].strip(" .?"), *sorted(map(str, things)))


def test_only_what_a_model_can_read_is_asked(tasks: list[Task]) -> None:
    text = " ".join(map(said, tasks)).lower()
    assert "weight" not in text and "acquired" not in text
    assert not any("411" in checked(task) or "1987-04-05" in checked(task) for task in tasks)


def test_a_page_is_not_counted(tasks: list[Task]) -> None:
    counted = [task for task in tasks if task.extra_info["shape"] in ("counted", "filtered", "extreme")]
    assert not any("book" in said(task) for task in counted)
    assert not any("of all books" in said(task) for task in tasks)


def test_errors_nothing_and_defaults_are_no_answers(tasks: list[Task]) -> None:
    for task in tasks:
        assert "None" not in checked(task) and "counted" not in checked(task)
        assert "branch" not in said(task)
        assert all(step.tool != "find_shelf" for step in task.truth.tool_sequence)


def test_nothing_is_asked_twice_and_by_whichever_tool(tasks: list[Task]) -> None:
    asking = [task for task in tasks if task.extra_info["class"] not in ("state_change", "missing_parameter")]
    goals = Counter(goal for task in asking if (goal := asked_for(task))[0])
    assert max(goals.values()) == 1, goals.most_common(2)


def test_a_fifth_of_the_tasks_change_something_and_are_checked_by_what_is_there(
    made: tuple[list[Task], Effects], log: Path
) -> None:
    tasks, effects = made
    assert {change.spec.name for change in effects.changes} == {"set_status", "add_note", "withdraw"}
    assert not any(line.startswith("email_reader") for line in log.read_text().splitlines())
    changing = [task for task in tasks if task.extra_info["class"] == "state_change"]
    assert len(changing) >= len(tasks) / 5
    assert {task.truth.tool_sequence[-1].tool for task in changing} == {"set_status", "add_note", "withdraw"}
    for task in changing:
        (step,) = task.truth.tool_sequence
        checks = task.truth.state["library"]
        assert any(check.expect for check in checks)
        assert step.params["book_id"] in said(task)
        if step.tool == "add_note":
            (check,) = checks
            assert check.call.arguments == {"book_id": step.params["book_id"]}
            assert check.expect == {"notes": {"contains": {"text": step.params["text"]}, "increased_by": 1}}
        if step.tool == "set_status":
            assert {"status": step.params["status"]} in [check.expect for check in checks]


def test_a_question_says_that_nothing_was_changed(tasks: list[Task]) -> None:
    asking = [task for task in tasks if task.extra_info["class"] in ("single", "parallel", "sequential")]
    assert len(asking) > 10
    for task in asking:
        checks = task.truth.state["library"]
        assert checks and all(check.nothing_else_changed and not check.expect for check in checks)
    watched = {check.call.tool for task in asking for check in task.truth.state["library"]}
    assert watched >= {"get_book", "list_notes"}


def test_a_task_whose_list_has_another_order_in_each_process_is_not_proven(
    tasks: list[Task], tmp_path: Path
) -> None:
    ordered = [task for task in tasks if "books[" in json.dumps(task.truth.model_dump())]

    async def run() -> list[object]:
        async with in_own_process("library", LIBRARY, tmp_path / "log", "--stale") as pool:
            return [await examine(task, CallCache(pool)) for task in ordered]

    assert all(isinstance(outcome, Rejection) for outcome in asyncio.run(run()))
