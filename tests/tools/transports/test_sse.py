"""HTTP+SSE, the older transport, against the SDK's own server of it."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
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
from tests.tools.wild import SCRIPTS


@contextmanager
def _older(path: str = "sse", **env: str) -> Iterator[HttpServer]:
    command = [sys.executable, str(SCRIPTS / "older.py")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, env={**os.environ, **env}) as process:
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline())
            yield HttpServer(name="older", url=f"http://127.0.0.1:{port}/{path}", is_sse=path == "sse")
        finally:
            process.kill()


def test_calls_side_by_side_get_their_own_answers_and_too_large_a_one_is_not_read() -> None:
    async def run(server: HttpServer) -> None:
        async with ToolPool([replace(server, timeout_s=5)]) as pool, pool.session() as session:
            said = await asyncio.gather(
                *(call(session, "echo", server="older", text=f"{n}") for n in range(40))
            )
            assert [result.content for result in said] == [str(n) for n in range(40)]
            lost = await call(session, "big", server="older", size=9 * 2**20)
            assert lost.failure is not None and lost.failure.is_infrastructure
            async with pool.session() as another:  # on a new stream: the old one was cut off in the answer
                assert (await call(another, "echo", server="older", text="c")).content == "c"

    with _older() as server:
        asyncio.run(run(server))


def test_a_call_past_its_deadline_leaves_its_neighbours_alone() -> None:
    async def run(server: HttpServer) -> None:
        async with ToolPool([replace(server, timeout_s=1)]) as pool, pool.session() as session:
            late, heard = await asyncio.gather(
                call(session, "slow", server="older"), call(session, "echo", server="older", text="a")
            )
            assert (late.failure, heard.content) == (FailureKind.TIMEOUT, "a")
            assert (await call(session, "echo", server="older", text="b")).content == "b"

    with _older() as server:
        asyncio.run(run(server))


def test_a_server_that_dies_in_a_call_is_a_failure_of_that_call() -> None:
    async def run(server: HttpServer) -> FailureKind | None:
        async with ToolPool([replace(server, timeout_s=5)]) as pool, pool.session() as session:
            return (await call(session, "leave", server="older")).failure

    with _older() as server:
        assert asyncio.run(run(server)) is FailureKind.UNKNOWN_OUTCOME


def test_a_url_that_refuses_streamable_http_is_tried_over_the_older_transport() -> None:
    """The entry says nothing of the transport: 405 for a POST is what sends a client there."""

    async def run(server: HttpServer) -> str:
        async with ToolPool([server]) as pool, pool.session() as session:
            return (await call(session, "echo", server="older", text="found")).content

    with _older("mcp", ONE="1") as server:
        assert not server.is_sse
        assert asyncio.run(run(server)) == "found"


def test_a_url_with_neither_transport_is_said_as_it_was() -> None:
    async def run(server: HttpServer) -> None:
        async with ToolPool([server]):
            pass

    with _older("nothing") as server, pytest.raises(UserError, match="HTTP 404"):
        asyncio.run(run(server))


def test_the_type_of_an_entry_chooses_the_older_transport(tmp_path: Path) -> None:
    path = tmp_path / "mcp.json"
    path.write_text(
        '{"mcpServers": {"a": {"type": "sse", "url": "https://h/sse"}, "b": {"url": "https://h/sse"}}}'
    )
    assert [s.is_sse for s in load_servers(path).servers if isinstance(s, HttpServer)] == [True, False]
