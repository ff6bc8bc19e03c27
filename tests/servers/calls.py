"""What the servers' tests share: one good call of every tool, and a way to make calls."""

from __future__ import annotations

import asyncio
import os
import subprocess
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mcp import Client
from mcp.server import MCPServer
from mcp.types import CallToolResult, TextContent, Tool

from mcpagent.core.tools import NONCE_META_KEY
from mcpagent.servers.embedded import build
from mcpagent.servers.registry import build_server
from tests.running import Command

COMPANY = build().companies[0]
CHANNEL = build().channels[0]
DAYS = {"start_date": "2025-11-01", "end_date": "2025-11-17"}

GOOD_CALLS: dict[str, dict[str, dict[str, Any]]] = {
    "polygon": {
        "polygon_get_aggs": {"ticker": COMPANY.ticker, **DAYS},
        "polygon_get_news": {"ticker": COMPANY.ticker},
        "polygon_get_ticker_details": {"ticker": COMPANY.ticker},
        "polygon_get_market_status": {},
        "polygon_get_previous_close": {"ticker": COMPANY.ticker},
        "polygon_get_last_trade": {"ticker": COMPANY.ticker},
        "polygon_search_tickers": {},
    },
    "fmp": {
        "fmp_get_quote": {"symbol": COMPANY.ticker},
        "fmp_get_company_profile": {"symbol": COMPANY.ticker},
        "fmp_get_income_statement": {"symbol": COMPANY.ticker},
        "fmp_get_market_gainers": {},
        "fmp_get_market_losers": {},
        "fmp_search_ticker": {"query": COMPANY.ticker},
        "fmp_get_stock_news": {"symbol": COMPANY.ticker},
        "fmp_get_change_percent": {"symbol": COMPANY.ticker},
        "fmp_get_previous_close": {"symbol": COMPANY.ticker},
        "fmp_get_historical_prices": {"symbol": COMPANY.ticker, **DAYS},
        "fmp_search_name": {"query": COMPANY.name},
    },
    "tavily": {
        "tavily_search": {"query": f"target {COMPANY.ticker}"},
        "tavily_extract": {"url": COMPANY.pages[0].url},
        "tavily_qna_search": {"query": f"What is the target of {COMPANY.ticker}?"},
    },
    "slack": {
        "list_slack_channels": {},
        "send_slack_message": {"channel": CHANNEL.id, "message": "hello"},
        "get_slack_channel_history": {"channel_id": CHANNEL.id},
        "list_slack_users": {},
        "get_slack_thread_replies": {"channel_id": CHANNEL.id, "thread_ts": CHANNEL.message.ts},
        "add_slack_reaction": {"channel_id": CHANNEL.id, "timestamp": CHANNEL.message.ts, "reaction": "eyes"},
        "slack_auth_test": {},
        "get_slack_workspace_changes": {},
    },
    "python": {
        "execute_python": {"code": "print('seen')\n6 * 7"},
        "process_mcp_data": {"data": [{"close": 2.5}], "code": "data[0]['close']"},
        "store_execution_result": {"key": "close", "value": 2.5},
        "get_execution_context": {},
        "analyze_financial_data": {"prices": [100, 110, 99]},
        "create_data_pipeline": {"data": [1], "steps": [{"operation": "apply", "expression": "data[0]"}]},
    },
}


def text_of(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


def nonce_of(result: CallToolResult) -> str:
    assert result.meta is not None
    return result.meta[NONCE_META_KEY]


def with_client(server: MCPServer[Any], work: Callable[[Client], Awaitable[Any]]) -> Any:
    """Run `work` with one in-memory client of `server`."""

    async def main() -> Any:
        async with Client(server) as client:
            return await work(client)

    return asyncio.run(main())


def tools_of(server: MCPServer[Any]) -> dict[str, Tool]:
    """What it lists, by name."""

    async def listed(client: Client) -> dict[str, Tool]:
        return {tool.name: tool for tool in (await client.list_tools()).tools}

    return with_client(server, listed)


def call(server: str, tool: str, /, **arguments: Any) -> CallToolResult:
    """One call on a new client of a full server without a ledger."""
    return with_client(build_server(server), lambda client: client.call_tool(tool, arguments))


@contextmanager
def over_http(name: str, *options: str, **env: str) -> Iterator[tuple[str, str]]:
    """A built-in server as a process: its address, and what it says before that. It says nothing more."""
    command = ("serve", name, *options, "--transport", "http", "--port", "0")
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = Command(*command, env={**os.environ, **env}, text=True, **pipes)
    try:
        said, address = "", f"{name} at "
        while address not in (line := process.stderr.readline()):
            assert line, said
            said += line
        yield line.strip().removeprefix(address), said
    finally:
        process.terminate()
        output, errors = process.communicate(timeout=20)
    assert output + errors == ""


def read_lines(path: Path) -> list[str]:
    return path.read_text().splitlines() if path.exists() else []
