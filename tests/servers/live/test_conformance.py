"""Every tool of the live servers: what it asks of the service, and what it makes of the documented answer."""

from __future__ import annotations

from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult

from mcpagent.servers.names import UpstreamKind
from mcpagent.servers.registry import build_server
from tests.servers.calls import text_of, tools_of, with_client
from tests.servers.live.service import Asked, ReplayService, Reply, shape
from tests.servers.live.world import live_call, skip_unless_real
from tests.servers.test_tools import FIELDS
from tests.servers.test_tools import shape as fields_of

SERVERS = ("polygon", "fmp", "tavily", "slack")
DAYS = {"start_date": "2025-11-12", "end_date": "2025-11-18"}


def _article(title: str, number: int, published: str) -> dict[str, str]:
    return {"title": title, "url": f"https://wire.example/{number}", "published": published}


def _page(number: int) -> dict[str, str]:
    about = f"Passage {number} about pumps."
    return {"title": f"Pumps {number}", "url": f"https://pages.example/{number}", "content": about}


# By tool: its arguments, the request that they become, and the result as read off the shapes by hand.
CASES: dict[str, dict[str, tuple[dict[str, Any], str, dict[str, str], dict[str, Any]]]] = {
    "polygon": {
        "polygon_get_aggs": (
            {"ticker": " exmp ", "frequency": "weekly", **DAYS},
            "GET /v2/aggs/ticker/EXMP/range/1/day/2025-11-12/2025-11-18",
            {"adjusted": "true", "sort": "asc", "limit": "50000"},
            # 2025-11-12 is a Wednesday; the second week comes with the second page.
            {
                "ticker": "EXMP",
                "bars": [
                    {"date": "2025-11-12", "open": 101.5, "close": 104.75},
                    {"date": "2025-11-17", "open": 104.75, "close": 106.0},
                ],
            },
        ),
        "polygon_get_news": (
            {"ticker": "EXMP", "limit": 3},
            "GET /v2/reference/news",
            {"ticker": "EXMP", "order": "desc", "limit": "3"},
            {
                "articles": [
                    _article("Example Works opens a plant", 1, "2025-11-18"),
                    _article("Example Works names a chief", 2, "2025-11-17"),
                    _article("Example Works buys a supplier", 3, "2025-11-10"),
                ]
            },
        ),
        "polygon_get_ticker_details": (
            {"ticker": "EXMP"},
            "GET /v3/reference/tickers/EXMP",
            {},
            {"ticker": "EXMP", "name": "Example Works", "market_cap": 2771126040150},
        ),
        "polygon_get_market_status": (
            {},
            "GET /v1/marketstatus/now",
            {},
            {"market": "extended-hours", "server_time": "2025-11-18T17:37:37-05:00"},
        ),
        "polygon_get_previous_close": (
            {"ticker": "EXMP"},
            "GET /v2/aggs/ticker/EXMP/prev",
            {},
            {"ticker": "EXMP", "close": 106.0, "volume": 49000000},
        ),
        "polygon_get_last_trade": (
            {"ticker": "EXMP"},
            "GET /v2/last/trade/EXMP",
            {},
            {"ticker": "EXMP", "price": 105.62, "size": 25},
        ),
        "polygon_search_tickers": (
            {"query": "ex"},
            "GET /v3/reference/tickers",
            {"search": "ex", "market": "stocks", "active": "true", "limit": "50"},
            {
                "results": [
                    {"ticker": "EXMP", "name": "Example Works"},
                    {"ticker": "EXMQ", "name": "Exemplar Quarries"},
                ],
                "next_cursor": "YWN0aXZlPXRydWUmc2VhcmNoPWV4",
            },
        ),
    },
    "fmp": {
        "fmp_get_quote": (
            {"symbol": "exmp"},
            "GET /quote",
            {"symbol": "EXMP"},
            {"symbol": "EXMP", "price": 232.8, "change_percent": 2.1},
        ),
        "fmp_get_company_profile": (
            {"symbol": "EXMP"},
            "GET /profile",
            {"symbol": "EXMP"},
            {"symbol": "EXMP", "name": "Example Works", "sector": "Industrials"},
        ),
        "fmp_get_income_statement": (
            {"symbol": "EXMP", "limit": 2},
            "GET /income-statement",
            {"symbol": "EXMP", "period": "annual", "limit": "2"},
            {
                "symbol": "EXMP",
                "statements": [
                    {"fiscal_year": "2024", "revenue": 391035000000, "net_income": 93736000000},
                    {"fiscal_year": "2023", "revenue": 383285000000, "net_income": -96995000000},
                ],
            },
        ),
        "fmp_get_market_gainers": (
            {"limit": 1},
            "GET /biggest-gainers",
            {},
            {"tickers": [{"symbol": "EXMB", "change_percent": 88.33}]},
        ),
        "fmp_get_market_losers": (
            {},
            "GET /biggest-losers",
            {},
            {
                "tickers": [
                    {"symbol": "EXMD", "change_percent": -41.67},
                    {"symbol": "EXMC", "change_percent": -3.25},
                ]
            },
        ),
        "fmp_search_ticker": (
            {"query": "exm"},
            "GET /search-symbol",
            {"query": "exm", "limit": "5"},
            # The names fill up what the symbols leave, each company once.
            {
                "results": [
                    {"symbol": "EXMP", "name": "Example Works"},
                    {"symbol": "ZEXM", "name": "Example Zinc"},
                ]
            },
        ),
        "fmp_get_stock_news": (
            {"symbol": "EXMP", "limit": 1},
            "GET /news/stock",
            {"symbols": "EXMP", "limit": "1"},
            {"articles": [_article("Example Works, part 2", 2, "2025-11-18")]},
        ),
        "fmp_get_change_percent": (
            {"symbol": "EXMP"},
            "GET /stock-price-change",
            {"symbol": "EXMP"},
            {"symbol": "EXMP", "change_percent": 2.1},
        ),
        "fmp_get_previous_close": (
            {"symbol": "EXMP"},
            "GET /quote",
            {"symbol": "EXMP"},
            {"symbol": "EXMP", "previous_close": 228.01},
        ),
        "fmp_get_historical_prices": (
            {"symbol": "EXMP", **DAYS},
            "GET /historical-price-eod/light",
            {"symbol": "EXMP", "from": "2025-11-12", "to": "2025-11-18"},
            {
                "symbol": "EXMP",
                "prices": [{"date": "2025-11-17", "close": 228.01}, {"date": "2025-11-18", "close": 232.8}],
            },
        ),
        "fmp_search_name": (
            {"query": "example", "limit": 1},
            "GET /search-name",
            {"query": "example", "limit": "1"},
            {"results": [{"symbol": "EXMP", "name": "Example Works"}]},
        ),
    },
    "tavily": {
        "tavily_search": (
            {"query": "pumps", "max_results": 2},
            "POST /search",
            {"query": "pumps", "max_results": "2"},
            {"results": [_page(1), _page(2)]},
        ),
        "tavily_extract": (
            {"url": " https://pages.example/1 "},
            "POST /extract",
            {"urls": "['https://pages.example/1']", "format": "text"},
            {"url": "https://pages.example/1", "text": "The whole text about pumps."},
        ),
        "tavily_qna_search": (
            {"query": "Who makes pumps?"},
            "POST /search",
            {"query": "Who makes pumps?", "include_answer": "True"},
            {"answer": "Example Works makes pumps."},
        ),
    },
    "slack": {
        "list_slack_channels": (
            {"limit": 2},
            "GET /conversations.list",
            {"limit": "2", "exclude_archived": "true"},
            {
                "channels": [{"id": "C012AB3CD", "name": "general"}, {"id": "C061EG9T2", "name": "random"}],
                "next_cursor": "dGVhbTpDMDYxRkE1UEI=",
            },
        ),
        "send_slack_message": (
            {"channel": "#General", "message": "hello"},
            "POST /chat.postMessage",
            {"channel": "C012AB3CD", "text": "hello"},
            {"channel": "C012AB3CD", "ts": "1763497820.000100"},
        ),
        "get_slack_channel_history": (
            {"channel_id": "C012AB3CD", "limit": 2},
            "GET /conversations.history",
            {"channel": "C012AB3CD", "limit": "2"},
            {
                "messages": [
                    {"user": "U123ABC456", "text": "newest", "ts": "1763497810.000100"},
                    {"user": "B0BOT0001", "text": "from a bot", "ts": "1763497805.000100"},
                ]
            },
        ),
        "list_slack_users": (
            {},
            "GET /users.list",
            {"limit": "100"},
            # One who has left is not listed.
            {
                "users": [{"id": "U123ABC456", "name": "ada"}, {"id": "U222BBB222", "name": "boris"}],
                "next_cursor": "",
            },
        ),
        "get_slack_thread_replies": (
            {"channel_id": "desk-7", "thread_ts": "1763497800.000100"},
            "GET /conversations.replies",
            {"channel": "C0LAST001", "ts": "1763497800.000100", "limit": "999"},
            {
                "messages": [
                    {"user": "U222BBB222", "text": "parent", "ts": "1763497800.000100"},
                    {"user": "U123ABC456", "text": "reply", "ts": "1763497803.000100"},
                ]
            },
        ),
        "add_slack_reaction": (
            {"channel_id": "C012AB3CD", "timestamp": "1763497800.000100", "reaction": ":eyes:"},
            "POST /reactions.add",
            {"channel": "C012AB3CD", "timestamp": "1763497800.000100", "name": "eyes"},
            {"channel": "C012AB3CD", "ts": "1763497800.000100", "name": "eyes"},
        ),
        "slack_auth_test": (
            {},
            "GET /auth.test",
            {},
            {"user_id": "U0AGENT01", "user": "agent", "team": "Example Works"},
        ),
        "get_slack_workspace_changes": ({}, "", {}, {"messages": [], "reactions": []}),
    },
}
TOOLS = [(server, tool) for server, cases in CASES.items() for tool in cases]


def said(asked: Asked) -> dict[str, str]:
    """The parameters of a request, wherever they are, without the key."""
    given = asked.json if asked.body else asked.query
    return {name: str(value) for name, value in given.items() if name != "apikey"}


@pytest.mark.parametrize(("server", "tool"), TOOLS)
def test_a_tool_asks_as_documented_and_curates_the_documented_answer(
    server: str, tool: str, replay: ReplayService
) -> None:
    arguments, request, parameters, expected = CASES[server][tool]
    if tool == "tavily_qna_search":
        replay.answer("/tavily/search", Reply(body=shape("tavily/answer")))
    result = live_call(server, tool, **arguments)
    assert not result.is_error, text_of(result)
    assert result.structured_content == expected
    # As embedded; a session that wrote nothing has no fields below its lists.
    assert tool == "get_slack_workspace_changes" or fields_of(expected) == FIELDS[tool]
    made = [(f"{a.method} {a.path.removeprefix(f'/{server}')}", said(a)) for a in replay.asked]
    assert not request or (request, parameters) in made
    assert all(asked.has_key for asked in replay.asked)


@pytest.mark.parametrize("server", SERVERS)
def test_live_and_embedded_tools_have_the_same_schemas_and_differ_in_the_open_world_alone(
    server: str, replay: ReplayService
) -> None:
    live, embedded = [
        tools_of(build_server(server, upstream=kind)) for kind in (UpstreamKind.LIVE, UpstreamKind.EMBEDDED)
    ]
    assert list(live) == list(embedded) == list(CASES[server])
    for name, tool in live.items():
        assert tool.annotations and tool.annotations.open_world_hint is True
        closed = tool.annotations.model_copy(update={"open_world_hint": False})
        assert tool.model_copy(update={"annotations": closed}) == embedded[name]


REAL_CALLS: dict[str, dict[str, Any]] = {
    "polygon_get_aggs": {"ticker": "AAPL", "start_date": "2025-06-02", "end_date": "2025-06-13"},
    "polygon_search_tickers": {"query": "apple", "limit": 2},
    "fmp_get_historical_prices": {"symbol": "AAPL", "start_date": "2025-06-02", "end_date": "2025-06-13"},
    "fmp_search_ticker": {"query": "AAPL"},
    "fmp_search_name": {"query": "Apple"},
    "tavily_search": {"query": "Model Context Protocol"},
    "tavily_extract": {"url": "https://modelcontextprotocol.io"},
    "tavily_qna_search": {"query": "What is the Model Context Protocol?"},
    "list_slack_channels": {},
    "list_slack_users": {},
    "slack_auth_test": {},
    **{
        f"polygon_get_{name}": {"ticker": "AAPL"}
        for name in ("news", "ticker_details", "previous_close", "last_trade")
    },
    **{
        f"fmp_get_{name}": {"symbol": "AAPL"}
        for name in ("quote", "company_profile", "income_statement", "stock_news", "change_percent")
    },
    "fmp_get_previous_close": {"symbol": "AAPL"},
    "polygon_get_market_status": {},
    "fmp_get_market_gainers": {},
    "fmp_get_market_losers": {},
}


@pytest.mark.parametrize("tool", REAL_CALLS)
def test_the_real_services_answer_with_the_same_fields(tool: str) -> None:
    (server,) = (name for name in SERVERS if tool in CASES[name])
    skip_unless_real(server)
    result = live_call(server, tool, **REAL_CALLS[tool])
    assert not result.is_error, text_of(result)
    assert fields_of(result.structured_content) == FIELDS[tool]


def test_pages_follow_the_cursor_and_the_key_stays_with_the_configured_host(replay: ReplayService) -> None:
    """The `next_url` of the shapes names another host, and carries a key as some proxies do."""
    result = live_call("polygon", "polygon_get_aggs", ticker="EXMP", **DAYS)
    assert [bar["date"] for bar in content(result)["bars"]] == [
        f"2025-11-{day}" for day in (12, 13, 14, 17, 18)
    ]
    first, second = replay.asked
    assert second.path == "/polygon/v2/aggs/ticker/EXMP/range/1/day/1763355600000/2025-11-18"
    assert second.query == {"cursor": "bGltaXQ9MyZzb3J0PWFzYw"}
    assert first.has_key and second.has_key


def test_a_search_goes_on_from_the_cursor_that_it_gave(replay: ReplayService) -> None:
    first = content(live_call("polygon", "polygon_search_tickers", query="ex"))
    second = live_call("polygon", "polygon_search_tickers", query="ex", cursor=first["next_cursor"])
    assert content(second) == {"results": [{"ticker": "EXMR", "name": "Example Rail"}], "next_cursor": ""}
    # The service refuses a cursor together with the query that it carries.
    assert replay.asked[-1].query == {"cursor": first["next_cursor"], "limit": "50"}


def test_news_beyond_the_limit_is_not_asked_for(replay: ReplayService) -> None:
    assert len(content(live_call("polygon", "polygon_get_news", ticker="EXMP", limit=2))["articles"]) == 2
    assert len(replay.asked) == 1


def test_quarters_are_named_by_year_and_quarter(replay: ReplayService) -> None:
    replay.answer("/fmp/income-statement", Reply(body=shape("fmp/income_quarter")))
    result = live_call("fmp", "fmp_get_income_statement", symbol="EXMP", period="quarter", limit=2)
    assert [s["fiscal_year"] for s in content(result)["statements"]] == ["2024-Q4", "2024-Q3"]
    assert replay.asked[0].query["period"] == "quarter"


def test_history_is_collected_over_pages(replay: ReplayService) -> None:
    replay.answer("/slack/conversations.history", Reply(body=shape("slack/history_first_page")))
    result = live_call("slack", "get_slack_channel_history", channel_id="C012AB3CD", limit=3)
    assert [m["text"] for m in content(result)["messages"]] == ["newest", "newest", "from a bot"]
    assert [a.query.get("cursor") for a in replay.asked] == [None, "bmV4dF90czoxNzYz"]
    assert [a.query["limit"] for a in replay.asked] == ["3", "2"]


async def test_what_a_session_sent_is_what_it_changed(replay: ReplayService) -> None:
    async with Client(build_server("slack", upstream=UpstreamKind.LIVE)) as client:
        await client.call_tool("send_slack_message", {"channel": "general", "message": "hello"})
        reaction = {"channel_id": "general", "timestamp": "1763497800.000100", "reaction": "eyes"}
        await client.call_tool("add_slack_reaction", reaction)
        await client.call_tool("send_slack_message", {"channel": "random", "message": "not allowed"})
        changes = (await client.call_tool("get_slack_workspace_changes", {})).structured_content
    assert changes == {
        "messages": [{"channel": "C012AB3CD", "text": "hello", "ts": "1763497820.000100"}],
        "reactions": [{"channel": "C012AB3CD", "ts": "1763497800.000100", "name": "eyes"}],
    }


@pytest.mark.parametrize("channel", ["random", "C061EG9T2", "#RANDOM"])
def test_a_channel_that_is_not_allowed_by_name_is_not_written_to(channel: str, replay: ReplayService) -> None:
    sent = live_call("slack", "send_slack_message", channel=channel, message="hello")
    reacted = live_call("slack", "add_slack_reaction", channel_id=channel, timestamp="1.0", reaction="eyes")
    for result in (sent, reacted):
        assert result.is_error and text_of(result) == "Writing to random is not allowed here."
    assert not [a for a in replay.asked if a.method == "POST"]


def test_without_an_allowed_channel_nothing_is_sent(
    replay: ReplayService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("MCPAGENT_SLACK_ALLOW_SEND")
    assert live_call("slack", "send_slack_message", channel="general", message="hello").is_error
    allowed = build_server("slack", upstream=UpstreamKind.LIVE, allow_send=["general"])
    message = {"channel": "C012AB3CD", "message": "hello"}
    assert not with_client(allowed, lambda c: c.call_tool("send_slack_message", message)).is_error


def content(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, text_of(result)
    assert isinstance(result.structured_content, dict)
    return result.structured_content
