"""Faults injected into real server processes, and reports that can fail."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from mcpagent.core.metrics import CheckStatus
from mcpagent.core.tools import FailureKind
from mcpagent.tools.chaos import ChaosFault, ChaosLimits, ChaosResult, Seen, chaos
from mcpagent.tools.servers_config import StdioServer
from tests.house import ROOT
from tests.tools.servers import frail
from tests.tools.support import stdio_echo

QUICK = ChaosLimits(call_s=1.0, recovery_s=15.0)
MODULE = "tests.tools.servers.frail"


def _frail(mode: str, log: Path) -> StdioServer:
    arguments = ("-S", "-m", MODULE, mode, str(log))
    return StdioServer(name="frail", command=sys.executable, args=arguments, cwd=str(ROOT))


def _chaos(
    server: StdioServer,
    faults: Sequence[ChaosFault] = tuple(ChaosFault),
    limits: ChaosLimits = QUICK,
) -> dict[ChaosFault, ChaosResult]:
    async def run() -> list[ChaosResult]:
        results = await chaos(server, faults=faults, limits=limits)
        assert asyncio.all_tasks() == {asyncio.current_task()}
        return results

    return {result.fault: result for result in asyncio.run(run())}


def _living(log: Path) -> list[int]:
    pids = [int(line.split()[1]) for line in log.read_text().splitlines() if line.startswith("pid ")]
    assert pids
    return [pid for pid in pids if _is_running(pid)]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    stat = Path(f"/proc/{pid}/stat")
    return not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_sound_server_recovers_from_every_fault_and_none_of_its_tools_is_called(tmp_path: Path) -> None:
    log = tmp_path / "log"
    results = _chaos(_frail("sound", log))
    assert {fault: result.detail for fault, result in results.items()} == dict.fromkeys(ChaosFault, "")
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
    assert recovered_s.keys() == set(ChaosFault)
    assert recovered_s[ChaosFault.SLOW_START] >= 3.0  # what its start was delayed by
    assert "other tools" in results[ChaosFault.DRIFT].notes[0]
    assert "method tools/list" in log.read_text()
    assert "tools/call" not in log.read_text()
    assert _living(log) == []


def test_a_server_that_never_comes_back_is_reported(tmp_path: Path) -> None:
    limits = ChaosLimits(call_s=1.0, recovery_s=1.5)
    results = _chaos(_frail("once", tmp_path / "log"), [ChaosFault.KILL], limits)
    result = results[ChaosFault.KILL]
    assert result.status is CheckStatus.FAIL
    assert result.detail == "no answer to a new episode within 1.5 s"
    assert result.recovery_s is None
    assert result.read is not None and result.read.failure is FailureKind.CRASHED
    assert "the licence is spent" in result.read.text


def test_a_process_that_a_server_leaves_behind_is_reported_and_ended(tmp_path: Path) -> None:
    results = _chaos(_frail("litter", tmp_path / "log"), [ChaosFault.KILL])
    result = results[ChaosFault.KILL]
    assert (result.status, result.recovery_s is not None) == (CheckStatus.FAIL, True)
    assert result.leaks is not None and result.leaks.processes
    assert all(command.endswith(frail.LITTER) for command in result.leaks.processes)
    assert "leaked the process" in result.detail
    if Path("/proc").exists():
        left = [path for path in Path("/proc").glob("[0-9]*/cmdline") if frail.LITTER in _text(path)]
        assert left == []


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
    assert {fault: (r.status, r.restarts) for fault, r in results.items()} == {
        ChaosFault.KILL: (CheckStatus.PASS, 1),
        ChaosFault.STOP: (CheckStatus.PASS, 1),
    }
    assert _living(log) == []


def test_a_server_of_the_newest_protocol_is_struck_too() -> None:
    results = _chaos(stdio_echo(), [ChaosFault.KILL, ChaosFault.GARBAGE])
    assert {result.status for result in results.values()} == {CheckStatus.PASS}
    assert _kind(results[ChaosFault.KILL].write) is FailureKind.UNKNOWN_OUTCOME


def _kind(seen: Seen | None) -> FailureKind | None:
    assert seen is not None
    return seen.failure


def _text(path: Path) -> str:
    try:
        return path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except OSError:
        return ""
