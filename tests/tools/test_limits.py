from __future__ import annotations

import asyncio
import re
from itertools import pairwise

import pytest
from mcp.server import MCPServer

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind
from mcpagent.errors import UserError
from mcpagent.tools.limits import Gate, limits_of
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import InProcessServer
from tests.tools.support import call, memory_echo
from tests.tools.wild import script_server


async def test_no_more_calls_than_allowed_are_at_the_server_at_once() -> None:
    now, most = 0, 0

    async def count() -> str:
        nonlocal now, most
        now += 1
        most = max(most, now)
        await asyncio.sleep(0)
        now -= 1
        return "done"

    server = MCPServer("counted", log_level="ERROR")
    server.add_tool(count)
    limits = {"counted": ServerSection(max_in_flight=3)}
    async with ToolPool(
        [InProcessServer(name="counted", server=server)], ToolsConfig(per_server=limits)
    ) as pool:
        async with pool.session() as session:
            results = await asyncio.gather(*(call(session, "count", server="counted") for _ in range(40)))
        assert [result.failure for result in results] == [None] * 40
        metrics = pool.metrics().servers[0]
        assert (metrics.most_in_flight, metrics.in_flight) == (3, 0)
        assert metrics.waited_max_s > 0
    assert most == 3


async def test_calls_are_spaced_evenly_so_that_no_minute_holds_more_than_allowed() -> None:
    gate = Gate(10, calls_per_minute=1200)  # one each 50 ms
    loop = asyncio.get_running_loop()
    passed: list[float] = []

    async def go() -> None:
        async with gate:
            passed.append(loop.time())

    await asyncio.gather(*(go() for _ in range(6)))
    assert all(later - earlier >= 0.049 for earlier, later in pairwise(passed))


async def test_a_server_that_is_late_is_named_once_with_what_to_lower() -> None:
    """60 calls that it takes one after the other are 3 s; three at once are in time."""
    notes: list[str] = []
    server = script_server("serial.py")
    for most, late in ((60, True), (3, False)):
        config = ToolsConfig(timeout_s=1.0, per_server={"serial": ServerSection(max_in_flight=most)})
        async with ToolPool([server], config, on_note=notes.append) as pool, pool.session() as session:
            calls = (call(session, "work", server="serial") for _ in range(60))
            failures = [result.failure for result in await asyncio.gather(*calls)]
        assert (FailureKind.TIMEOUT in failures) is late
    (note,) = notes
    assert re.search(r"'serial' did not answer a call within 1 s; it had [3-6]\d at once", note)
    assert "tools.per_server.serial.max_in_flight" in note


async def test_a_caller_that_gives_up_while_it_waits_for_its_pace_keeps_no_slot() -> None:
    gate = Gate(1, calls_per_minute=60)
    async with gate:
        pass

    async def go() -> None:
        async with gate:
            pass

    waiting = asyncio.create_task(go())
    await asyncio.sleep(0)
    waiting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiting
    async with asyncio.timeout(5):
        await go()
    assert gate.in_flight == 0


async def test_a_deadline_starts_when_the_slot_is_free() -> None:
    limits = {"echo": ServerSection(max_in_flight=1, timeout_s=1.0)}
    async with ToolPool([memory_echo()], ToolsConfig(per_server=limits)) as pool, pool.session() as session:
        *hung, last = await asyncio.gather(
            *(call(session, "hang") for _ in range(3)), call(session, "echo", text="at last")
        )
        assert {result.failure for result in hung} == {FailureKind.TIMEOUT}
        assert last.content == "at last"  # three deadlines after it was made
        assert pool.metrics().servers[0].waited_max_s >= 3.0
        assert last.latency_s < 1.0


def test_settings_for_a_server_that_is_not_there_name_the_nearest() -> None:
    with pytest.raises(UserError, match="per_server does not name a server: 'ecko'") as error:
        ToolPool([memory_echo()], ToolsConfig(per_server={"ecko": ServerSection()}))
    assert error.value.remedy == "Did you mean echo?"


async def test_a_tool_declared_safe_that_is_not_there_names_the_nearest() -> None:
    with pytest.raises(UserError, match="does not have: 'write'") as error:
        async with ToolPool(
            [memory_echo()], ToolsConfig(per_server={"echo": ServerSection(safe_to_retry=("write",))})
        ):
            pass
    assert error.value.where == "tools.per_server.echo"
    assert error.value.remedy == "Did you mean write_down?"


def test_a_servers_own_section_goes_before_its_entry_and_that_before_what_is_said_of_all() -> None:
    entry = InProcessServer(name="notes", timeout_s=20.0, isolation="episode")
    other = InProcessServer(name="other")
    section = ServerSection(timeout_s=7.0, isolation="shared")
    config = ToolsConfig(timeout_s=40.0)
    own = config.model_copy(update={"per_server": {"notes": section}})
    decided = [limits_of(entry, own), limits_of(entry, config), limits_of(other, own)]
    assert [limits.timeout_s for limits in decided] == [7.0, 20.0, 40.0]
    assert [limits.isolation for limits in decided] == ["shared", "episode", "shared"]
