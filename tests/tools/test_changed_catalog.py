"""Servers that change their tools in mid-run: it is noticed, named and never charged to the model."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from mcp.server import MCPServer
from mcp.types import Tool

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.tools.catalog import CatalogChange
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer, Isolation, StdioServer
from tests.tools.support import ECHO_SCRIPT, call

# What servers say of a tool that they do not have: as SDKs write it, and in words that tell nothing.
REFUSALS = {
    "invalid params": {"error": {"code": -32602, "message": "Unknown tool: take"}},
    "invalid params, other words": {
        "error": {"code": -32602, "message": "MCP error -32602: Tool take not found"}
    },
    "a result": {"result": {"content": [{"type": "text", "text": "Unknown tool: take"}], "isError": True}},
    "a result, other words": {"result": {"content": [{"type": "text", "text": "nein"}], "isError": True}},
    "no content": {"result": {"content": [], "isError": True}},
}
FIRST = {"look": ["at"], "take": ["what"], "keep": ["then"]}  # the tools of the server at its start
CHANGES = {
    "removed": ({"look": ["at"], "keep": ["then"]}, "gone: 'take'"),
    "renamed": ({"look": ["at"], "keep": ["then"], "take_one": ["what"]}, "gone: 'take'; new: 'take_one'"),
    "none left": ({}, "gone: 'keep', 'look', 'take'"),
    "other arguments": (
        {"look": ["at"], "keep": ["then"], "take": ["item"]},
        "with other arguments: 'take'",
    ),
}


def server(folder: Path, refusal: Any, *, isolation: Isolation = "shared") -> StdioServer:
    arguments = (str(ECHO_SCRIPT.with_name("changing.py")), str(folder), json.dumps(refusal))
    return StdioServer(name="shop", command=sys.executable, args=arguments, isolation=isolation)


async def change(session: Any, to: Any) -> ToolResult:
    return await call(session, "keep", server="shop", then=json.dumps(to))


@pytest.mark.parametrize("tells", [True, False])
@pytest.mark.parametrize("refusal", REFUSALS)
@pytest.mark.parametrize("kind", CHANGES)
async def test_a_call_that_a_changed_catalog_cut_is_infrastructure_and_named(
    tmp_path: Path, kind: str, refusal: str, tells: bool
) -> None:
    to, text = CHANGES[kind]
    if tells:
        (tmp_path / "tells").touch()
    notes: list[str] = []
    async with ToolPool([server(tmp_path, REFUSALS[refusal])], on_note=notes.append) as pool:
        pinned = pool.catalog_hash
        async with pool.session() as session:
            assert (await change(session, to)).failure is None
            cut = await call(session, "take", server="shop", what="bread")
            assert cut.failure is FailureKind.CHANGED and cut.failure.is_infrastructure
            again = await call(session, "take", server="shop", what="bread")
            assert again.failure is FailureKind.CHANGED
            if "look" in to:  # what is still there goes on
                assert (await call(session, "look", server="shop", at="it")).failure is None
        assert pool.catalog_hash == pinned  # the first tools stay on offer
    (note,) = notes
    assert "server 'shop'" in note and text in note and "not scored" in note


async def test_a_notification_alone_is_noted_and_what_came_back_is_called(tmp_path: Path) -> None:
    (tmp_path / "tells").touch()
    notes: asyncio.Queue[str] = asyncio.Queue()
    async with ToolPool([server(tmp_path, {})], on_note=notes.put_nowait) as pool, pool.session() as session:
        assert (await change(session, {"keep": ["then"], "more": []})).failure is None
        note = await asyncio.wait_for(notes.get(), timeout=10)
        assert "gone: 'look', 'take'; new: 'more'" in note
        assert (await call(session, "take", server="shop", what="it")).failure is FailureKind.CHANGED
        assert (await change(session, FIRST)).failure is None
        async with asyncio.timeout(10):
            while (await call(session, "take", server="shop", what="it")).failure is FailureKind.CHANGED:
                await asyncio.sleep(0)  # a call that is not sent does not wait for anything
    assert notes.empty()


@pytest.mark.parametrize("refusal", REFUSALS)
async def test_an_error_of_a_tool_that_is_as_it_was_stays_the_models(tmp_path: Path, refusal: str) -> None:
    notes: list[str] = []
    pool = ToolPool([server(tmp_path, REFUSALS[refusal])], on_note=notes.append)
    async with pool, pool.session() as session:
        result = await call(session, "take", server="shop", what="nothing")
    assert result.failure is not None and not result.failure.is_infrastructure
    assert notes == []


async def test_errors_at_the_same_time_share_a_list(tmp_path: Path) -> None:
    async with ToolPool([server(tmp_path, REFUSALS["a result"])]) as pool, pool.session() as session:
        wrong = (call(session, "take", server="shop", what="nothing") for _ in range(50))
        assert {result.failure for result in await asyncio.gather(*wrong)} == {FailureKind.TOOL_ERROR}
    assert len((tmp_path / "lists").read_text()) < 10


async def test_the_change_of_an_episodes_own_instance_touches_no_other(tmp_path: Path) -> None:
    (tmp_path / "tells").touch()
    own = server(tmp_path, REFUSALS["a result"], isolation="episode")
    async with ToolPool([own]) as pool, pool.session() as changed, pool.session() as other:
        assert (await change(changed, {"keep": ["then"]})).failure is None
        assert (await call(changed, "take", server="shop", what="it")).failure is FailureKind.CHANGED
        assert (await call(other, "take", server="shop", what="it")).failure is None


async def test_a_change_that_is_refused_ends_the_server(tmp_path: Path) -> None:
    config = ToolsConfig(on_catalog_change="refuse")
    async with ToolPool([server(tmp_path, REFUSALS["a result"])], config) as pool, pool.session() as session:
        assert (await change(session, {"keep": ["then"]})).failure is None
        cut = await call(session, "take", server="shop", what="bread")
    assert cut.failure is not None and cut.failure.is_infrastructure


async def test_an_object_in_this_process_may_change_its_tools_too() -> None:
    shop, notes = MCPServer("shop"), list[str]()
    shop.add_tool(lambda what: f"took {what}", name="take", description="Take.")
    shop.add_tool(lambda: shop.remove_tool("take"), name="close", description="Close.")
    pool = ToolPool([InProcessServer(name="shop", server=shop)], on_note=notes.append)
    async with pool, pool.session() as session:
        assert (await call(session, "close", server="shop")).failure is None
        assert (await call(session, "take", server="shop", what="it")).failure is FailureKind.CHANGED
    assert "gone: 'take'" in notes[0]


TOOLS = st.dictionaries(st.sampled_from("abcdef"), st.sampled_from(["string", "integer"]))


@given(first=TOOLS, now=TOOLS)
def test_a_change_names_each_tool_once_and_only_if_it_changed(first: dict, now: dict) -> None:
    def listed(tools: dict) -> dict[str, Tool]:
        return {name: Tool(name=name, input_schema={"type": kind}) for name, kind in tools.items()}

    change = CatalogChange.between(listed(first), listed(now))
    assert all((n in first, n in now) == (True, False) for n in change.gone)
    assert all((n in first, n in now) == (False, True) for n in change.new)
    assert all(first[n] != now[n] for n in change.altered)
    # Undoing what it names gives back the first list.
    undone = {n: k for n, k in now.items() if n not in change.new} | {
        n: first[n] for n in change.gone | change.altered
    }
    assert undone == first
    assert bool(change.text) == (first != now)
