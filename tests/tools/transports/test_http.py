"""Streamable HTTP against real servers: what happens to one exchange stays with it."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    CallToolRequest,
    CallToolRequestParams,
    CallToolResult,
    TextContent,
)

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind
from mcpagent.errors import UserError
from mcpagent.tools.limits import BACKOFF_FIRST_S, FAILURES_TO_OPEN, BreakerState
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, Isolation
from mcpagent.tools.transports.http import http_streams
from mcpagent.tools.transports.oauth import Authorization
from mcpagent.tools.wire import FORBIDDEN, NOT_SENT, RESPONSE_LOST, THROTTLED
from tests.tools.support import call
from tests.tools.wild import http_poison, served

STATUS_CODES = {
    302: INVALID_REQUEST,
    307: INVALID_REQUEST,  # to another host
    401: FORBIDDEN,
    403: FORBIDDEN,
    413: INVALID_PARAMS,
    418: INVALID_REQUEST,
    429: THROTTLED,
    500: RESPONSE_LOST,
    502: RESPONSE_LOST,
    503: NOT_SENT,
}

WAYS: tuple[Isolation, ...] = ("shared", "episode")


@contextmanager
def _web(*arguments: str) -> Iterator[HttpServer]:
    """The SDK's own server."""
    with served("web.py", *arguments) as port:
        yield HttpServer(name="web", url=f"http://127.0.0.1:{port}/mcp")


@asynccontextmanager
async def _client(server: HttpServer, *, mode: str = "auto") -> AsyncIterator[Client]:
    streams = http_streams(server, on_eof=lambda: None, on_end=lambda _: None, auth=Authorization(server))
    async with Client(streams, mode=mode) as client:
        yield client


async def _say(client: Client, tool: str, **arguments: Any) -> str:
    params = CallToolRequestParams(name=tool, arguments=arguments)
    result = await client.session.send_request(CallToolRequest(params=params), CallToolResult)
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def _code(client: Client, tool: str, **arguments: Any) -> int:
    with pytest.raises(MCPError) as error:
        await _say(client, tool, **arguments)
    return error.value.code


@pytest.mark.parametrize("flags", [(), ("modern",)], ids=["legacy", "modern"])
async def test_an_http_error_says_whether_the_call_was_made_and_costs_no_neighbour(
    flags: tuple[str, ...],
) -> None:
    with http_poison(*flags) as server:
        async with _client(server) as client:
            neighbour = asyncio.create_task(_say(client, "wait"))
            codes = {status: await _code(client, "status", code=status) for status in STATUS_CODES}
            assert codes == STATUS_CODES
            assert await _code(client, "hang_up") == RESPONSE_LOST
            assert await _say(client, "echo", text="fine") == "fine"
            assert not neighbour.done()
            assert await _say(client, "release") == "released"
            assert await neighbour == "waited"


async def test_a_lost_exchange_leaves_the_pool_its_connection() -> None:
    with http_poison() as server:
        async with ToolPool([server]) as pool, pool.session() as session, pool.session() as other:
            neighbour = asyncio.create_task(call(other, "wait", server="poison"))
            lost = await call(session, "hang_up", server="poison")
            assert lost.failure is FailureKind.UNKNOWN_OUTCOME
            assert (await call(other, "release", server="poison")).content == "released"
            assert (await neighbour).content == "waited"


async def test_too_many_calls_wait_as_long_as_the_server_asks_and_open_no_breaker() -> None:
    with http_poison() as server:
        async with ToolPool([server], ToolsConfig(retry=0)) as pool, pool.session() as session:
            # `busy` may be called by nobody twice: it says nothing of its effects.
            results = await asyncio.gather(
                *(call(session, "busy", server="poison", times=8, retry_after="0.3") for _ in range(4))
            )
            assert {result.content for result in results} == {"taken"}
            (metrics,) = pool.metrics().servers
            assert metrics.breaker is BreakerState.CLOSED
            assert metrics.restarts == 0
            assert metrics.waited_max_s >= 0.3
            (busy,) = metrics.tools
            assert (busy.calls, busy.repeats, busy.failures) == (4, 8, {})


async def test_a_wait_past_the_deadline_is_not_begun() -> None:
    with http_poison() as server:
        async with ToolPool([server], ToolsConfig(timeout_s=5.0)) as pool, pool.session() as session:
            for _ in range(FAILURES_TO_OPEN):
                lost = await call(session, "busy", server="poison", times=999, retry_after="3600")
                assert lost.failure is FailureKind.UPSTREAM
                assert "takes no more calls for now (HTTP 429); it asks to wait 3600 s" in lost.content
            (metrics,) = pool.metrics().servers
            assert (metrics.breaker, metrics.waited_max_s < 5.0) == (BreakerState.CLOSED, True)
            assert (await call(session, "echo", server="poison", text="fine")).content == "fine"


async def test_a_refusal_of_our_key_is_said_at_once() -> None:
    with http_poison() as server:
        async with ToolPool([server]) as pool, pool.session() as session:
            refused = await call(session, "status", server="poison", code=403)
            assert refused.failure is FailureKind.UPSTREAM
            assert "refuses us (HTTP 403): look at " in refused.content
            (metrics,) = pool.metrics().servers
            assert (metrics.breaker, metrics.tools[0].repeats) == (BreakerState.CLOSED, 0)


async def test_a_half_open_breaker_lets_one_call_try() -> None:
    with http_poison() as server:
        async with ToolPool([server], ToolsConfig(retry=0)) as pool, pool.session() as session:

            def breaker() -> BreakerState:
                return pool.metrics().servers[0].breaker

            while breaker() is BreakerState.CLOSED:
                await call(session, "status", server="poison", code=503)
            await asyncio.sleep(pool.metrics().servers[0].next_try_s)
            trial = asyncio.create_task(call(session, "wait", server="poison"))
            while pool.metrics().servers[0].in_flight == 0:
                await asyncio.sleep(0)
            others = await asyncio.gather(
                *(call(session, "echo", server="poison", text="me too") for _ in range(20))
            )
            assert {result.failure for result in others} == {FailureKind.CRASHED}
            assert all("it is being tried again" in result.content for result in others)
            # `release` would be refused too, so the trial is let go from outside.
            async with _client(server) as outsider:
                await _say(outsider, "release")
            assert (await trial).content == "waited"
            assert (await call(session, "echo", server="poison", text="fine")).content == "fine"


async def test_a_call_past_its_deadline_costs_no_neighbour() -> None:
    with http_poison() as server:
        async with ToolPool([replace(server, timeout_s=2.0)]) as pool, pool.session() as session:
            waiting = asyncio.create_task(call(session, "wait", server="poison"))
            while not waiting.done():
                assert (await call(session, "echo", server="poison", text="fine")).content == "fine"
            assert (await waiting).failure is FailureKind.TIMEOUT


async def test_more_calls_than_an_http_client_has_connections_are_all_answered() -> None:
    with http_poison() as server:
        async with _client(server) as client:
            waiting = [asyncio.create_task(_say(client, "wait")) for _ in range(150)]
            async with asyncio.timeout(60):
                assert await _say(client, "release", after=150) == "released"
            assert set(await asyncio.gather(*waiting)) == {"waited"}


async def test_a_call_that_was_under_way_when_the_session_was_forgotten_is_still_answered() -> None:
    async def said(pool: ToolPool, tool: str, **arguments: Any) -> str:
        async with pool.session() as session:
            return (await call(session, tool, server="poison", **arguments)).content

    with http_poison() as server:
        async with ToolPool([server]) as pool:
            waiting = asyncio.create_task(said(pool, "wait"))
            for _ in range(20):  # so that it has arrived
                await said(pool, "echo", text="fine")
            await said(pool, "forget")
            assert await said(pool, "echo", text="back") == "back"
            assert pool.metrics().servers[0].restarts == 1
            assert await said(pool, "release", after=1) == "released"
            assert (await waiting) == "waited"


async def test_a_stream_that_ends_early_is_resumed() -> None:
    with http_poison("sse", "resume") as server:
        async with _client(server) as client:
            assert await _say(client, "echo", text="from the second stream") == "from the second stream"


def test_headers_of_the_configuration_are_sent_and_a_refusal_shows_no_secret() -> None:
    async def run(server: HttpServer) -> str:
        async with ToolPool([server]) as pool, pool.session() as session:
            return (await call(session, "echo", server="poison", text="in")).content

    with http_poison("auth") as server:
        right = replace(server, headers={"Authorization": "Bearer right"})
        assert asyncio.run(run(right)) == "in"
        url = server.url.replace("//", "//user:s3cret@") + "?key=s3cret"
        wrong = replace(server, url=url, headers={"Authorization": "Bearer s3cret"})
        with pytest.raises(UserError, match=r"refuses us \(HTTP 401\)") as error:
            asyncio.run(run(wrong))
        assert "s3cret" not in str(error.value)


async def test_a_server_on_this_machine_is_reached_without_the_proxy_of_the_environment(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("HTTP_PROXY", "http://127.0.0.1:9")  # nobody is there
    monkeypatch.delenv("NO_PROXY", raising=False)
    monkeypatch.delenv("no_proxy", raising=False)

    with http_poison() as server:
        async with _client(server) as client:
            assert await _say(client, "echo", text="direct") == "direct"


def test_a_server_that_is_down_or_elsewhere_is_a_clear_start_error() -> None:
    async def run(server: HttpServer) -> None:
        async with ToolPool([server]):
            pass

    with http_poison() as server:
        pass
    with pytest.raises(UserError, match=f"cannot connect to {server.url.removesuffix('/mcp')}"):
        asyncio.run(run(server))
    with _web() as web, pytest.raises(UserError, match=r"nothing at this path \(HTTP 404\)"):
        asyncio.run(run(replace(web, url=web.url.replace("/mcp", "/elsewhere"))))


@pytest.mark.parametrize("code", [301, 302, 307, 308])
async def test_a_redirect_to_the_same_path_with_a_slash_is_followed_with_its_body(code: int) -> None:
    with http_poison("auth", f"{code}=/mcp/") as server:
        keyed = replace(server, headers={"Authorization": "Bearer right"})
        async with ToolPool([keyed]) as pool, pool.session() as session:
            assert (await call(session, "echo", server="poison", text="there")).content == "there"


@pytest.mark.parametrize(
    ("place", "why"),
    [
        ("/other", "the request would become a GET"),
        ("/mcp/?key=1", "the request would become a GET"),
        ("http://localhost.invalid/mcp/", "it would get the keys"),
    ],
)
async def test_a_moved_path_is_not_followed_elsewhere(place: str, why: str) -> None:
    refusal = pytest.raises(UserError, match=f"which is not followed: {why}")
    with http_poison(f"301={place}") as server, refusal:
        async with ToolPool([server]):
            pass


def _port(server: HttpServer) -> str:
    return server.url.removesuffix("/mcp").rpartition(":")[2]


def _both_ways(server: HttpServer) -> list[HttpServer]:
    """Shared by all episodes, and with a connection for each."""
    return [replace(server, name=isolation, isolation=isolation) for isolation in WAYS]


async def test_calls_wait_for_a_server_that_somebody_restarts() -> None:
    async with AsyncExitStack() as stack:
        with _web() as server:
            pool = await stack.enter_async_context(ToolPool(_both_ways(server)))
            session = await stack.enter_async_context(pool.session())
            for way in WAYS:
                assert (await call(session, "echo", server=way, text="before")).content == "before"
        newcomer = await stack.enter_async_context(pool.session())
        # `echo` may not be repeated: these are answered because none was ever sent.
        early = [
            asyncio.create_task(call(caller, "echo", server=way, text=way))
            for way in WAYS
            for caller in (*[session] * 20, newcomer)
        ]
        await asyncio.sleep(BACKOFF_FIRST_S * 2 ** (FAILURES_TO_OPEN - 1))  # enough to open a breaker
        assert not any(task.done() for task in early)
        assert {server.breaker for server in pool.metrics().servers} == {BreakerState.CLOSED}
        with _web(_port(server)):
            answers = await asyncio.gather(*early)
            assert [answer.content for answer in answers] == [way for way in WAYS for _ in range(21)]


async def test_a_server_that_stays_away_is_waited_for_as_long_as_one_that_starts() -> None:
    limits = {way: ServerSection(start_timeout_s=2.0) for way in WAYS}
    async with AsyncExitStack() as stack:
        with http_poison() as server:
            pool = await stack.enter_async_context(
                ToolPool(_both_ways(server), ToolsConfig(per_server=limits))
            )
        session = await stack.enter_async_context(pool.session())
        lost = await asyncio.gather(
            *(call(session, "echo", server=way, text="anyone?") for way in WAYS for _ in range(20))
        )
        assert {result.failure for result in lost} == {FailureKind.CRASHED}  # never sent: no secret
        assert all("cannot connect" in result.content for result in lost)
        while BreakerState.CLOSED in {server.breaker for server in pool.metrics().servers}:
            await asyncio.sleep(0.05)
        for way in WAYS:
            refused = await call(session, "echo", server=way, text="anyone?")  # from now on nobody waits
            assert (refused.failure, refused.latency_s) == (FailureKind.CRASHED, 0.0)
            assert "the next try is in" in refused.content


async def test_an_argument_that_the_protocol_wants_in_a_header_gets_there() -> None:
    with _web() as server:
        async with ToolPool(_both_ways(server)) as pool, pool.session() as session:
            for way in WAYS:
                assert (await call(session, "where", server=way, region="eu")).content == "in eu"
