"""Tasks from a server that others wrote, with no template and no code for it."""

from __future__ import annotations

import json
import re
import sqlite3
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.core.values import scalars
from mcpagent.storage.datasets import read_tasks
from mcpagent.tools.workspace import tree_digest
from tests.running import mcpagent
from tests.third_party.servers import Desk

pytestmark = pytest.mark.registry

_READS = "sqlite.list_tables,sqlite.describe_table,sqlite.read_query"
_DATABASE = """
create table ships (id integer primary key, name text, port text, tons real, owner text, length real);
insert into ships values (11, 'Aurora', 'Lisbon', 5209.5, 'Halden', 121.4),
  (12, 'Borealis', 'Genoa', 1237.7, 'Moretti', 64.9), (13, 'Caravel', 'Genoa', 5934.2, 'Castello', 133.8),
  (14, 'Dorado', 'Bergen', 4493.1, 'Nordvik', 110.2), (15, 'Esperance', 'Cadiz', 5545.9, 'Duarte', 127.6),
  (16, 'Fortuna', 'Lisbon', 3310.6, 'Pereira', 95.3), (17, 'Galatea', 'Cadiz', 2871.4, 'Ruiz', 88.7);
create table ports (id integer primary key, name text, country text, depth real);
insert into ports values (21, 'Lisbon', 'Portugal', 28.5), (22, 'Genoa', 'Italy', 11.7),
  (23, 'Bergen', 'Norway', 17.3), (24, 'Cadiz', 'Spain', 14.2);
create table crew (id integer primary key, full_name text, ship text, hired text);
insert into crew values (31, 'Ada Berg', 'Aurora', '2019-04-02'), (32, 'Edsger Lund', 'Dorado', '2021-11-30'),
  (33, 'Mona Ek', 'Fortuna', '2018-06-14');
"""


def test_a_database_of_three_tables_gives_thirty_tasks_that_were_shown_to_be_solvable(
    desk: Desk, tmp_path: Path
) -> None:
    file = desk.configure("sqlite")
    with sqlite3.connect(desk.folder / "test.db") as database:
        database.executescript(_DATABASE)
    before = list(database.iterdump())
    untold = mcpagent("gen-data", "--servers", file, "--out", tmp_path / "none")
    assert untold.returncode == 2, untold.stderr
    assert "--yes-read-only" in untold.stderr
    counts = ("--train", "60", "--validation", "0", "--heldout", "10", "--out", tmp_path / "tasks", "--json")
    done = mcpagent("gen-data", "--servers", file, "--read-only", _READS, *counts)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] >= 30
    assert "never called" in done.stderr and "sqlite.write_query" in done.stderr
    assert list(database.iterdump()) == before
    database.close()
    tasks: list[Task] = list(read_tasks(tmp_path / "tasks" / "train.jsonl"))
    verdicts = [task.extra_info["verdicts"]["gold_reward"] for task in tasks if not task.truth.abstain]
    assert verdicts and set(verdicts) == {1.0}
    tools = {step.tool for task in tasks for step in task.truth.tool_sequence}
    assert tools == {"describe_table", "read_query"}, "the list of names only says what to ask about"


_NAMES = """
Aurora Borealis Caravel Dorado Esperance Fortuna Galatea Halcyon Iris Juno Kestrel
Lydia Meridian Nautilus Orion Pandora Quest Rosalind Swift Triton Undine Venture
"""
_SHIPS = _NAMES.split()


def _furnish(desk: Desk) -> None:
    """Something to read for each server: files, commits and what is remembered."""
    for number, ship in enumerate(_SHIPS):
        text = f"Captain: {ship[::-1].title()}son\nTons: {1200 + 137 * number}\nBuilt: {1950 + 3 * number}\n"
        (desk.files / f"{ship.lower()}.md").write_text(text)
        (desk.repo / f"{ship.lower()}.txt").write_text(f"{ship} carries {7 * number + 3} crates\n")
        desk.git("add", ".")
        day = f"2024-03-{number + 1:02}T09:{30 + number}:00Z"  # the same hashes each time
        desk.git("commit", "-m", f"Add the {ship} with {7 * number + 3} crates", date=day)
    entities = [
        {
            "type": "entity",
            "name": ship,
            "entityType": "ship",
            "observations": [f"weighs {1200 + 137 * n} tons", f"was built in {1950 + 3 * n}"],
        }
        for n, ship in enumerate(_SHIPS)
    ]
    (desk.folder / "memory.jsonl").write_text("\n".join(map(json.dumps, entities)) + "\n")


@pytest.mark.parametrize(
    "name",
    [
        "filesystem",
        *(pytest.param(n, marks=pytest.mark.slow) for n in ("everything", "git", "memory", "time")),
    ],
)
def test_a_server_of_others_gives_its_proven_tasks_in_one_command(
    name: str, desk: Desk, tmp_path: Path
) -> None:
    _furnish(desk)
    file = desk.configure(name)
    counts = ("--train", "100", "--validation", "10", "--heldout", "30", "--out", tmp_path / "d", "--json")
    done = mcpagent("gen-data", "--explore", "--servers", file, *counts)
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    assert document["records"] >= 100  # of 140 that are asked for
    explored = document["explored"]
    assert explored["failed"] < explored["calls"] / 2
    lines = done.stderr.splitlines()
    assert all(silence["sentence"] in lines for silence in explored["silent"])
    tasks: list[Task] = list(read_tasks(tmp_path / "d" / "train.jsonl"))
    verdicts = [task.extra_info["verdicts"]["gold_reward"] for task in tasks if not task.truth.abstain]
    assert verdicts and set(verdicts) == {1.0}


@pytest.mark.parametrize(
    ("name", "place"),
    [("memory", "memory.jsonl"), pytest.param("filesystem", "files", marks=pytest.mark.slow)],
)
def test_what_is_added_is_read_back_on_a_copy_and_becomes_a_state_check(
    name: str, place: str, desk: Desk, tmp_path: Path
) -> None:
    _furnish(desk)
    file, workspace = desk.configure(name), desk.folder / place
    before = tree_digest(workspace)
    counts = ("--train", "16", "--validation", "0", "--heldout", "4", "--out", tmp_path / "d", "--json")
    setting = ("--set", f"tools.per_server.{name}.workspace={workspace}")
    done = mcpagent("gen-data", "--explore", "--servers", file, *setting, *counts, timeout_s=900)
    assert done.returncode == 0, done.stderr
    assert tree_digest(workspace) == before
    assert json.loads(done.stdout)["explored"]["changes"]
    tasks: list[Task] = list(read_tasks(tmp_path / "d" / "train.jsonl"))
    added = [task for task in tasks if task.extra_info["class"] == "state_change"]
    assert added
    for task in added:
        (step,) = task.truth.tool_sequence
        (checks,) = task.truth.state.values()
        told = json.dumps([check.model_dump() for check in checks], ensure_ascii=False).replace("\\", "")
        told = re.sub(r"entities\[(\d+)\]", lambda match: _SHIPS[int(match[1])], told)  # in their order
        texts = [value for value in scalars(step.params) if isinstance(value, str)]
        is_there = not step.tool.startswith("delete")
        assert all((Path(text).name in told) == is_there for text in texts), (step.tool, texts, told)
        assert all(text in task.prompt[-1].content for text in texts)
        assert task.extra_info["verdicts"]["gold_reward"] == 1.0
