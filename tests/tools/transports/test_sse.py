"""HTTP+SSE, the older transport, against the SDK's own server of it."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from mcpagent.core.tools import FailureKind
from mcpagent.errors import UserError
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, load_servers
from tests.tools.support import call
from tests.tools.wild import served


@contextmanager
def _older(path: str = "sse", **env: str) -> Iterator[HttpServer]:
    with served("older.py", **env) as port:
        yield HttpServer(name="older", url=f"http://127.0.0.1:{port}/{path}", is_sse=path == "sse")


async def test_calls_side_by_side_get_their_own_answers_and_what_goes_wrong_costs_its_own_call() -> None:
    with _older() as server:
        async with ToolPool([replace(server, timeout_s=5)]) as pool, pool.session() as session:
            said = await asyncio.gather(
                *(call(session, "echo", server="older", text=f"{n}") for n in range(40))
            )
            assert [result.content for result in said] == [str(n) for n in range(40)]
            lost = await call(session, "big", server="older", size=9 * 2**20)  # is not read
            assert lost.failure is not None and lost.failure.is_infrastructure
            async with pool.session() as another:  # on a new stream: the old one was cut off in the answer
                assert (await call(another, "echo", server="older", text="c")).content == "c"
        async with ToolPool([replace(server, timeout_s=1)]) as pool, pool.session() as session:
            late, heard = await asyncio.gather(
                call(session, "slow", server="older"), call(session, "echo", server="older", text="a")
            )
            assert (late.failure, heard.content) == (FailureKind.TIMEOUT, "a")
            assert (await call(session, "echo", server="older", text="b")).content == "b"
            assert (await call(session, "leave", server="older")).failure is FailureKind.UNKNOWN_OUTCOME


async def test_a_url_that_refuses_streamable_http_is_tried_over_the_older_transport() -> None:
    """The entry says nothing of the transport: 405 for a POST is what sends a client there."""

    with _older("mcp", ONE="1") as server:
        assert not server.is_sse
        async with ToolPool([server]) as pool, pool.session() as session:
            assert (await call(session, "echo", server="older", text="found")).content == "found"


async def test_a_url_with_neither_transport_is_said_as_it_was() -> None:
    with _older("nothing") as server, pytest.raises(UserError, match="HTTP 404"):
        async with ToolPool([server]):
            pass


def test_the_type_of_an_entry_chooses_the_older_transport(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{"mcpServers": {"a": {"type": "sse", "url": "https://h/sse"}, "b": {"url": "https://h/sse"}}}'
    )
    assert [s.is_sse for s in load_servers(path).servers if isinstance(s, HttpServer)] == [True, False]
