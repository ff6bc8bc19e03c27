"""Faults of real server processes: each costs its own call, and nothing else."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import NONCE_META_KEY, FailureKind, ToolResult
from mcpagent.errors import UserError
from mcpagent.tools.pool import PoolSession, ToolPool
from tests.tools.support import call, served_builtin, stdio_echo
from tests.tools.wild import living, script_server, stdio_poison


async def _pid(session: PoolSession) -> int:
    result = await call(session, "pid")
    assert result.structured is not None, result.content
    return result.structured["result"]


async def test_a_killed_server_fails_the_call_in_flight_and_answers_the_next() -> None:
    async with ToolPool([stdio_echo()]) as pool, pool.session() as session:
        lost = asyncio.create_task(call(session, "hang"))
        # The answer to `pid` was written after `hang` was sent: the server has both.
        pid = await _pid(session)
        os.kill(pid, signal.SIGKILL)
        result = await lost
        assert result.failure is FailureKind.UNKNOWN_OUTCOME
        assert result.failure.is_infrastructure
        async with pool.session() as other:
            assert (await call(other, "echo", text="back")).content == "back"
            assert await _pid(other) != pid


async def test_a_server_that_died_between_calls_is_replaced_before_a_call_that_writes() -> None:
    async with ToolPool([stdio_echo()]) as pool, pool.session() as session:
        pid = await _pid(session)
        owner = next(task for task in asyncio.all_tasks() if task.get_name() == "run echo")
        os.kill(pid, signal.SIGKILL)
        await asyncio.wait({owner}, timeout=10)
        # Not repeatable, so it succeeds only because it was not sent to the dead server.
        assert (await call(session, "write_down", note="a")).structured == {"result": ["a"]}


async def test_a_lost_call_is_repeated_only_if_the_tool_only_reads(tmp_path: Path) -> None:
    marker, ledger = tmp_path / "marker", tmp_path / "ledger"
    async with ToolPool([stdio_echo()]) as pool, pool.session() as session:
        reading = await call(session, "die_once", marker=str(marker))
        assert (reading.content, reading.failure) == ("alive", None)
        writing = await call(session, "die_after_writing", ledger=str(ledger))
        assert writing.failure is FailureKind.UNKNOWN_OUTCOME
        async with pool.session() as other:
            assert (await call(other, "echo", text="back")).content == "back"
    assert ledger.read_text() == "effect\n"


async def test_a_hung_tool_times_out_and_delays_no_neighbour() -> None:
    finished: list[str] = []

    async def noted(name: str, work: Coroutine[Any, Any, ToolResult]) -> ToolResult:
        result = await work
        finished.append(name)
        return result

    async with ToolPool([stdio_echo()], ToolsConfig(timeout_s=3.0)) as pool, pool.session() as session:
        hanging = asyncio.create_task(noted("hang", call(session, "hang")))
        neighbours = (noted("echo", call(session, "echo", text=str(i))) for i in range(40))
        assert [r.content for r in await asyncio.gather(*neighbours)] == [str(i) for i in range(40)]
        async with asyncio.timeout(15):
            result = await hanging
        assert result.failure is FailureKind.TIMEOUT
        assert result.latency_s >= 3.0
        assert finished == ["echo"] * 40 + ["hang"]
        assert (await call(session, "echo", text="still here")).content == "still here"


async def test_a_stopped_server_is_replaced_after_a_timeout_of_any_size() -> None:
    async def replaced(text: str) -> None:
        async with ToolPool([stdio_echo()], ToolsConfig(timeout_s=2.0)) as pool, pool.session() as session:
            pid = await _pid(session)
            os.kill(pid, signal.SIGSTOP)
            assert (await call(session, "echo", text=text)).failure is FailureKind.TIMEOUT
            # Not safe to repeat, so it succeeds only because it was not sent to the stopped process.
            assert (await call(session, "write_down", note="a")).structured == {"result": ["a"]}
            assert pool.metrics().servers[0].restarts == 1
        assert living({pid}) == set()

    # What fits into the pipe, so that writing it proves nothing, and what does not: the write itself blocks.
    await asyncio.gather(replaced("a"), replaced("x" * 300_000))


async def test_noise_on_stderr_and_garbage_on_stdout_cost_nothing(tmp_path: Path) -> None:
    async with ToolPool([stdio_echo()], log_dir=tmp_path) as pool, pool.session() as session:
        pid = await _pid(session)
        # Far more than a pipe holds: an unread stderr would block the server.
        assert (await call(session, "noise", size=300_000)).content == "done"
        assert (await call(session, "garbage")).content == "done"
        assert (await call(session, "echo", text="fine")).content == "fine"
        assert await _pid(session) == pid
    assert (tmp_path / "echo.log").stat().st_size >= 300_000


async def test_a_builtin_process_writes_to_the_ledger_of_the_pool(tmp_path: Path) -> None:
    ledger = tmp_path / "calls.jsonl"
    async with ToolPool([served_builtin("slack")], ledger=ledger) as pool, pool.session() as session:
        outcome = await call(session, "list_slack_channels", server="slack", limit=1)
    nonce = outcome.meta[NONCE_META_KEY]
    assert [json.loads(line)["nonce"] for line in ledger.read_text().splitlines()] == [nonce]


async def test_a_server_is_asked_once_whether_it_speaks_the_newest_protocol() -> None:
    # The instance of the session is not the one that the pool started with.
    server = stdio_poison()
    pool = ToolPool([server, replace(server, name="own", isolation="episode")])
    async with pool, pool.session() as session:
        assert [(await call(session, "probes", server=name)).content for name in ("poison", "own")] == [
            "1",
            "0",
        ]


async def test_an_isolated_process_lives_as_long_as_its_session() -> None:
    async with ToolPool([stdio_echo(isolation="episode")]) as pool:
        async with pool.session() as left, pool.session() as right:
            pids = [await _pid(left), await _pid(right)]
            assert await _pid(left) == pids[0] != pids[1]
            await call(left, "write_down", note="mine")
            notes = await call(right, "write_down", note="theirs")
            assert notes.structured == {"result": ["theirs"]}
        assert living(pids) == set()


@pytest.mark.parametrize("trait", ["0", "1", "signal", "refuse", "close"])
async def test_a_server_that_ends_at_a_probe_is_started_again_in_the_older_way_once(
    trait: str, tmp_path: Path
) -> None:
    starts = tmp_path / "starts"
    shared = script_server("picky.py", trait, str(starts), name="shared")
    own = script_server("picky.py", trait, str(tmp_path / "own"), name="own")
    pool = ToolPool([shared, replace(own, isolation="episode")])
    async with pool, pool.session() as session, pool.session() as other:
        assert starts.read_text() == "started\n" * 2
        for place in (session, other):
            for name in ("shared", "own"):
                assert (await call(place, "first", server=name)).content == "initialize"
        # The pool's own look at the second took two; what it learned spares each session the probe.
        assert (tmp_path / "own").read_text() == "started\n" * 4
        assert [metrics.restarts for metrics in pool.metrics().servers] == [0, 0]


async def test_a_server_that_ends_at_every_start_is_started_twice_and_quoted_once(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    with pytest.raises(UserError) as error:
        async with ToolPool([script_server("picky.py", "broken", str(starts))]):
            pass
    assert "it ended by itself with exit code 1" in str(error.value)
    assert str(error.value).count("no key") == 1
    assert starts.read_text() == "started\n" * 2


async def test_a_server_that_stays_silent_at_a_probe_is_asked_the_older_way_after_two_seconds(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    # Five seconds of a start: with the SDK's own wait of ten it would fail.
    limits = {"picky": ServerSection(start_timeout_s=5)}
    pool = ToolPool([script_server("picky.py", "silent", str(starts))], ToolsConfig(per_server=limits))
    async with pool, pool.session() as session:
        assert (await call(session, "first", server="picky")).content == "server/discover"
    assert starts.read_text() == "started\n"


HANDSHAKE = {"protocolVersion": "2025-06-18", "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}


@pytest.mark.parametrize(
    ("result", "said"),
    [
        ({**HANDSHAKE, "serverInfo": None}, "serverInfo: "),
        ({**HANDSHAKE, "serverInfo": {"name": "s"}}, "serverInfo.version: Field required"),
        ({**HANDSHAKE, "serverInfo": {"version": "1"}}, "serverInfo.name: Field required"),
        ({**HANDSHAKE, "protocolVersion": 7}, "protocolVersion: "),
        ({k: v for k, v in HANDSHAKE.items() if k != "protocolVersion"}, "protocolVersion: Field required"),
        ({**HANDSHAKE, "capabilities": []}, "capabilities: "),
        ({**HANDSHAKE, "capabilities": {"tools": 7}}, "capabilities.tools: "),
        ({**HANDSHAKE, "protocolVersion": "1999-01-01"}, "protocol version from the server: 1999-01-01"),
        ([], "result: Input should be a valid dictionary"),
        (None, "result: Input should be a valid dictionary"),
    ],
    ids=str,
)
async def test_what_is_wrong_with_a_handshake_is_named_by_its_field(result: Any, said: str) -> None:
    with pytest.raises(UserError) as error:
        async with ToolPool([script_server("shaker.py", json.dumps(result))]):
            pass
    assert said in str(error.value)
    assert "validation error" not in str(error.value)
