from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent

from mcpagent import __version__
from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import NONCE_META_KEY, FailureKind, ToolCall, ToolResult
from mcpagent.errors import UserError
from mcpagent.servers.provider import builtin_servers
from mcpagent.tools.contract import Purpose
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from mcpagent.tools.wire import readable_result
from tests.house import ROOT
from tests.tools.servers import echo
from tests.tools.support import call, memory_echo


async def test_tools_keep_their_names_and_only_collisions_are_prefixed() -> None:
    one, two = MCPServer("one", log_level="ERROR"), MCPServer("two", log_level="ERROR")
    for server in (one, two):
        server.add_tool(lambda: "x", name="search")
    two.add_tool(lambda: "y", name="fetch")
    servers = [InProcessServer(name="one", server=one), InProcessServer(name="two", server=two)]
    async with ToolPool(servers) as pool, pool.session() as session:
        by_model_name = await session.call(ToolCall(id="1", tool="two__search", arguments={}))
        assert (by_model_name.server, by_model_name.tool) == ("two", "search")
        assert by_model_name.content == "x"
        assert {name: spec.dotted for name, spec in pool.tools.items()} == {
            "one__search": "one.search",
            "two__search": "two.search",
            "fetch": "two.fetch",
        }


async def test_the_versions_are_those_that_the_servers_report() -> None:
    silent = InProcessServer(name="silent", server=MCPServer("silent", version="7.2", log_level="ERROR"))
    pool = ToolPool([silent, *builtin_servers(["slack"])])
    assert pool.versions == {}
    async with pool:
        assert pool.versions == {"silent": "7.2", "slack": __version__}


def test_the_isolation_of_a_server_is_what_was_chosen_else_what_its_kind_needs() -> None:
    servers = [memory_echo(), memory_echo("own", isolation="episode"), *builtin_servers(["slack", "fmp"])]
    pool = ToolPool(servers, ToolsConfig(per_server={"fmp": ServerSection(isolation="episode")}))
    names = ("echo", "own", "slack", "fmp")
    assert [pool.isolation(name) for name in names] == ["shared", "episode", "episode", "episode"]
    assert ToolPool(servers).isolation("fmp") == "shared"


def test_catalog_hash_changes_when_a_description_changes() -> None:
    async def catalog_hash(description: str) -> str:
        server = InProcessServer(name="echo", server=echo.build(echo_description=description))
        async with ToolPool([server]) as pool:
            return pool.catalog_hash

    first, same, other = (asyncio.run(catalog_hash(d)) for d in ("Say it.", "Say it.", "Say it. <!-- -->"))
    assert first == same != other


async def test_a_session_sees_its_own_notes_and_never_those_of_another() -> None:
    async with ToolPool([memory_echo(isolation="episode")]) as pool:
        async with pool.session() as left, pool.session() as right:
            await call(left, "write_down", note="left 1")
            await call(right, "write_down", note="right 1")
            seen = await call(left, "write_down", note="left 2")
        assert seen.structured == {"result": ["left 1", "left 2"]}


async def test_a_shared_server_keeps_its_state_across_sessions() -> None:
    async with ToolPool([memory_echo(isolation="shared")]) as pool:
        async with pool.session() as first:
            await call(first, "write_down", note="a")
        async with pool.session() as second:
            seen = await call(second, "write_down", note="b")
        assert seen.structured == {"result": ["a", "b"]}


@pytest.mark.parametrize(
    ("value", "reason"),
    [
        (float("nan"), "the number nan"),
        ("\ud800", "lone surrogate"),
        (10**4300, "more than 4300 digits"),
        (json.loads("[" * 101 + "]" * 101), "nesting deeper than 100"),
        (b"bytes", "type bytes"),
        ({1: 2}, ""),
    ],
    ids=["nan", "surrogate", "digits", "depth", "bytes", "key"],
)
async def test_arguments_that_no_transport_can_carry_fail_before_they_are_sent(
    value: Any, reason: str
) -> None:
    async with ToolPool([memory_echo()]) as pool, pool.session() as session:
        result = await call(session, "echo", text=value)
        assert result.failure is FailureKind.INVALID_ARGUMENTS
        assert reason in result.content
        assert not FailureKind.INVALID_ARGUMENTS.is_infrastructure


async def test_a_long_result_loses_its_middle_and_says_how_much() -> None:
    async with (
        ToolPool([memory_echo()], ToolsConfig(result_limit_chars=100)) as pool,
        pool.session() as session,
    ):
        result = await call(session, "big", size=1000)
        head, cut, tail = result.content.split("\n")
        assert head.startswith("headx") and tail.endswith("xtail")
        assert cut == f"[... {result.truncated_chars} characters cut ...]"
        assert len(head) + len(tail) + result.truncated_chars == 1000
        assert len(result.content) <= 100


async def test_an_image_becomes_a_typed_placeholder() -> None:
    async with ToolPool([memory_echo()]) as pool, pool.session() as session:
        result = await call(session, "picture")
        assert result.content == "look:\n[image image/png, 5 bytes]"


async def test_a_refusal_of_the_tool_differs_from_arguments_that_break_its_schema() -> None:
    async with ToolPool([memory_echo()]) as pool, pool.session() as session:
        refused = await call(session, "refuse")
        broken = await call(session, "echo", txet="hi")
        assert refused.failure is FailureKind.TOOL_ERROR
        assert "not today" in refused.content
        assert broken.failure is FailureKind.INVALID_ARGUMENTS
        assert refused.is_error and broken.is_error


async def test_an_unknown_tool_is_a_result_that_names_the_nearest() -> None:
    async with ToolPool([memory_echo()]) as pool, pool.session() as session:
        result = await call(session, "ecko")
        assert result.failure is FailureKind.UNKNOWN_TOOL
        assert "Did you mean echo?" in result.content


async def test_the_allow_list_hides_and_denies_the_rest() -> None:
    async with (
        ToolPool([memory_echo()], ToolsConfig(allow_list=("echo.pid", "picture"))) as pool,
        pool.session() as session,
    ):
        assert set(pool.tools) == {"pid", "picture"}
        assert (await call(session, "big", size=9)).failure is FailureKind.DENIED
        assert (await call(session, "pid")).failure is None


async def test_an_allow_list_entry_that_names_nothing_is_a_user_error() -> None:
    with pytest.raises(UserError, match=r"echo\.pidd") as error:
        async with ToolPool([memory_echo()], ToolsConfig(allow_list=("echo.pidd",))):
            pass
    assert error.value.remedy == "Did you mean echo.pid?"


class _LyingServer(MCPServer[Any]):
    async def call_tool(self, name: str, arguments: dict[str, Any], context: Any = None) -> CallToolResult:
        return CallToolResult(content=[TextContent(type="text", text="ok")], structured_content={"result": 5})


async def test_a_result_that_breaks_the_output_schema_is_the_servers_fault() -> None:
    async def truth() -> str:
        return "text"

    server = _LyingServer("liar", log_level="ERROR")
    server.add_tool(truth)  # declares {"result": string}
    async with ToolPool([InProcessServer(name="liar", server=server)]) as pool, pool.session() as session:
        result = await call(session, "truth", server="liar")
        assert result.failure is FailureKind.SCHEMA
        assert "at result: 5 is not" in result.content
        assert result.failure.is_infrastructure


_ROW = re.compile(r"^\| (.+) \| (.+) \| `(.*)` \|$", re.MULTILINE)


async def test_the_model_is_shown_of_each_result_what_the_page_says() -> None:
    page = (ROOT / "docs" / "tools.md").read_text()
    section = page.partition("## What the model is shown")[2].partition("\n## ")[0]
    rows = [tuple(cell.strip("`") for cell in row) for row in _ROW.findall(section)]
    raw = [
        {
            key: json.loads(cell)
            for key, cell in (("content", blocks), ("structuredContent", structured))
            if cell != "-"
        }
        for blocks, structured, _ in rows
    ]

    class Replies(MCPServer[Any]):
        async def call_tool(
            self, name: str, arguments: dict[str, Any], context: Any = None
        ) -> CallToolResult:
            return readable_result(raw[arguments["row"]])

    async def reply(row: int):  # type: ignore[no-untyped-def]  # a result type would declare an output schema
        raise AssertionError

    server = Replies("replies", log_level="ERROR")
    server.add_tool(reply)
    async with ToolPool([InProcessServer(name="replies", server=server)]) as pool, pool.session() as session:
        results = [await call(session, "reply", server="replies", row=row) for row in range(len(rows))]
    assert [result.content for result in results] == [shown.replace("⏎", "\n") for *_, shown in rows]
    assert len(rows) >= 8


async def test_builtin_calls_carry_a_nonce_and_reach_the_ledger_with_their_purpose(tmp_path: Path) -> None:
    ledger = tmp_path / "calls.jsonl"
    servers = builtin_servers(["slack"])
    async with ToolPool(servers, ledger=ledger) as pool, pool.session() as session:
        read = ToolCall(id="1", tool="list_slack_channels", arguments={"limit": 1})
        first = await session.call(read)
        await session.call(read, purpose=Purpose.GRADE)
        second = await session.call(read)
        assert first.failure is None
        nonces = [str(first.meta[NONCE_META_KEY]), str(second.meta[NONCE_META_KEY])]
    lines = [json.loads(line) for line in ledger.read_text().splitlines()]
    assert [line["nonce"] for line in lines] == nonces  # the grading call is kept apart
    assert len(set(nonces)) == 2


@pytest.mark.timeout(60)
@pytest.mark.parametrize("starter_first", [True, False])
async def test_a_call_at_the_very_moment_in_which_its_server_is_up_does_not_hold_up_the_loop(
    starter_first: bool,
) -> None:
    async def call_when_up(pool: ToolPool) -> list[ToolResult]:
        async with pool.session() as session:
            opening: asyncio.Task[Any] | None = None

            async def at_that_moment() -> ToolResult:
                nonlocal opening
                while opening is None or not opening.done():
                    if opening is None:
                        opening = next((t for t in asyncio.all_tasks() if t.get_name() == "open echo"), None)
                    await asyncio.sleep(0)
                return await call(session, "echo", text="now")

            calls = [call(session, "echo", text="first"), at_that_moment()]
            return await asyncio.gather(*(calls if starter_first else reversed(calls)))

    async with ToolPool([memory_echo(isolation="episode")]) as pool:
        outcome = await call_when_up(pool)
    assert [result.failure for result in outcome] == [None, None]


def test_two_servers_of_one_name_are_refused() -> None:
    with pytest.raises(UserError, match="two servers are called 'echo'"):
        ToolPool([memory_echo(), memory_echo()])
