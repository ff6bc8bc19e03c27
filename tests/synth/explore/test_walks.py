"""Tasks from servers that nobody wrote a template for: what is called, and what is said."""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Sequence

import pytest
from mcp.server import MCPServer

from mcpagent.core.tasks import Task
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError
from mcpagent.synth.explore.graph import Edge, Fact, Leaf, Walk, answer_fields
from mcpagent.synth.explore.walks import explore_dataset
from mcpagent.synth.explore.wording import WORDINGS, words_of
from mcpagent.tools.catalog import CatalogSettings
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer, builtin_servers

_TABLES = {
    "ships": [("Aurora", 5209.5), ("Borealis", 1237.7), ("Caravel", 5934.25), ("Dorado", 4493.1)],
    "ports": [("Lisbon", 28.5), ("Genoa", 11.75), ("Bergen", 17.3), ("Cadiz", 9.5)],
    "crews": [("Ada", 812.5), ("Grace", 641.25), ("Edsger", 377.5), ("Barbara", 529.75)],
}


class Ledger:
    """A server that says nothing of its tools, and prints Python; `calls` is what reached it."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()

    def list_tables(self) -> str:
        """List all tables of the ledger"""
        self.calls["list_tables"] += 1
        return str([{"name": name} for name in _TABLES])

    def read_query(self, query: str) -> str:
        """Execute a SELECT query on the ledger"""
        self.calls["read_query"] += 1
        table = query.removeprefix("SELECT * FROM ")
        if table not in _TABLES:
            raise ValueError(f"no such table: {table}")
        return str([{"label": label, "weight": weight} for label, weight in _TABLES[table]])

    def drop_table(self, table: str) -> str:
        """Delete a table"""
        self.calls["drop_table"] += 1
        return "gone"

    def explore(self, *, read_only: Sequence[str]) -> tuple[Task, ...]:
        server = MCPServer("ledger", log_level="ERROR")
        for tool in (self.list_tables, self.read_query, self.drop_table):
            server.add_tool(tool, structured_output=False)

        async def run() -> tuple[Task, ...]:
            served = InProcessServer(name="ledger", server=server)
            async with ToolPool([served], catalog=CatalogSettings(read_only=read_only)) as pool:
                return (await explore_dataset(pool, counts={"train": 60}, seed=3)).tasks["train"]

        return asyncio.run(run())


def test_a_server_that_says_nothing_of_its_tools_is_explored_as_far_as_they_are_named() -> None:
    ledger = Ledger()
    tasks = ledger.explore(read_only=["ledger.list_tables", "ledger.read_query"])
    assert len(tasks) == 60
    assert set(ledger.calls) == {"list_tables", "read_query"}
    plans = Counter(" > ".join(step.tool for step in task.truth.tool_sequence) for task in tasks)
    assert plans["list_tables > read_query"] > 5
    linked = next(
        t for t in tasks if len(t.truth.tool_sequence) == 2 and t.extra_info["class"] == "sequential"
    )
    assert re.fullmatch(
        r"SELECT \* FROM \$\{step1\.result\[\d\]\.name\}", linked.truth.tool_sequence[1].params["query"]
    )


def test_without_a_name_nothing_is_called_and_the_error_says_how_to_give_one() -> None:
    ledger = Ledger()
    with pytest.raises(UserError, match="read_query: does not say that it only reads") as refused:
        ledger.explore(read_only=[])
    assert not ledger.calls
    assert "--read-only SERVER.TOOL" in (refused.value.remedy or "")


def test_a_question_says_what_the_tools_are_for_and_never_what_they_are_called() -> None:
    async def run() -> tuple[tuple[Task, ...], set[str]]:
        servers = ["polygon", "fmp", "tavily", "slack"]
        async with ToolPool(builtin_servers(servers, limited=False)) as pool:
            data = await explore_dataset(pool, counts={"train": 150}, seed=2)
            return data.tasks["train"], {spec.name for spec in pool.tools.values()}

    tasks, names = asyncio.run(run())
    said = [" ".join([task.prompt[-1].content, *task.truth.user_turns]) for task in tasks]
    assert not [text for text in said if any(name in text for name in names)]
    openings = Counter(text.split()[0] for text in said)
    assert openings.most_common(1)[0][1] < len(tasks) / 2
    assert len(set(said)) == len(said)


QUOTE = Fact(
    ToolSpec(
        server="s",
        name="get_quote",
        description="Current price of a stock and its change. Returns JSON.",
        input_schema={"properties": {"symbol": {"type": "string", "description": "Stock symbol."}}},
    ),
    {"symbol": "AAPL"},
    (),
)
FILES = Fact(
    ToolSpec(server="s", name="list_dir", description="Returns all files (with sizes).", input_schema={}),
    {},
    (),
)
READ = Fact(
    ToolSpec(
        server="s",
        name="read_file",
        description="Recursively reads a file",
        input_schema={"properties": {"filePath": {"description": "Where the file is, absolute or not"}}},
    ),
    {"filePath": "/a/b.txt"},
    (),
)
SEARCH = Fact(
    ToolSpec(
        server="s",
        name="search_names",
        description="Get a list of companies by name",
        input_schema={"properties": {"query": {"description": "Part of a name."}}},
    ),
    {"query": "Aurora"},
    (),
)
PRICE = Leaf("@.price", "price", 12.5)


THIRD = Leaf("@[2]", "name of the third file", "b.txt")


@pytest.mark.parametrize(
    ("walk", "part"),
    [
        (
            Walk("single", (QUOTE,), (None,), (PRICE,)),
            "ook up the current price of the stock AAPL and its change",
        ),
        (
            Walk(
                "sequential",
                (FILES, READ),
                (None, Edge(FILES, THIRD, "filePath", "/a/b.txt", "/a/")),
                (PRICE,),
            ),
            'then read a file, with "/a/" followed by the name of the third file as the file path',
        ),
        (
            Walk("missing_parameter", (QUOTE,), (None,), (PRICE,)),
            "ook up the current price of a stock and its change",
        ),
        (Walk("missing_parameter", (QUOTE,), (None,), (PRICE,)), "stock symbol AAPL"),
        (
            Walk("single", (SEARCH,), (None,), (PRICE,)),
            "et a list of companies by name, with part of a name Aurora",
        ),
    ],
)
def test_every_wording_of_a_walk_holds_its_task_its_arguments_and_what_is_asked(
    walk: Walk, part: str
) -> None:
    said: set[str] = set()
    for wording in range(WORDINGS):
        first, later = words_of(Walk(walk.kind, walk.facts, walk.edges, walk.asked, wording))
        text = " | ".join([first, *later])
        assert part in text
        assert "price" in first and not re.search(r"[a-z]_[a-z]", text)
        assert "AAPL" not in first or walk.kind != "missing_parameter"
        said.add(text)
    assert len(said) >= 3


def test_a_value_is_called_by_its_place_in_words() -> None:
    labels = {
        leaf.label: leaf.value for leaf in answer_fields({"entries": [{"name": "a"}, {"name": "b"}], "n": 4})
    }
    assert labels == {"name of the first entry": "a", "name of the second entry": "b", "n": 4}
    rows = {leaf.label: leaf.value for leaf in answer_fields({"rows": [[1, 2], [3, 4]]})}
    assert rows["second entry of the first row"] == 2
    (eleventh,) = [leaf.label for leaf in answer_fields({"cells": list(range(20, 40))}) if leaf.value == 30]
    assert eleventh == "11th cell"
