"""Tasks that add something: what is tried, where, and what the end state has to be."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolAnnotations, ToolSpec
from mcpagent.synth.explore.changes import Effects
from mcpagent.synth.explore.learning import learn
from mcpagent.synth.explore.tasks import Asked, Learned, explore_dataset
from mcpagent.synth.tasks.prove import examine
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import Rejection
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.setup import configured_servers, servers_with_own_state
from mcpagent.tools.words import stays_here
from tests.running import mcpagent
from tests.synth.running import in_own_process, tried, write_config

pytestmark = pytest.mark.system
NOTEBOOK = Path(__file__).with_name("notebook.py")


def notebook(log: Path, *arguments: Path, workspace: Path | None = None) -> ToolPool:
    return in_own_process("notebook", NOTEBOOK, log, *arguments, workspace=workspace)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("notebook")


@pytest.fixture(scope="module")
def explored(folder: Path) -> tuple[list[Task], Effects]:
    """Tasks of a notebook in memory, and what was tried."""

    async def run() -> tuple[list[Task], Effects]:
        async with notebook(folder / "log") as pool:
            learned, effects = await tried(pool, "notebook")
            asked = Asked(weights={"single": 1.0})
            data = await explore_dataset(pool, counts={"train": 40}, seed=2, learned=learned, asked=asked)
            return list(data.tasks["train"]), effects

    return asyncio.run(run())


@pytest.fixture(scope="module")
def tasks(explored: tuple[list[Task], Effects]) -> list[Task]:
    return explored[0]


def test_what_is_added_is_found_by_reading_and_becomes_the_end_state(tasks: list[Task]) -> None:
    added = [t for t in tasks if any(s.tool == "add_note" for s in t.truth.tool_sequence)]
    assert len(added) >= 2
    for task in added:
        (step,) = task.truth.tool_sequence
        title, text, stars = (step.params[name] for name in ("title", "text", "stars"))
        listed, read = task.truth.state["notebook"]
        assert listed.call.tool == "list_notes" and listed.nothing_else_changed
        assert listed.expect == {"notes": {"contains": {"title": title, "stars": stars}, "increased_by": 1}}
        assert (read.call.tool, read.call.arguments) == ("read_note", {"title": title})
        assert read.expect["text"] == text
        said = task.prompt[-1].content
        assert title in said and text in said and str(stars) in said
        assert task.extra_info["verdicts"]["gold_reward"] == 1.0


def test_what_changes_something_is_of_no_split(folder: Path) -> None:
    """No thing is named by what is made: no seed may keep it from training."""

    async def run(seed: int) -> list[str]:
        async with notebook(folder / f"log-{seed}") as pool:
            learned, _ = await tried(pool, "notebook")
            asked = Asked(weights={"single": 1.0})
            data = await explore_dataset(pool, counts={"train": 12}, seed=seed, learned=learned, asked=asked)
            return [task.extra_info["class"] for task in data.tasks["train"]]

    for seed in (1, 8):  # by its hash `add_note` would be of training, and held out
        assert asyncio.run(run(seed)).count("state_change") >= 2, seed


def test_only_what_stays_here_is_ever_called(explored: tuple[list[Task], Effects], folder: Path) -> None:
    _, effects = explored
    called = {line.split()[0] for line in (folder / "log").read_text().splitlines()}
    assert called == {"add_note", "add_secret", "delete_note"}
    assert [change.spec.name for change in effects.changes] == ["add_note", "delete_note"]
    (silence,) = effects.silences
    assert silence.tools == ("notebook.add_secret",)
    assert "no tool that only reads tells all of the change" in silence.sentence


def test_tasks_that_were_proven_in_shared_processes_hold_in_new_ones(
    tasks: list[Task], tmp_path: Path
) -> None:
    async def run() -> list[object]:
        async with notebook(tmp_path / "log") as pool:
            return [await examine(task, CallCache(pool)) for task in tasks]

    assert [outcome for outcome in asyncio.run(run()) if isinstance(outcome, Rejection)] == []


def test_each_change_is_made_in_a_process_that_nothing_changed_before(
    tasks: list[Task], folder: Path
) -> None:
    assert tasks
    lines = (folder / "log.starts").read_text().splitlines()
    changing = [line.split()[0] for line in lines if " " in line]
    assert len(set(changing)) == len(changing) > 0


def test_tasks_that_only_read_are_proven_in_fewer_processes_than_there_are_tasks(tmp_path: Path) -> None:
    log = tmp_path / "log"

    async def run() -> list[Task]:
        async with notebook(log) as pool:
            cache = CallCache(pool, own_instances=["notebook"])
            learned = Learned(cache, await learn(cache, seed=2))
            asked = Asked(weights={"single": 1.0, "unknown_entity": 0.5})
            data = await explore_dataset(pool, counts={"train": 20}, seed=2, learned=learned, asked=asked)
            return list(data.tasks["train"])

    tasks = asyncio.run(run())
    assert {task.extra_info["class"] for task in tasks} >= {"unknown_entity"}
    # One lists the tools, one learns, one asks again what was learned; one is shared in each of two runs.
    assert len(log.with_suffix(".starts").read_text().splitlines()) <= 3 + 2 < len(tasks)


def test_a_task_whose_value_is_another_one_is_not_proven(tasks: list[Task], tmp_path: Path) -> None:
    task = next(t for t in tasks if any(s.tool == "add_note" for s in t.truth.tool_sequence))

    async def run(name: str, value: object) -> str | None:
        record = task.model_dump(exclude_unset=True)
        record["reward_spec"]["ground_truth"]["tool_sequence"][0]["params"][name] = value
        async with notebook(tmp_path / "log") as pool:
            outcome = await examine(Task.model_validate(record), CallCache(pool))
        return outcome.code.value if isinstance(outcome, Rejection) else None

    params = task.truth.tool_sequence[0].params
    assert asyncio.run(run("text", params["text"])) is None
    assert asyncio.run(run("text", "something else")) == "not_repeatable"
    assert asyncio.run(run("stars", params["stars"] + 1)) == "not_repeatable"


def test_a_server_that_keeps_what_is_added_is_left_alone_and_a_copy_of_its_data_is_not(
    tmp_path: Path,
) -> None:
    file, log = tmp_path / "notes.json", tmp_path / "log"

    async def run(*, is_copied: bool) -> Effects:
        async with notebook(log, file, workspace=file if is_copied else None) as pool:
            return (await tried(pool, "notebook"))[1]

    kept = asyncio.run(run(is_copied=False))
    assert kept.kept == {"notebook"} and not kept.changes
    assert "needs a workspace or a reset" in kept.silences[0].sentence
    before = file.read_bytes()
    assert len(json.loads(before)) == 10 + 1, "one change, and no more"
    copied = asyncio.run(run(is_copied=True))
    assert [change.spec.name for change in copied.changes] == ["add_note", "delete_note"]
    assert file.read_bytes() == before


@pytest.mark.parametrize(
    ("options", "writes"),
    [
        ("isolation: episode", False),
        ("isolation: episode, allow_writes: true", True),
        ("workspace: notes.json", True),
    ],
)
def test_a_process_of_its_own_is_no_leave_to_write_to_what_all_processes_share(
    tmp_path: Path, options: str, writes: bool
) -> None:
    file = tmp_path / "notes.json"
    write_config(tmp_path, "notebook", NOTEBOOK, tmp_path / "log", file)
    file.write_text(
        json.dumps({f"{one} Reef": {"text": one, "stars": len(one) + 9} for one in ("Amber", "Opal")})
    )
    (tmp_path / "c.yaml").write_text(f"tools: {{per_server: {{notebook: {{{options}}}}}}}")
    counts = ("--train", "2", "--validation", "0", "--heldout", "0")
    words = ("gen-data", "--explore", "--servers", "mcp.json", "--config", "c.yaml", *counts, "--out", "d")
    done = mcpagent(*words, "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "log").exists() is writes
    assert bool(json.loads(done.stdout)["explored"]["changes"]) is ("workspace" in options)


def test_nothing_is_tried_where_no_isolation_is_configured(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        json.dumps(
            {
                "mcpServers": {
                    "plain": {"command": "true"},
                    "copied": {"command": "true"},
                    "reset": {"url": "http://127.0.0.1:9/mcp"},
                    "alone": {"command": "true"},
                    "far": {"url": "http://127.0.0.1:9/mcp"},
                }
            }
        )
    )
    config = ToolsConfig.model_validate(
        {
            "servers": str(path),
            "per_server": {
                "alone": {"isolation": "episode"},
                "far": {"isolation": "episode"},
                "copied": {"workspace": str(tmp_path)},
                "reset": {"reset": {"calls": [{"tool": "clear"}]}},
            },
        }
    )
    assert servers_with_own_state(config, configured_servers(config)) == {"copied", "reset", "alone"}


@pytest.mark.parametrize(
    ("name", "hints", "expected"),
    [
        ("add_note", {}, True),
        ("set_status", {}, True),
        ("delete_note", {}, True),
        ("post_message", {}, True),
        ("send_email", {}, False),
        ("send_email", {"open_world": False}, True),
        ("create_and_send_invoice", {}, False),
        ("run_command", {}, False),
    ],
)
def test_no_tool_is_tried_of_which_somebody_outside_would_hear(
    name: str, hints: dict[str, bool], expected: bool
) -> None:
    spec = ToolSpec(server="s", name=name, input_schema={}, annotations=ToolAnnotations(**hints))
    assert stays_here(spec) is expected
