"""Faults injected into real server processes, and reports that can fail."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from mcpagent.core.records import CheckStatus
from mcpagent.core.tools import FailureKind
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import HttpServer, StdioServer
from tests.house import ROOT
from tests.tools.faults.chaos import ChaosFault, ChaosLimits, ChaosResult, Seen, chaos, faults_of
from tests.tools.servers import frail
from tests.tools.support import call, stdio_echo
from tests.tools.wild import http_poison, living, wait_for_end

pytestmark = pytest.mark.system

QUICK = ChaosLimits(call_s=2.0, recovery_s=30.0)
MODULE = "tests.tools.servers.frail"


def _frail(mode: str, log: Path) -> StdioServer:
    arguments = ("-S", "-m", MODULE, mode, str(log))
    return StdioServer(name="frail", command=sys.executable, args=arguments, cwd=str(ROOT))


def _chaos(
    server: StdioServer | HttpServer,
    faults: Sequence[ChaosFault] | None = None,
    limits: ChaosLimits = QUICK,
) -> dict[ChaosFault, ChaosResult]:
    async def run() -> list[ChaosResult]:
        results = await chaos(server, faults=faults, limits=limits)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    return {result.fault: result for result in asyncio.run(run())}


def _living(log: Path) -> set[int]:
    pids = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("pid ")]
    assert pids
    return living(pids)


def test_a_sound_server_recovers_from_every_fault_and_none_of_its_tools_is_called(tmp_path: Path) -> None:
    log = tmp_path / "log"
    server = _frail("sound", log)
    results = _chaos(server)
    assert {fault: result.detail for fault, result in results.items()} == dict.fromkeys(faults_of(server), "")
    assert {result.status for result in results.values()} == {CheckStatus.PASS}
    # What an episode sees: a read lost with its server is made again, a write never is.
    ok, lost = None, FailureKind.UNKNOWN_OUTCOME
    slow, big, bad = FailureKind.TIMEOUT, FailureKind.OVERSIZE, FailureKind.SCHEMA
    assert {fault: (_kind(r.read), _kind(r.write), r.restarts) for fault, r in results.items()} == {
        ChaosFault.NONE: (ok, ok, 0),
        ChaosFault.KILL: (ok, lost, 1),
        ChaosFault.STOP: (slow, slow, 1),
        ChaosFault.HANG: (slow, slow, 0),
        ChaosFault.OVERSIZE: (big, big, 0),
        ChaosFault.GARBAGE: (bad, bad, 0),
        ChaosFault.SLOW_START: (ok, lost, 1),
        ChaosFault.DRIFT: (ok, lost, 1),
    }
    failed = [seen for r in results.values() for seen in (r.read, r.write) if _kind(seen) is not None]
    assert not any(seen is None or seen.is_scored for seen in failed)
    recovered_s = {fault: r.recovery_s for fault, r in results.items() if r.recovery_s is not None}
    assert recovered_s.keys() == set(faults_of(server))
    assert recovered_s[ChaosFault.SLOW_START] >= 3.0  # what its start was delayed by
    assert "other tools" in results[ChaosFault.DRIFT].notes[0]
    assert not any(result.ended for result in results.values())
    assert "method tools/list" in log.read_text()
    assert "tools/call" not in log.read_text()
    assert _living(log) == set()


def test_a_server_that_never_comes_back_is_reported(tmp_path: Path) -> None:
    limits = ChaosLimits(call_s=2.0, recovery_s=1.5)
    results = _chaos(_frail("once", tmp_path / "log"), [ChaosFault.KILL], limits)
    result = results[ChaosFault.KILL]
    assert result.status is CheckStatus.FAIL
    assert result.detail == "no answer to a new episode within 1.5 s"
    assert result.recovery_s is None
    assert result.read is not None and result.read.failure is FailureKind.CRASHED
    assert "the licence is spent" in result.read.text


@pytest.mark.parametrize("fault", [ChaosFault.NONE, ChaosFault.KILL])
def test_a_process_that_a_server_leaves_behind_is_reported_and_ended(
    fault: ChaosFault, tmp_path: Path
) -> None:
    results = _chaos(_frail("litter", tmp_path / "log"), [fault])
    result = results[fault]
    assert (result.status, result.recovery_s is not None, result.detail) == (CheckStatus.WARN, True, "")
    assert result.leaks is not None and not result.leaks.processes
    assert len(result.ended) == result.restarts + 1  # each process of the server leaves one
    assert all(command.endswith(frail.LITTER) for command in result.ended)
    (note,) = result.notes  # once, however many
    assert note.startswith("server 'frail' left a process behind, which was ended: ")
    assert note.endswith(frail.LITTER)
    if Path("/proc").exists():
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if frail.LITTER in _text(path)]
        assert wait_for_end({int(path.parent.name) for path in left}) == set()  # a kill takes a moment


def test_a_server_that_does_not_start_is_reported_once(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.touch()
    (result,) = _chaos(_frail("once", log)).values()
    assert (result.fault, result.status) == (ChaosFault.NONE, CheckStatus.FAIL)
    assert "the licence is spent" in result.detail


def test_a_server_below_a_wrapper_is_what_the_fault_strikes(tmp_path: Path) -> None:
    log = tmp_path / "log"
    command = f"{sys.executable} -S -m {MODULE} sound {log}; true"  # `; true`: the shell stays, as npx does
    wrapped = StdioServer(name="wrapped", command="/bin/sh", args=("-c", command), cwd=str(ROOT))
    results = _chaos(wrapped, [ChaosFault.KILL, ChaosFault.STOP])
    assert {fault: (r.status, r.restarts, r.notes) for fault, r in results.items()} == {
        ChaosFault.KILL: (CheckStatus.PASS, 1, ()),
        ChaosFault.STOP: (CheckStatus.PASS, 1, ()),
    }
    assert _living(log) == set()


def test_a_server_of_the_newest_protocol_is_struck_too() -> None:
    results = _chaos(stdio_echo(), [ChaosFault.KILL, ChaosFault.GARBAGE])
    assert {result.status for result in results.values()} == {CheckStatus.PASS}
    assert _kind(results[ChaosFault.KILL].write) is FailureKind.UNKNOWN_OUTCOME


def _seen_over_http(*flags: str, faults: Sequence[ChaosFault] | None = None) -> dict[ChaosFault, ChaosResult]:
    """What comes of a server that keeps count of its calls: none is made."""
    with http_poison(*flags) as server:
        results = _chaos(server, faults, QUICK)
        assert asyncio.run(_calls(server)) == "0"
    return results


async def _calls(server: HttpServer) -> str:
    async with ToolPool([server]) as pool, pool.session() as session:
        return (await call(session, "calls", server="poison")).content


OVER_HTTP = {
    ChaosFault.NONE: (None, None),
    ChaosFault.CUT: (None, FailureKind.UNKNOWN_OUTCOME),
    ChaosFault.HANG: (FailureKind.TIMEOUT, FailureKind.TIMEOUT),
    ChaosFault.SLOW: (None, None),
    ChaosFault.OVERSIZE: (FailureKind.OVERSIZE, FailureKind.OVERSIZE),
    ChaosFault.GARBAGE: (FailureKind.SCHEMA, FailureKind.SCHEMA),
    ChaosFault.ERRORS: (None, FailureKind.UNKNOWN_OUTCOME),
    ChaosFault.SESSION: (None, None),  # a server that does not know the session did not take the call
    ChaosFault.SLOW_START: (None, FailureKind.UNKNOWN_OUTCOME),
    ChaosFault.DRIFT: (None, FailureKind.UNKNOWN_OUTCOME),
}


def test_what_strikes_a_server_over_http_is_recovered_from_and_none_of_its_tools_is_called() -> None:
    faults = [fault for fault in OVER_HTTP if fault is not ChaosFault.SLOW_START]  # drift is that, and more
    results = _seen_over_http(faults=faults)
    assert {fault: (r.detail, r.status) for fault, r in results.items()} == dict.fromkeys(
        faults, ("", CheckStatus.PASS)
    )
    assert {fault: (_kind(r.read), _kind(r.write)) for fault, r in results.items()} == {
        fault: OVER_HTTP[fault] for fault in faults
    }
    recovered_s = {fault: r.recovery_s for fault, r in results.items() if r.recovery_s is not None}
    assert recovered_s.keys() == set(faults)
    assert recovered_s[ChaosFault.DRIFT] >= 3.0  # as long as nobody is there
    assert "other tools" in results[ChaosFault.DRIFT].notes[0]


@pytest.mark.slow
def test_a_server_without_sessions_is_struck_too_and_comes_back_with_other_tools() -> None:
    results = _seen_over_http("modern", "sse")
    assert {fault: _kind(r.read) for fault, r in results.items() if r.read is not None} == {
        fault: read for fault, (read, _) in OVER_HTTP.items() if fault is not ChaosFault.SESSION
    }
    assert results[ChaosFault.SESSION].status is CheckStatus.SKIP
    assert "no sessions" in results[ChaosFault.SESSION].detail
    assert "other tools" in results[ChaosFault.DRIFT].notes[0]


def test_a_server_over_http_that_takes_nobody_back_is_reported() -> None:
    with http_poison("once") as server:
        (result,) = _chaos(server, [ChaosFault.SESSION], ChaosLimits(call_s=2.0, recovery_s=1.5)).values()
    assert result.status is CheckStatus.FAIL
    assert result.detail == "no answer to a new episode within 1.5 s"
    assert result.read is not None and "refuses us" in result.read.text


def test_a_server_over_http_that_is_not_there_is_reported_once_and_by_its_own_address() -> None:
    with http_poison() as server:
        pass
    (result,) = _chaos(server).values()
    assert (result.fault, result.status) == (ChaosFault.NONE, CheckStatus.FAIL)
    assert f"cannot connect to {server.url.removesuffix('/mcp')}" in result.detail


def test_the_keys_of_a_server_over_http_pass_through() -> None:
    with http_poison("auth") as server:
        right = replace(server, headers={"Authorization": "Bearer right"})
        assert _chaos(right, [ChaosFault.CUT])[ChaosFault.CUT].status is CheckStatus.PASS
        (refused,) = _chaos(server, [ChaosFault.NONE]).values()
        assert "refuses us (HTTP 401)" in refused.detail


def _kind(seen: Seen | None) -> FailureKind | None:
    assert seen is not None
    return seen.failure


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
