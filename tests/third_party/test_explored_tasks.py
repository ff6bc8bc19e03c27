"""Tasks from a server that others wrote, with no template and no code for it."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from mcpagent.core.tasks import Task
from mcpagent.storage.datasets import read_tasks
from tests.running import mcpagent
from tests.third_party.servers import Desk

pytestmark = pytest.mark.registry

_READS = "sqlite.list_tables,sqlite.describe_table,sqlite.read_query"
_DATABASE = """
create table ships (id integer primary key, name text, port text, tons real);
insert into ships values (11, 'Aurora', 'Lisbon', 5209.5), (12, 'Borealis', 'Genoa', 1237.7),
  (13, 'Caravel', 'Genoa', 5934.2), (14, 'Dorado', 'Bergen', 4493.1), (15, 'Esperance', 'Cadiz', 5545.9);
create table ports (id integer primary key, name text, country text, depth real);
insert into ports values (21, 'Lisbon', 'Portugal', 28.5), (22, 'Genoa', 'Italy', 11.7),
  (23, 'Bergen', 'Norway', 17.3);
create table crew (id integer primary key, full_name text, ship text, hired text);
insert into crew values (31, 'Ada Berg', 'Aurora', '2019-04-02'), (32, 'Edsger Lund', 'Dorado', '2021-11-30');
"""


def test_a_database_of_three_tables_gives_fifty_tasks_that_were_shown_to_be_solvable(
    desk: Desk, tmp_path: Path
) -> None:
    file = desk.configure("sqlite")
    with sqlite3.connect(desk.folder / "test.db") as database:
        database.executescript(_DATABASE)
    before = list(database.iterdump())
    untold = mcpagent("gen-data", "--servers", file, "--out", tmp_path / "none")
    assert untold.returncode == 2, untold.stderr
    assert "--read-only SERVER.TOOL" in untold.stderr
    counts = ("--train", "60", "--validation", "0", "--heldout", "10", "--out", tmp_path / "tasks", "--json")
    done = mcpagent("gen-data", "--servers", file, "--read-only", _READS, *counts)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["records"] >= 50
    assert "never called" in done.stderr and "sqlite.write_query" in done.stderr
    assert list(database.iterdump()) == before
    database.close()
    tasks: list[Task] = list(read_tasks(tmp_path / "tasks" / "train.jsonl"))
    verdicts = [task.extra_info["verdicts"]["gold_reward"] for task in tasks if not task.truth.abstain]
    assert verdicts and set(verdicts) == {1.0}
    tools = {step.tool for task in tasks for step in task.truth.tool_sequence}
    assert tools == {"list_tables", "describe_table", "read_query"}
