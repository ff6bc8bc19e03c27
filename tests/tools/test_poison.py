"""Poison over real processes and real HTTP, both ways: it costs its own call and nothing else."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.tools.pool import PoolSession, ToolPool
from mcpagent.tools.servers_config import HttpServer, StdioServer
from tests.tools.servers.poison import TOOLS
from tests.tools.support import call
from tests.tools.wild import http_poison, stdio_poison

TRANSPORTS = [
    ("stdio",),
    ("stdio", "modern"),
    ("http",),
    ("http", "sse"),
    ("http", "modern"),
    ("http", "modern", "sse"),
]
REPAIRED = {
    "surrogate": "a\ufffdb",
    "bytes": "a\ufffd\ufffdb",
    "no content": "[no content]",
    "unknown content": "[hologram that cannot be shown]",
    "id as text": "a",
    "id as another number": "a",
    "id as text of another number": "a",
    "null error": "a",
}
REFUSED = {
    "digits": FailureKind.SCHEMA,
    "nan": FailureKind.SCHEMA,
    "infinity": FailureKind.SCHEMA,
    "infinity in meta": FailureKind.SCHEMA,
    "deep": FailureKind.SCHEMA,
    "deeper": FailureKind.SCHEMA,
    "oversize": FailureKind.OVERSIZE,
    "oversize, id last": FailureKind.OVERSIZE,
    "cut": FailureKind.SCHEMA,
    "no result": FailureKind.SCHEMA,
    "a list": FailureKind.SCHEMA,
    "another version": FailureKind.SCHEMA,
    # Codes of the server's own; by some of them this client says that it timed out, or that nothing was sent.
    **{
        f"error {code}": FailureKind.UPSTREAM
        for code in (-32001, -32000, -32050, 404, *range(-33009, -33000))
    },
    "error -32601": FailureKind.SCHEMA,
    "error -32602": FailureKind.INVALID_ARGUMENTS,
}


@contextmanager
def _server(transport: str, *flags: str) -> Iterator[StdioServer | HttpServer]:
    if transport == "stdio":
        yield stdio_poison(*flags)
    else:
        with http_poison(*flags) as server:
            yield server


async def _poison(session: PoolSession, tool: str, **arguments: Any) -> ToolResult:
    return await call(session, tool, server="poison", **arguments)


@pytest.mark.parametrize("transport", TRANSPORTS, ids="-".join)
async def test_a_server_that_answers_too_much_or_nonsense_is_named_once_for_each(
    transport: tuple[str, ...],
) -> None:
    notes: list[str] = []
    with _server(*transport) as server:
        pool = ToolPool([server], on_note=notes.append)
        async with pool, pool.session() as session:
            for kind in ("oversize", "no result", "oversize", "no result"):
                await _poison(session, "poison", kind=kind)
    assert [note.partition(")")[0] for note in notes] == [
        f"server 'poison' failed a call of poison ({kind}" for kind in ("oversize", "schema")
    ]


@pytest.mark.parametrize("transport", TRANSPORTS, ids="-".join)
async def test_a_poisoned_response_costs_its_own_call_and_no_neighbour(transport: tuple[str, ...]) -> None:
    with _server(*transport, "badlist") as server:
        async with ToolPool([server]) as pool, pool.session() as session:
            assert set(pool.tools) == {*TOOLS, "no schema"}  # what is no tool costs the list no other
            neighbour = asyncio.create_task(_poison(session, "wait"))
            for kind, text in REPAIRED.items():
                result = await _poison(session, "poison", kind=kind)
                assert (kind, result.content, result.failure) == (kind, text, None)
            for kind, failure in REFUSED.items():
                result = await _poison(session, "poison", kind=kind)
                assert (kind, result.failure) == (kind, failure), result.content
                assert (await _poison(session, "echo", text=kind)).content == kind
            assert not neighbour.done()
            assert (await _poison(session, "release")).content == "released"
            assert (await neighbour).content == "waited"


@pytest.mark.parametrize("transport", TRANSPORTS[1:3], ids="-".join)
async def test_a_huge_argument_passes_or_costs_its_own_call(transport: tuple[str, ...]) -> None:
    with _server(*transport) as server:
        pool = ToolPool([server], ToolsConfig(result_limit_chars=10_000_000))
        async with pool, pool.session() as session:
            neighbour = asyncio.create_task(_poison(session, "wait"))
            huge = await _poison(session, "echo", text="x" * 5_000_000)
            if transport[0] == "stdio":
                assert (len(huge.content), huge.failure) == (5_000_000, None)
            else:
                # Real HTTP servers take 4 MiB: it is the argument that is wrong, not the server.
                assert huge.failure is FailureKind.INVALID_ARGUMENTS
                assert "HTTP 413" in huge.content
            assert (await _poison(session, "release")).content == "released"
            assert (await neighbour).content == "waited"
