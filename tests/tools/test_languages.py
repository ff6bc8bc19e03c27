"""Which tools execute a language, and that SQL which may write is never sent to a server."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import pytest
from mcp.server import MCPServer

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind, ToolCall, ToolSpec
from mcpagent.errors import UserError
from mcpagent.tools.contract import Purpose
from mcpagent.tools.languages import SqlGuard, takes_language
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.tools.test_plain_select import HOSTILE, PLAIN

TEXT = {"type": "string"}


def spec(name: str = "look", says: str = "", *, defs: Any = None, **properties: Any) -> ToolSpec:
    schema = {"type": "object", "properties": properties, "$defs": defs or {}}
    return ToolSpec(server="s", name=name, description=says, input_schema=schema)


@pytest.mark.parametrize(
    ("tool", "expected"),
    [
        (spec("get_ship", "Get a ship of the MySQL database", id=TEXT), False),
        (spec("get_airport", "Get one", code={"type": "string", "maxLength": 3}), False),
        (spec("list_tables", "List what SQL queries can read"), False),
        (spec("count_rows", "Count them", limit={"type": "integer", "description": "SQL limit"}), False),
        (spec("read_query", "", query={"type": "string", "description": "A SELECT SQL query"}), True),
        (spec("get_rows", "", rawSQL=TEXT), True),
        (spec("get_rows", "Args:\n  q: any SQL", q=TEXT), True),
        (
            spec(
                "list_repositories", "", query={"type": "string", "contentMediaType": "application/graphql"}
            ),
            True,
        ),
        (spec("graphQLQuery", "", text=TEXT), True),
        (spec("get_series", "A PromQL query", query=TEXT), True),
        (spec("compute", "", code=TEXT), True),
        (spec("evaluate", "", options={"type": "object", "properties": {"script": TEXT}}), True),
        (spec("calculate", "By a Python expression", expression=TEXT), True),
        (spec("find_nodes", "", q={"anyOf": [TEXT, {"description": "Cypher"}]}), True),
    ],
)
def test_a_tool_that_is_told_a_program_is_known_by_its_schema_or_description(
    tool: ToolSpec, expected: bool
) -> None:
    assert takes_language(tool) is expected


# The ways in which published tools declare SQL: by name, description, media type, inside objects and lists,
# by reference, in the docstring, or by nothing but the name of the tool.
DECLARED: list[tuple[ToolSpec, Any]] = [
    (spec(sql=TEXT, values={"type": "array"}), lambda text: {"sql": text, "values": ["it's; DROP"]}),
    (
        spec(query={"type": "string", "description": "SELECT SQL query to execute"}),
        lambda text: {"query": text},
    ),
    (spec(q={"type": "string", "contentMediaType": "application/sql"}), lambda text: {"q": text}),
    (spec(rawSql=TEXT), lambda text: {"rawSql": text}),
    (spec(batch={"type": "array", "description": "SQL to run"}), lambda text: {"batch": ["SELECT 1", text]}),
    (spec(request={"properties": {"sql": TEXT}}), lambda text: {"request": {"sql": {"text": text}}}),
    (spec("execute_sql", statement=TEXT), lambda text: {"statement": text}),
    (
        spec("run", "Run it.\n\nArgs:\n  query: SQL query to analyze", query=TEXT),
        lambda text: {"query": text},
    ),
    (
        spec("run", says="", q={"$ref": "#/$defs/Q"}, defs={"Q": {"description": "SQL"}}),
        lambda t: {"q": t},
    ),
    (spec("open_ended"), lambda text: {"sql": text}),
]


@pytest.mark.parametrize(("tool", "arguments"), DECLARED, ids=lambda value: "")
def test_sql_is_found_wherever_a_schema_declares_it(tool: ToolSpec, arguments: Any) -> None:
    guard = SqlGuard(tool)
    for text in HOSTILE:
        assert guard.refusal(arguments(text)) is not None or text == "plants", text
    for text in PLAIN:
        assert guard.refusal(arguments(text)) is None, text


def test_what_is_no_sql_is_not_held_back() -> None:
    described = SqlGuard(spec("describe_table", "Its columns, as SQL has them", table=TEXT))
    assert described.refusal({"table": "dbo.plants"}) is None
    assert described.refusal({"table": "plants; DROP TABLE plants"}) is not None
    assert described.refusal({"table": "VACUUM"}) is not None
    note = SqlGuard(spec("add_note", "Add a note to the PostgreSQL database", text=TEXT))
    assert not note.is_needed and note.refusal({"text": "DROP TABLE plants"}) is None
    dialect = spec(sql=TEXT, dialect={"enum": ["sqlite", "mysql"], "description": "SQL dialect"})
    assert SqlGuard(dialect).refusal({"sql": "SELECT 1", "dialect": "sqlite"}) is None


class Database:
    """A server in this process that executes whatever SQL reaches it, and remembers it."""

    def __init__(self) -> None:
        self.reached: list[str] = []
        self.notes: list[str] = []
        self._connection = sqlite3.connect(":memory:", isolation_level=None, check_same_thread=False)
        self._connection.executescript(
            "CREATE TABLE plants (id, name, stock); INSERT INTO plants VALUES (1, 'fern', 120)"
        )

    def query(self, sql: str) -> str:
        """Execute raw SQL."""
        self.reached.append(sql)
        with closing(
            self._connection.executescript(sql) if ";" in sql else self._connection.execute(sql)
        ) as cursor:
            return str(cursor.fetchall())

    def pool(self, *, read_only: Sequence[str] = (), allow_writes: bool = False) -> ToolPool:
        server = MCPServer("db")
        server.add_tool(self.query)
        section = ServerSection(allow_writes=allow_writes)
        config = ToolsConfig(read_only=tuple(read_only), per_server={"db": section})
        return ToolPool([InProcessServer(name="db", server=server)], config, on_note=self.notes.append)


async def _call(session: Any, text: str, purpose: Purpose) -> Any:
    named = ToolCall(id="c", server="db", tool="query", arguments={"sql": text})
    return await session.call(named, purpose=purpose)


@pytest.mark.parametrize("read_only", [(), ("db",)])
async def test_hostile_sql_never_reaches_a_server_whoever_sends_it(read_only: tuple[str, ...]) -> None:
    database = Database()
    async with database.pool(read_only=read_only) as pool, pool.session() as session:
        for purpose in Purpose:
            for text in HOSTILE:
                result = await _call(session, text, purpose)
                assert result.failure is FailureKind.DENIED and not result.is_lost, text
        assert database.reached == []
        shown = await _call(session, "SELECT stock FROM plants", Purpose.EPISODE)
        assert (shown.failure, shown.content) == (None, "[(120,)]")


async def test_a_server_that_may_be_written_to_gets_what_is_sent_and_a_note_says_how() -> None:
    database = Database()
    async with database.pool() as pool, pool.session() as session:
        await _call(session, "UPDATE plants SET stock = 999", Purpose.EPISODE)
        await _call(session, "DELETE FROM plants", Purpose.EPISODE)
    (note,) = database.notes
    assert "--set tools.per_server.db.allow_writes=true" in note
    async with database.pool(allow_writes=True) as pool, pool.session() as session:
        assert (await _call(session, "UPDATE plants SET stock = 999", Purpose.EPISODE)).failure is None
    assert database.reached == ["UPDATE plants SET stock = 999"]


async def test_what_may_write_cannot_be_named_a_reader() -> None:
    with pytest.raises(UserError, match="allow_writes"):
        async with Database().pool(read_only=["db.query"], allow_writes=True):
            pass
