"""Servers of other libraries over streamable HTTP, which somebody else starts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from mcpagent.core.tools import FailureKind
from tests.third_party.servers import Desk, call, free_port

pytestmark = pytest.mark.registry

_SHELF = """
from fastmcp import FastMCP

mcp = FastMCP("shelf")

@mcp.tool(annotations={"readOnlyHint": True})
def add(a: int, b: int) -> int:
    return a + b

@mcp.tool
def keep(note: str) -> str:
    with open("notes.txt", "a") as notes:
        notes.write(note + "\\n")
    return "kept"
"""


@pytest.fixture
def running(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> Iterator[Desk]:
    """A desk in its own folder; what was begun at it is killed at the end."""
    monkeypatch.chdir(desk.folder)
    yield desk
    desk.stop()


def _everything(desk: Desk) -> tuple[str, Callable[[], object]]:
    """Its URL, and what starts it there."""
    desk.install("everything")
    port = free_port()
    command = ("npx", "-y", "@modelcontextprotocol/server-everything", "streamableHttp")
    return f"http://127.0.0.1:{port}/mcp", lambda: desk.start(
        ("env", f"PORT={port}", *command), ready="listening on port"
    )


def _shelf(desk: Desk) -> tuple[str, Callable[[], object]]:
    desk.install("fastmcp")
    port = str(free_port())
    Path("shelf.py").write_text(_SHELF)
    command = ("uvx", "fastmcp", "run", "shelf.py", "--transport", "http", "--port", port, "--no-banner")
    return f"http://127.0.0.1:{port}/mcp", lambda: desk.start(command, ready="Uvicorn running")


async def test_a_server_of_another_library_does_what_it_is_asked_over_http(running: Desk) -> None:
    url, start = _shelf(running)
    start()
    async with running.pool(shelf={"type": "http", "url": url}) as pool, pool.session() as session:
        assert (await call(session, "shelf.add", a=40, b=2)).structured == {"result": 42}
        kept = await asyncio.gather(*(call(session, "shelf.keep", note=str(n)) for n in range(40)))
        assert {result.content for result in kept} == {"kept"}
        wrong = await call(session, "shelf.add", a="forty", b=2)
        assert wrong.failure is FailureKind.INVALID_ARGUMENTS
    assert sorted(map(int, Path("notes.txt").read_text().split())) == list(range(40))


@pytest.mark.parametrize("make", [_everything, _shelf])
async def test_an_http_server_that_was_killed_and_started_again_is_used_again(
    running: Desk, make: Callable[[Desk], tuple[str, Callable[[], object]]]
) -> None:
    url, start = make(running)
    tool = "server.echo" if make is _everything else "server.add"
    arguments = {"message": "hello"} if make is _everything else {"a": 1, "b": 2}
    start()
    async with running.pool(server={"type": "http", "url": url}) as pool, pool.session() as session:
        before = await call(session, tool, **arguments)
        assert before.failure is None, before.content
        running.stop()
        start()
        after = await call(session, tool, **arguments)
        assert (after.failure, after.content) == (None, before.content)
