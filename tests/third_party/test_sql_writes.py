"""Three servers of others that execute SQL: no statement that may write reaches them unasked."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind, ToolCall
from mcpagent.tools.contract import Purpose
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import load_servers
from tests.running import mcpagent
from tests.third_party.servers import Desk
from tests.tools.test_plain_select import HOSTILE

pytestmark = pytest.mark.registry

# The tools of each that execute SQL, with the parameter that holds it.
SQL = {
    "sqlite": {"read_query": "query", "write_query": "query", "create_table": "query"},
    "mcp-sqlite": {"query": "sql"},
    "csv": {"execute_sql_query": "query", "get_query_plan": "query"},
}
WRITES = {
    "sqlite": ("write_query", {"query": "UPDATE plants SET stock = 999"}),
    "mcp-sqlite": ("query", {"sql": "UPDATE plants SET stock = 998"}),
    "csv": ("execute_sql_query", {"query": "UPDATE plants SET stock = 997"}),
}


def _configured(desk: Desk) -> Path:
    """The servers over a database of plants, and over a CSV file of them."""
    for name in ("mcp-sqlite", "mcp-csv-database"):
        desk.install(name)
    with closing(sqlite3.connect(desk.folder / "test.db")) as database:
        database.executescript("CREATE TABLE plants (name, stock); INSERT INTO plants VALUES ('fern', 120)")
    (desk.files / "plants.csv").write_text("name,stock\nfern,120\n")
    others: dict[str, Any] = {
        "mcp-sqlite": {"command": "npx", "args": ["-y", "mcp-sqlite", str(desk.folder / "test.db")]},
        "csv": {
            "command": "uvx",
            "args": ["--with", "mcp<2", "mcp-csv-database", "--csv-folder", str(desk.files)],
        },
    }
    return desk.configure("sqlite", **others)


async def test_hostile_sql_is_refused_before_it_is_sent(desk: Desk) -> None:
    servers = load_servers(_configured(desk)).servers
    before = (desk.folder / "test.db").read_bytes()
    config = ToolsConfig(
        timeout_s=60, read_only=tuple(f"{name}.{tool}" for name in SQL for tool in SQL[name])
    )
    texts = [text for text in HOSTILE if text != "plants"]  # a name alone, where only prose speaks of SQL
    calls = [(name, tool, {key: text}) for name in SQL for tool, key in SQL[name].items() for text in texts]
    async with ToolPool(servers, config) as pool, pool.session() as session:
        for purpose in (Purpose.SYNTH, Purpose.EPISODE):
            for name, tool, arguments in calls:
                named = ToolCall(id="c", server=name, tool=tool, arguments=arguments)
                result = await session.call(named, purpose=purpose)
                assert result.failure is FailureKind.DENIED, (named, result)
        assert all(server.most_in_flight == 0 for server in pool.metrics().servers), "nothing was sent"
        for name, tool in (("sqlite", "read_query"), ("mcp-sqlite", "query"), ("csv", "execute_sql_query")):
            arguments = {SQL[name][tool]: "SELECT stock FROM plants"}
            shown = await session.call(ToolCall(id="c", server=name, tool=tool, arguments=arguments))
            assert shown.failure is None and "120" in shown.content, shown
    assert (desk.folder / "test.db").read_bytes() == before


async def test_a_write_that_is_asked_for_arrives(desk: Desk) -> None:
    servers = load_servers(_configured(desk)).servers
    sections = {name: ServerSection(allow_writes=True) for name in WRITES}
    config = ToolsConfig(timeout_s=60, per_server=sections)
    async with ToolPool(servers, config) as pool, pool.session() as session:
        for name, (tool, arguments) in WRITES.items():
            named = ToolCall(id="c", server=name, tool=tool, arguments=arguments)
            assert (await session.call(named)).failure is None
            key, read = next(iter(arguments)), tool.replace("write", "read")
            look = named.model_copy(update={"tool": read, "arguments": {key: "SELECT * FROM plants"}})
            assert "99" in (await session.call(look)).content


def test_gen_data_and_env_check_leave_the_database_as_it_was(desk: Desk) -> None:
    file = _configured(desk)
    before = (desk.folder / "test.db").read_bytes()
    counts = ("--train", "8", "--validation", "0", "--heldout", "0", "--out", desk.folder / "d", "--json")
    done = mcpagent("gen-data", "--explore", "--servers", file, "--yes-read-only", *counts)
    assert done.returncode == 0, done.stderr
    readers = (desk.folder / "d" / "servers.yaml").read_text()
    assert not any(f"{name}.{tool}" in readers for name in SQL for tool in SQL[name])
    checked = mcpagent("env", "check", "--data", desk.folder / "d", "--json")
    assert json.loads(checked.stdout)["n_tasks"] == json.loads(done.stdout)["records"]
    assert (desk.folder / "test.db").read_bytes() == before
