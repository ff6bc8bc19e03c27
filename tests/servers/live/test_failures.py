"""What goes wrong at a service: the model's own faults are text for it, all else is infrastructure."""

from __future__ import annotations

import asyncio
import socket
from itertools import cycle
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import INTERNAL_ERROR, REQUEST_TIMEOUT

from mcpagent.core.tools import FailureKind, ToolCall, ToolResult
from mcpagent.servers.live.client import Rate
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.servers.calls import text_of, with_client
from tests.servers.live.service import ReplayService, Reply, shape
from tests.servers.live.world import failure, impatient, live_call

AGGS = {"ticker": "EXMP", "start_date": "2025-11-12", "end_date": "2025-11-18"}
QUOTE = "/fmp/quote"
SEARCH = "/tavily/search"
TRADE = "/polygon/v2/last/trade/EXMP"
HISTORY = "/slack/conversations.history"
POST = "/slack/chat.postMessage"
A_CALL: dict[str, tuple[str, dict[str, Any]]] = {
    QUOTE: ("fmp_get_quote", {"symbol": "EXMP"}),
    SEARCH: ("tavily_search", {"query": "pumps"}),
    TRADE: ("polygon_get_last_trade", {"ticker": "EXMP"}),
    HISTORY: ("get_slack_channel_history", {"channel_id": "C012AB3CD"}),
    POST: ("send_slack_message", {"channel": "general", "message": "hello"}),
}
READS = [QUOTE, SEARCH, TRADE, HISTORY]
TWO_WAYS = [SEARCH, HISTORY]  # a status in HTTP, and one in the body


def server_of(path: str) -> str:
    return path.split("/")[1]


def requests(replay: ReplayService, path: str) -> int:
    return sum(asked.path == path for asked in replay.asked)


def polygon_says(code: int, /, **body: str) -> Reply:
    return Reply(status=code, body={"request_id": "r", **body})


def fmp_says(text: str, *, status: int = 200) -> Reply:
    return Reply(status=status, body={"Error Message": text})


def tavily_says(status: int, text: str) -> Reply:
    return Reply(status=status, body={"detail": {"error": text}})


def slack_says(error: str, **more: Any) -> Reply:
    return Reply(body={"ok": False, "error": error, **more})


@pytest.mark.parametrize(
    ("path", "reply", "tool", "arguments", "message"),
    [
        (
            "/polygon/v3/reference/tickers/NOSUCH",
            polygon_says(404, status="NOT_FOUND", message="Ticker not found."),
            "polygon_get_ticker_details",
            {"ticker": "nosuch"},
            "Unknown symbol nosuch.",
        ),
        (
            "/polygon/v2/aggs/ticker/NOSUCH/prev",
            Reply(body=shape("polygon/aggs_none")),
            "polygon_get_previous_close",
            {"ticker": "NOSUCH"},
            "Unknown symbol NOSUCH.",
        ),
        (
            "/polygon/v3/reference/tickers",
            polygon_says(400, status="ERROR", error="Invalid cursor"),
            "polygon_search_tickers",
            {"cursor": "x"},
            "Unknown cursor x.",
        ),
        (
            QUOTE,
            Reply(body=shape("fmp/empty")),
            "fmp_get_quote",
            {"symbol": "NOSUCH"},
            "Unknown symbol NOSUCH.",
        ),
        (
            "/tavily/extract",
            Reply(body=shape("tavily/extract_failed")),
            "tavily_extract",
            {"url": "https://pages.example/404"},
            "No page at https://pages.example/404.",
        ),
        (
            SEARCH,
            tavily_says(400, "Query is too long."),
            "tavily_search",
            {"query": "x" * 500},
            "Query is too long.",
        ),
        (
            SEARCH,
            Reply(body=shape("tavily/search")),
            "tavily_qna_search",
            {"query": "?"},
            "No page answers this query.",
        ),
        (HISTORY, slack_says("channel_not_found"), *A_CALL[HISTORY], "Unknown channel."),
        (POST, slack_says("is_archived"), *A_CALL[POST], "The channel is archived."),
    ],
)
def test_what_the_model_asked_wrongly_is_a_tool_error_that_says_so(
    path: str, reply: Reply, tool: str, arguments: dict[str, Any], message: str, replay: ReplayService
) -> None:
    replay.answer(path, reply)
    result = live_call(server_of(path), tool, **arguments)
    assert result.is_error and text_of(result) == message
    assert requests(replay, path) == 1


@pytest.mark.parametrize(
    ("server", "tool", "arguments"),
    [
        ("polygon", "polygon_get_last_trade", {"ticker": "../../v1/marketstatus/now?x="}),
        ("polygon", "polygon_get_aggs", {**AGGS, "start_date": "yesterday"}),
        ("polygon", "polygon_get_news", {"ticker": "EXMP", "limit": 0}),
        ("fmp", "fmp_get_quote", {"symbol": "EXMP,EXMQ"}),
        ("tavily", "tavily_qna_search", {"query": " "}),
    ],
)
def test_a_call_that_cannot_be_right_costs_no_request(
    server: str, tool: str, arguments: dict[str, Any], replay: ReplayService
) -> None:
    assert live_call(server, tool, **arguments).is_error
    assert replay.asked == []


@pytest.mark.parametrize(
    ("server", "tool", "arguments"),
    [
        ("polygon", "polygon_search_tickers", {"query": "a\ud800b"}),
        ("fmp", "fmp_get_quote", {"symbol": "\udfff"}),
        ("tavily", "tavily_extract", {"url": "https://pages.example/\ud800"}),
        ("slack", "send_slack_message", {"channel": "general", "message": "a\ud800b"}),
        ("slack", "get_slack_channel_history", {"channel_id": "\ud800"}),
    ],
)
def test_text_that_utf_8_does_not_have_breaks_nothing(
    server: str, tool: str, arguments: dict[str, Any], replay: ReplayService
) -> None:
    result = live_call(server, tool, **arguments)
    asked = [str(a.json if a.body else a.query) for a in replay.asked]
    assert any("\ufffd" in text for text in asked) or text_of(result) == "Unknown channel \ufffd."


@pytest.mark.parametrize(
    ("path", "reply", "parts"),
    [
        (
            TRADE,
            polygon_says(401, status="ERROR", error="Unknown API Key"),
            ("refused the key in MASSIVE_API_KEY (401)", "Unknown API Key"),
        ),
        (
            TRADE,
            polygon_says(403, status="NOT_AUTHORIZED", message="You are not entitled to this data."),
            ("refused the key in MASSIVE_API_KEY (403)", "not entitled"),
        ),
        (
            QUOTE,
            fmp_says("Invalid API KEY.", status=401),
            ("refused the key in FMP_API_KEY (401)", "Invalid API KEY"),
        ),
        (
            QUOTE,
            fmp_says("Special Endpoint: not in your subscription.", status=402),
            ("refused the key in FMP_API_KEY (402)", "Special Endpoint"),
        ),
        (
            QUOTE,
            fmp_says("Legacy Endpoint : only for users from before August 31, 2025.", status=403),
            ("(403)", "Legacy Endpoint", "MCPAGENT_FMP_BASE_URL must be the address of the stable API"),
        ),
        (QUOTE, fmp_says("Something is wrong."), ("answered with an error: Something is wrong.",)),
        (
            SEARCH,
            tavily_says(401, "Unauthorized: missing or invalid API key."),
            ("refused the key in TAVILY_API_KEY (401)", "invalid API key"),
        ),
        (
            SEARCH,
            tavily_says(432, "This request exceeds your plan's set usage limit."),
            ("the plan's limit is reached (432)", "usage limit"),
        ),
        (
            SEARCH,
            tavily_says(433, "This request exceeds the pay-as-you-go limit."),
            ("the pay-as-you-go limit is reached (433)",),
        ),
        (
            HISTORY,
            slack_says("invalid_auth"),
            ("refused conversations.history with SLACK_BOT_TOKEN (invalid_auth)",),
        ),
        (
            HISTORY,
            slack_says("missing_scope", needed="channels:history", provided="chat:write"),
            ("missing_scope, the scope channels:history is missing",),
        ),
        (HISTORY, slack_says("a_code_of_tomorrow"), ("a_code_of_tomorrow",)),
        (
            TRADE,
            Reply(status=404, raw=b"<html>no such page</html>"),
            ("answered 404", "MCPAGENT_POLYGON_BASE_URL"),
        ),
        (
            TRADE,
            Reply(status=302, headers={"Location": "https://elsewhere.example/"}, raw=b""),
            ("answered 302",),
        ),
        (
            TRADE,
            Reply(body={"status": "OK", "results": {"p": "much", "s": 1}}),
            ("not shaped as documented (results.p: ",),
        ),
        (HISTORY, Reply(body={"ok": True}), ("not shaped as documented (messages: Field required)",)),
    ],
)
def test_what_is_not_the_models_fault_is_a_protocol_error_at_once(
    path: str, reply: Reply, parts: tuple[str, ...], replay: ReplayService
) -> None:
    replay.always(path, reply)
    error = failure(impatient(server_of(path)), A_CALL[path][0], **A_CALL[path][1])
    assert error.error.code == INTERNAL_ERROR
    assert error.error.message.startswith(f"{server_of(path)}: ")
    for part in parts:
        assert part in error.error.message
    assert requests(replay, path) == 1


PASSING = {
    "429": Reply(status=429, body={"error": "too many"}, headers={"Retry-After": "0"}),
    "503": Reply(status=503, raw=b"upstream is down"),
    "truncated": Reply(body={"status": "OK", "results": [1, 2, 3]}, sent_bytes=10),
    "malformed": Reply(raw=b'{"status": "OK", "results": ['),
    "not utf-8": Reply(raw=b'{"status": "\xff"}'),
    "too deep": Reply(raw=b"[" * 100_000),
}


@pytest.mark.parametrize(("kind", "path"), [*zip(PASSING, cycle(READS), strict=False)])
def test_a_failure_that_passes_costs_one_more_request_and_nothing_else(
    kind: str, path: str, replay: ReplayService
) -> None:
    replay.answer(path, PASSING[kind])
    tool, arguments = A_CALL[path]
    result = with_client(impatient(server_of(path)), lambda client: client.call_tool(tool, arguments))
    assert not result.is_error
    assert requests(replay, path) == 2


@pytest.mark.parametrize(("kind", "path"), [*zip(["503", "malformed"] * 2, READS, strict=True)])
def test_a_failure_that_stays_is_given_up_after_the_last_attempt(
    kind: str, path: str, replay: ReplayService
) -> None:
    replay.always(path, PASSING[kind])
    error = failure(impatient(server_of(path), attempts=3), A_CALL[path][0], **A_CALL[path][1])
    assert error.error.code == INTERNAL_ERROR
    assert requests(replay, path) == 3


@pytest.mark.parametrize("path", TWO_WAYS)
def test_retry_after_takes_the_place_of_the_own_pause(path: str, replay: ReplayService) -> None:
    """Own pauses of up to 8 s do not fit into the deadline: only the 0 s that the service asks for do."""
    replay.answer(
        path,
        *(
            Reply(status=429, body={"ok": False, "error": "ratelimited"}, headers={"Retry-After": after})
            for after in ("0", "Wed, 21 Oct 2015 07:28:00 GMT")
        ),
    )
    tool, arguments = A_CALL[path]
    server = impatient(server_of(path), attempts=3, backoff_s=1e9, deadline_s=5.0)
    assert not with_client(server, lambda client: client.call_tool(tool, arguments)).is_error
    assert requests(replay, path) == 3


@pytest.mark.parametrize("path", TWO_WAYS)
def test_a_wait_beyond_the_deadline_is_not_begun(path: str, replay: ReplayService) -> None:
    replay.always(path, Reply(status=429, body={"error": "slow down"}, headers={"Retry-After": "3600"}))
    error = failure(impatient(server_of(path)), A_CALL[path][0], **A_CALL[path][1])
    assert "its rate limit is reached" in error.error.message
    assert "it asks to wait 3600 s" in error.error.message
    assert requests(replay, path) == 1


@pytest.mark.parametrize(("sent_bytes", "path"), [*zip([0, 5] * 2, READS, strict=True)])
def test_a_body_that_never_ends_is_given_up_at_the_deadline(
    sent_bytes: int, path: str, replay: ReplayService
) -> None:
    replay.always(path, Reply(body={"ok": True, "status": "OK"}, sent_bytes=sent_bytes, holds=True))
    error = failure(impatient(server_of(path), deadline_s=0.3), A_CALL[path][0], **A_CALL[path][1])
    assert error.error.code == REQUEST_TIMEOUT
    assert "no answer within 0.3 s" in error.error.message


@pytest.mark.parametrize("path", TWO_WAYS)
def test_a_service_that_nobody_answers_for_is_infrastructure(
    path: str, replay: ReplayService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    monkeypatch.setenv(f"MCPAGENT_{server_of(path).upper()}_BASE_URL", f"http://127.0.0.1:{port}")
    error = failure(impatient(server_of(path)), A_CALL[path][0], **A_CALL[path][1])
    assert "the connection failed" in error.error.message


@pytest.mark.parametrize("kind", ["503", "truncated", "malformed"])
def test_a_message_that_may_have_been_sent_is_not_sent_again(kind: str, replay: ReplayService) -> None:
    replay.always(POST, PASSING[kind])
    error = failure(impatient("slack"), *A_CALL[POST][:1], **A_CALL[POST][1])
    assert "chat.postMessage may have been carried out" in error.error.message
    assert requests(replay, POST) == 1


def test_a_message_that_the_rate_limit_refused_is_sent_again(replay: ReplayService) -> None:
    replay.answer(
        POST, Reply(status=429, body={"ok": False, "error": "ratelimited"}, headers={"Retry-After": "0"})
    )
    tool, arguments = A_CALL[POST]
    assert not with_client(impatient("slack"), lambda client: client.call_tool(tool, arguments)).is_error
    assert requests(replay, POST) == 2


@pytest.mark.parametrize("path", TWO_WAYS)
async def test_the_clients_of_a_server_share_its_rate(path: str, replay: ReplayService) -> None:
    server = impatient(server_of(path), rate=Rate(2, 3600), deadline_s=1.0)
    tool, arguments = A_CALL[path]

    async def one() -> str:
        async with Client(server) as client:
            try:
                return text_of(await client.call_tool(tool, arguments))
            except MCPError as error:
                return error.error.message

    outcome = await asyncio.gather(*(one() for _ in range(4)))
    refused = [text for text in outcome if "its rate here is 2 calls in 3600 s" in text]
    assert len(refused) == 2 and all("no answer within 1 s" in text for text in refused)
    assert requests(replay, path) == 2


def test_the_pool_tells_infrastructure_from_the_models_fault(replay: ReplayService) -> None:
    async def results(server: Any, *paths: str) -> list[ToolResult]:
        async with ToolPool([InProcessServer(name="live", server=server)]) as pool, pool.session() as session:
            calls = [ToolCall(id=path, tool=A_CALL[path][0], arguments=A_CALL[path][1]) for path in paths]
            return [await session.call(call) for call in calls]

    replay.always(QUOTE, Reply(status=503, raw=b"", headers={"Retry-After": "0"}))
    (down,) = asyncio.run(results(impatient("fmp"), QUOTE))
    assert down.failure is FailureKind.UPSTREAM and down.failure.is_infrastructure
    assert "it answered 503" in down.content
    replay.always(QUOTE, Reply(body=[]))
    (unknown,) = asyncio.run(results(impatient("fmp"), QUOTE))
    assert unknown.failure is FailureKind.TOOL_ERROR and unknown.content == "Unknown symbol EXMP."
    replay.always(QUOTE, Reply(body=[], sent_bytes=1, holds=True))
    (late,) = asyncio.run(results(impatient("fmp", deadline_s=0.2), QUOTE))
    # The server's own deadline: `timeout` is what this client measured.
    assert late.failure is FailureKind.UPSTREAM and "no answer within 0.2 s" in late.content
