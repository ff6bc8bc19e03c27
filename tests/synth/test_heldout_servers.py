"""Servers that are held out: training has nothing of them, whichever way the tasks are made."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest

from mcpagent.config.environment import resource_path
from mcpagent.core.tasks import Task
from mcpagent.errors import UserError
from mcpagent.servers.provider import builtin_servers
from mcpagent.storage.datasets import read_tasks, task_record
from mcpagent.synth.templates.rules import GeneratedData
from mcpagent.synth.templates.template import load_templates
from mcpagent.tools.pool import ToolPool
from tests.llm.service import service
from tests.running import mcpagent, refused
from tests.synth.explore.test_splits import captain, cargo, list_ships, ship
from tests.synth.explore.worlds import World, harbour, library
from tests.synth.llm.model import KINDS, model
from tests.synth.llm.running import generate
from tests.synth.running import explored, generated

COUNTS = {"train": 40, "validation": 6, "heldout": 20}


def from_templates(*heldout: str, counts: Mapping[str, int] = COUNTS) -> GeneratedData:
    templates = load_templates(resource_path("templates/tasks"))
    return generated(ToolPool(builtin_servers()), templates, counts, seed=2, heldout_servers=heldout)


def by_exploring(*heldout: str, counts: Mapping[str, int] = COUNTS) -> GeneratedData:
    pool = ToolPool([harbour().served(), library().served()])
    return explored(pool, counts, seed=2, heldout_servers=heldout)


def offered(task: Task) -> set[str]:
    return {name.partition(".")[0] for name in task.offered_tools or ()}


def called(task: Task) -> set[str]:
    plan = [step.server for step in task.truth.tool_sequence]
    return {*plan, *(call["server"] for call in task.extra_info.get("would_call", ()))}


def check(tasks: Mapping[str, Sequence[Task]], server: str, tools: Sequence[str]) -> tuple[int, int]:
    """Return how many held-out tasks are seen and unseen, after every promise was checked."""
    marked = [task for task in tasks["heldout"] if "unseen_servers" in task.extra_info]
    plain = [task for task in tasks["heldout"] if task not in marked]
    for task in [*tasks.get("train", ()), *tasks.get("validation", ()), *plain]:
        written = json.dumps(task_record(task))
        assert server not in offered(task) and offered(task)
        assert not [name for name in tools if name in written], "in no message, plan, state or note either"
    assert all(server in offered(task) for task in marked)
    assert all(task.extra_info["unseen_servers"] == [server] for task in marked)
    assert all(server in called(task) for task in marked if called(task))
    every = [task for members in tasks.values() for task in members]
    assert len({task.id for task in every}) == len(every)
    assert len({task.extra_info["catalog_hash"] for task in every}) == 1, "that of the live servers"
    return len(plain), len(marked)


@pytest.mark.parametrize("server", ["polygon", "fmp", "tavily"])
def test_templates_of_a_heldout_server_make_heldout_tasks_alone(server: str) -> None:
    data = from_templates(server)
    assert check(data.tasks, server, [server]) == (10, 10)
    assert len(data.tasks["train"]) == COUNTS["train"]


@pytest.mark.parametrize(
    ("server", "tools"),
    [
        ("harbour", ["list_ships", "get_ship", "ship_captain", "list_ports", "distance", "tide"]),
        ("library", ["list_books", "library."]),
    ],
)
def test_exploring_asks_about_a_heldout_server_in_heldout_tasks_alone(
    server: str, tools: Sequence[str]
) -> None:
    data = by_exploring(server)
    assert check(data.tasks, server, tools) == (10, 10)
    kinds = {
        task.extra_info["class"] for task in data.tasks["heldout"] if "unseen_servers" in task.extra_info
    }
    assert len(kinds) > 2, kinds
    assert len(data.tasks["train"]) == COUNTS["train"]


@pytest.mark.parametrize("server", ["fleet", "crew"])
def test_no_chain_of_training_goes_through_a_heldout_server(server: str) -> None:
    fleet, crew = World("fleet", list_ships, ship, cargo), World("crew", captain)
    pool = ToolPool([fleet.served(), crew.served()])
    data = explored(pool, {"train": 12, "heldout": 16}, seed=4, heldout_servers=[server])
    check(data.tasks, server, [f"{server}.", f'"{server}"'])
    both = [task for task in data.tasks["heldout"] if called(task) == {"fleet", "crew"}]
    assert bool(both) == (server == "crew"), "which is the end of the chains over two"


@pytest.mark.system
def test_what_a_model_writes_about_a_heldout_server_is_heldout(tmp_path: Path) -> None:
    # Its plans call slack, often with fmp after it.
    with service(model) as running:
        options = ("--n-samples", str(2 * KINDS), "--set", "api.timeout_s=6", "--heldout-server", "fmp")
        document = generate(running.url, tmp_path / "out", *options)
    tasks = {split: list(read_tasks(Path(path))) for split, path in document["paths"].items()}
    _, unseen = check(tasks, "fmp", ["fmp_"])
    assert unseen and tasks["train"]


@pytest.mark.parametrize("make", [from_templates, by_exploring])
def test_a_server_that_there_is_not_is_refused_with_those_that_there_are(
    make: Callable[..., GeneratedData],
) -> None:
    with pytest.raises(UserError, match="there is no server 'libary'") as refusal:
        make("libary")
    assert refusal.value.where == "--heldout-server"
    names = ["fmp", "slack"] if make is from_templates else ["harbour", "library"]
    assert all(name in str(refusal.value.remedy) for name in names)


@pytest.mark.parametrize("make", [from_templates, by_exploring])
def test_heldout_servers_need_heldout_tasks(make: Callable[..., GeneratedData]) -> None:
    with pytest.raises(UserError, match="0 held-out tasks are too few for fmp"):
        make("fmp", counts={"train": 5})


def test_something_has_to_be_left_for_training() -> None:
    with pytest.raises(UserError, match="nothing is left to train on"):
        by_exploring("harbour", "library")
    with pytest.raises(UserError, match="no templates both with and without slack"):
        from_templates("slack")  # each of them lists its channels there


@pytest.mark.system
def test_the_command_line_holds_servers_out_and_names_those_that_there_are(tmp_path: Path) -> None:
    asked = ("gen-data", "--train", "8", "--validation", "0", "--heldout", "6", "--out", "data")
    done = mcpagent(*asked, "--heldout-server", "polygon", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    tasks = {split: list(read_tasks(tmp_path / f"data/{split}.jsonl")) for split in ("train", "heldout")}
    assert check(tasks, "polygon", ["polygon"]) == (3, 3)
    wrong = mcpagent(*asked, "--overwrite", "--heldout-server", "polygone", cwd=tmp_path)
    said = refused(wrong)
    assert "there is no server 'polygone'" in said and "fmp, polygon, slack" in said
    assert "--servers mcp.json" in refused(mcpagent("quickstart", "--heldout-server", "fmp", cwd=tmp_path))
