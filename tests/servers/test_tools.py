"""Every tool of every server, over an in-memory MCP session."""

from __future__ import annotations

import asyncio
import json

import jsonschema
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from mcp import Client

from mcpagent.core.tools import NONCE_META_KEY
from mcpagent.errors import UserError
from mcpagent.servers.embedded import build
from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.servers.registry import build_server
from mcpagent.servers.tavily import EmbeddedTavily
from tests.servers.calls import CHANNEL, COMPANY, GOOD_CALLS, call, text_of, tools_of

# What small models were trained on: a change makes every dataset and checkpoint stale. Add tools instead.
FIELDS = {
    "polygon_get_aggs": "ticker bars[date open close]",
    "polygon_get_news": "articles[title url published]",
    "polygon_get_ticker_details": "ticker name market_cap",
    "polygon_get_market_status": "market server_time",
    "polygon_get_previous_close": "ticker close volume",
    "polygon_get_last_trade": "ticker price size",
    "polygon_search_tickers": "results[ticker name] next_cursor",
    "fmp_get_quote": "symbol price change_percent",
    "fmp_get_company_profile": "symbol name sector",
    "fmp_get_income_statement": "symbol statements[fiscal_year revenue net_income]",
    "fmp_get_market_gainers": "tickers[symbol change_percent]",
    "fmp_get_market_losers": "tickers[symbol change_percent]",
    "fmp_search_ticker": "results[symbol name]",
    "fmp_get_stock_news": "articles[title url published]",
    "fmp_get_change_percent": "symbol change_percent",
    "fmp_get_previous_close": "symbol previous_close",
    "fmp_get_historical_prices": "symbol prices[date close]",
    "fmp_search_name": "results[symbol name]",
    "tavily_search": "results[title url content]",
    "tavily_extract": "url text",
    "tavily_qna_search": "answer",
    "list_slack_channels": "channels[id name] next_cursor",
    "send_slack_message": "channel ts",
    "get_slack_channel_history": "messages[user text ts]",
    "list_slack_users": "users[id name] next_cursor",
    "get_slack_thread_replies": "messages[user text ts]",
    "add_slack_reaction": "channel ts name",
    "slack_auth_test": "user_id user team",
    "get_slack_workspace_changes": "messages[channel text ts] reactions[channel ts name]",
    "execute_python": "result output",
    "process_mcp_data": "result output",
    "store_execution_result": "key n_stored",
    "get_execution_context": "language version sandbox stored",
    "analyze_financial_data": "n_prices total_return mean_return best_return worst_return annual_volatility "
    "max_drawdown",
    "create_data_pipeline": "steps[operation count] result",
}
LIMITED = {
    "polygon": "polygon_get_aggs polygon_get_news polygon_get_ticker_details polygon_get_market_status "
    "polygon_get_previous_close",
    "fmp": "fmp_get_quote fmp_get_company_profile fmp_get_income_statement fmp_get_market_gainers "
    "fmp_get_market_losers fmp_search_ticker fmp_get_stock_news fmp_get_change_percent "
    "fmp_get_previous_close",
    "tavily": "tavily_search tavily_extract tavily_qna_search",
    "slack": "list_slack_channels send_slack_message get_slack_channel_history",
    "python": "execute_python process_mcp_data store_execution_result get_execution_context",
}
WRITING = {"send_slack_message", "add_slack_reaction", "store_execution_result"}
REPLACING = {"store_execution_result"}


def shape(value: object) -> str:
    """`{"a": 1, "b": [{"c": 2}]}` as "a b[c]"."""
    assert isinstance(value, dict)
    return " ".join(f"{k}[{shape(v[0])}]" if isinstance(v, list) else k for k, v in value.items())


@pytest.mark.parametrize("server", BUILTIN_NAMES)
async def test_every_tool_answers_with_structured_content_that_fits_its_advertised_schema(
    server: str,
) -> None:
    async with Client(build_server(server)) as client:
        tools = {tool.name: tool for tool in (await client.list_tools()).tools}
        assert set(tools) == set(GOOD_CALLS[server])
        for name, arguments in GOOD_CALLS[server].items():
            schema = tools[name].output_schema
            assert schema is not None
            result = await client.call_tool(name, arguments)
            assert not result.is_error, text_of(result)
            jsonschema.validate(result.structured_content, schema)
            assert text_of(result) == json.dumps(result.structured_content, ensure_ascii=False)
            assert shape(result.structured_content) == FIELDS[name]


@pytest.mark.parametrize("server", BUILTIN_NAMES)
def test_the_limited_set_is_a_subset_with_the_same_schemas(server: str) -> None:
    limited, full = tools_of(build_server(server, limited=True)), tools_of(build_server(server))
    assert list(limited) == LIMITED[server].split()
    assert all(full[name] == tool for name, tool in limited.items())


@pytest.mark.parametrize("server", BUILTIN_NAMES)
def test_tools_are_described_in_one_short_sentence_and_annotated_honestly(server: str) -> None:
    for name, tool in tools_of(build_server(server)).items():
        assert tool.description and tool.description.count(".") == 1 and len(tool.description) <= 60
        assert tool.annotations is not None
        assert tool.annotations.read_only_hint is (name not in WRITING)
        assert tool.annotations.idempotent_hint is (name not in WRITING or name in REPLACING)
        assert tool.annotations.destructive_hint is (name in REPLACING)
        assert "ctx" not in tool.input_schema["properties"]


@pytest.mark.parametrize(
    ("server", "tool", "arguments", "message"),
    [
        ("polygon", "polygon_get_previous_close", {"ticker": "ABCD"}, "Unknown symbol ABCD."),
        ("fmp", "fmp_get_quote", {"symbol": "A" * 500}, f"Unknown symbol {'A' * 40}...."),
        ("fmp", "fmp_get_quote", {"symbol": "\ud800"}, "Unknown symbol \ufffd."),
        ("fmp", "fmp_get_quote", {}, "Invalid arguments. symbol: Field required."),
        ("fmp", "fmp_get_market_gainers", {"limit": 0}, "limit must be at least 1."),
        ("polygon", "polygon_get_quote", {}, "Unknown tool: polygon_get_quote"),
        (
            "polygon",
            "polygon_get_aggs",
            {"ticker": COMPANY.ticker, "start_date": "2025-11-17", "end_date": "2025-11-01"},
            "start_date is after end_date.",
        ),
        (
            "polygon",
            "polygon_get_aggs",
            {"ticker": COMPANY.ticker, "start_date": "last week", "end_date": "2025-11-01"},
            "start_date must be a date like 2025-11-17.",
        ),
        ("polygon", "polygon_search_tickers", {"cursor": "9" * 5000}, f"Unknown cursor {'9' * 40}...."),
        (
            "tavily",
            "tavily_extract",
            {"url": "https://nowhere.example"},
            "No page at https://nowhere.example.",
        ),
        ("tavily", "tavily_qna_search", {"query": "?!"}, "No page answers this query."),
        ("slack", "send_slack_message", {"channel": "C1", "message": "x"}, "Unknown channel C1."),
        ("slack", "send_slack_message", {"channel": CHANNEL.id, "message": " "}, "message is empty."),
    ],
)
def test_a_failing_call_is_a_tool_error_with_a_clear_text_and_a_nonce(
    server: str, tool: str, arguments: dict[str, object], message: str
) -> None:
    result = call(server, tool, **arguments)
    assert result.is_error
    assert text_of(result) == message
    assert result.meta and result.meta[NONCE_META_KEY]


def test_symbols_match_in_any_case_and_with_spaces_and_numbers_may_be_strings() -> None:
    result = call("polygon", "polygon_get_news", ticker=f" {COMPANY.ticker.lower()} ", limit="1")
    assert len(result.structured_content["articles"]) == 1


@given(query=st.text(max_size=60) | st.text("'\"*()^:-+AND OR NEAR_", max_size=30), limit=st.integers(1, 3))
@example(query=COMPANY.ticker, limit=2**70)
def test_no_query_text_is_search_syntax(query: str, limit: int) -> None:
    found = asyncio.run(EmbeddedTavily().tavily_search(query, max_results=limit))
    assert all(result.title and result.url and result.content for result in found.results)


def test_weekly_bars_open_with_the_first_day_and_close_with_the_last() -> None:
    # 2025-11-10 is a Monday; the data set ends on Monday 2025-11-17.
    days = {"start_date": "2025-11-10", "end_date": "2025-11-17"}
    daily = call("polygon", "polygon_get_aggs", ticker=COMPANY.ticker, **days).structured_content["bars"]
    weekly = call("polygon", "polygon_get_aggs", ticker=COMPANY.ticker, frequency="weekly", **days)
    assert [bar["date"] for bar in daily] == [
        "2025-11-10",
        "2025-11-11",
        "2025-11-12",
        "2025-11-13",
        "2025-11-14",
        "2025-11-17",
    ]
    assert weekly.structured_content["bars"] == [
        {"date": "2025-11-10", "open": daily[0]["open"], "close": daily[4]["close"]},
        daily[5],
    ]


@pytest.mark.parametrize(("limit", "pages"), [(150, 3), (200, 2), (1000, 1)])
async def test_cursors_visit_every_item_once(limit: int, pages: int) -> None:
    async with Client(build_server("slack")) as client:
        seen: list[list[str]] = []
        cursor = ""
        while not seen or cursor:
            page = await client.call_tool("list_slack_channels", {"limit": limit, "cursor": cursor})
            seen.append([c["id"] for c in page.structured_content["channels"]])
            cursor = page.structured_content["next_cursor"]
    assert len(seen) == pages
    assert [i for page in seen for i in page] == [c.id for c in build().channels]


def test_an_unknown_server_is_a_user_error_that_names_the_near_match() -> None:
    with pytest.raises(UserError) as raised:
        build_server("polygom")
    assert raised.value.remedy == "did you mean 'polygon'?"
