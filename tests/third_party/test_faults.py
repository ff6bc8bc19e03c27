"""Servers that others wrote are killed at work, and nothing of them is left behind."""

from __future__ import annotations

import asyncio
from typing import Any

import psutil
import pytest

from mcpagent.core.tools import FailureKind
from tests.third_party.servers import INSTALL, Desk, call

pytestmark = pytest.mark.registry

_READ: dict[str, tuple[str, dict[str, Any]]] = {
    "time": ("get_current_time", {"timezone": "UTC"}),
    "git": ("git_branch", {"branch_type": "local"}),
    "fetch": ("fetch", {"url": "http://127.0.0.1:9/"}),
    "sqlite": ("list_tables", {}),
    "everything": ("echo", {"message": "hello"}),
    "filesystem": ("list_allowed_directories", {}),
    "memory": ("read_graph", {}),
}


# Below `uvx`, below `npx`, and without a tool that says it only reads.
QUICK = ("time", "memory", "sqlite")


@pytest.mark.parametrize(
    "name", [*QUICK, *(pytest.param(n, marks=pytest.mark.slow) for n in INSTALL if n not in QUICK)]
)
async def test_a_killed_server_is_started_again(desk: Desk, name: str) -> None:
    tool, arguments = _READ[name]
    if name == "git":
        arguments = {**arguments, "repo_path": str(desk.repo)}
    async with desk.pool(name) as pool, pool.session() as session:
        before = await call(session, f"{name}.{tool}", **arguments)
        (server,) = desk.serving()
        server.kill()
        after = await call(session, f"{name}.{tool}", **arguments)
        if name == "sqlite":
            # None of its tools says that it only reads: the call, and the episode, may have had effects.
            assert after.failure in {FailureKind.CRASHED, FailureKind.UNKNOWN_OUTCOME}, after.content
            async with pool.session() as next_session:
                after = await call(next_session, f"{name}.{tool}", **arguments)
        assert after.failure is before.failure, after.content
        assert name == "time" or after.content == before.content
        (successor,) = desk.serving()
        assert successor.pid != server.pid


@pytest.mark.parametrize("name", ["time", "memory"])
async def test_a_wrapper_that_is_killed_leaves_no_server(desk: Desk, name: str) -> None:
    """`uvx` and `npx` stay above what they start; the out-of-memory killer may choose either."""
    tool, arguments = _READ[name]
    async with desk.session(name) as session:
        (wrapper,) = desk.wrappers()
        wrapper.kill()
        psutil.wait_procs([wrapper], timeout=5)
        assert (await call(session, f"{name}.{tool}", **arguments)).failure is None


async def test_a_stopped_server_costs_its_own_call_the_deadline_and_ends_with_the_rest(desk: Desk) -> None:
    async with desk.session("everything", "memory", timeout_s=3) as session:
        (server,) = (p for p in desk.serving() if any("everything" in word for word in p.cmdline()))
        server.suspend()
        stuck = asyncio.create_task(call(session, "everything.echo", message="hello"))
        assert (await call(session, "memory.read_graph")).failure is None
        assert not stuck.done()
        assert (await stuck).failure is FailureKind.TIMEOUT
