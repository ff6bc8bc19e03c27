"""State of servers that others wrote comes back: each episode begins on a copy, or after a reset."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import load_servers
from tests.third_party.servers import Desk, call

pytestmark = pytest.mark.registry

WRITES: dict[str, tuple[str, dict[str, Any]]] = {
    "filesystem": ("write_file", {"path": "{files}/new.txt", "content": "ZZ"}),
    "memory": (
        "create_entities",
        {"entities": [{"name": "ZZ", "entityType": "ship", "observations": ["is new"]}]},
    ),
    "sqlite": ("write_query", {"query": "insert into items values ('ZZ')"}),
}
READS: dict[str, tuple[str, dict[str, Any]]] = {
    "filesystem": ("directory_tree", {"path": "{files}"}),
    "memory": ("read_graph", {}),
    "sqlite": ("read_query", {"query": "select name from items order by name"}),
}
SHOWN = {"filesystem": "new.txt", "memory": "ZZ", "sqlite": "ZZ"}


def _data(desk: Desk, name: str) -> Path:
    """The file or folder in which the server of the README's entry keeps its state, with something in it."""
    match name:
        case "filesystem":
            (desk.files / "old.txt").write_text("old")
            return desk.files
        case "memory":
            entity = {"type": "entity", "name": "Ada", "entityType": "person", "observations": ["writes"]}
            (desk.folder / "memory.jsonl").write_text(json.dumps(entity) + "\n")
            return desk.folder / "memory.jsonl"
        case _:
            with closing(sqlite3.connect(desk.folder / "test.db")) as database, database:
                database.execute("create table items (name text)")
                database.execute("insert into items values ('old')")
            return desk.folder / "test.db"


def _content(place: Path) -> dict[str, bytes]:
    files = sorted(place.rglob("*")) if place.is_dir() else [place]
    return {file.name: file.read_bytes() for file in files if file.is_file()}


def _filled(call: tuple[str, dict[str, Any]], desk: Desk) -> tuple[str, dict[str, Any]]:
    tool, arguments = call
    return tool, json.loads(json.dumps(arguments).replace("{files}", str(desk.files)))


async def _episodes(desk: Desk, name: str, limits: ServerSection, *, count: int) -> list[tuple[str, str]]:
    """What each episode reads before and after it has written."""
    answers: list[tuple[str, str]] = []
    servers = load_servers(desk.configure(name)).servers
    limits = limits.model_copy(update={"allow_writes": True})
    calls = ToolsConfig(timeout_s=60, per_server={name: limits})
    async with ToolPool(servers, calls) as pool:
        for _ in range(count):
            async with pool.session() as session:
                seen: list[str] = []
                for tool, arguments in (READS[name], WRITES[name], READS[name]):
                    tool, arguments = _filled((tool, arguments), desk)
                    result = await call(session, f"{name}.{tool}", **arguments)
                    assert result.failure is None, result.content
                    seen.append(result.content)
                answers.append((seen[0], seen[2]))
    return answers


@pytest.mark.parametrize("name", WRITES)
def test_what_an_episode_writes_is_in_no_other_and_not_in_the_workspace(desk: Desk, name: str) -> None:
    place = _data(desk, name)
    before = _content(place)
    limits = ServerSection(workspace=str(place), start_timeout_s=180)
    answers = asyncio.run(_episodes(desk, name, limits, count=3))
    assert len({begun for begun, _ in answers}) == 1 and SHOWN[name] not in answers[0][0]
    assert all(SHOWN[name] in ended for _, ended in answers)
    assert _content(place) == before
