from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.tools.contract import OnChange
from mcpagent.tools.limits import BreakerState, CircuitBreaker
from mcpagent.tools.metrics import ServerMetrics
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer
from tests.tools.support import call
from tests.tools.wild import script_server


class _Clock:
    """A clock that stands still until it is told to go on."""

    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def _fail(breaker: CircuitBreaker, clock: _Clock, times: int) -> list[float]:
    """Fail so often, each time when the next try is due; the delays that were asked for."""
    delays: list[float] = []
    for _ in range(times):
        clock.now_s += breaker.delay_s
        breaker.failed("it died")
        delays.append(breaker.delay_s)
    return delays


def test_the_backoff_doubles_from_a_fifth_of_a_second_to_half_a_minute_with_jitter() -> None:
    clock = _Clock()
    delays = _fail(CircuitBreaker(clock=clock), clock, 12)
    nominal = [0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0, 30.0, 30.0]
    assert all(0.75 * full <= delay <= full for delay, full in zip(delays, nominal, strict=True))
    assert len({round(delay, 6) for delay in delays[8:]}) > 1


def test_the_fifth_failure_opens_it_and_the_reason_says_when_the_next_try_is() -> None:
    clock = _Clock()
    breaker = CircuitBreaker(clock=clock)
    _fail(breaker, clock, 4)
    assert (breaker.state, breaker.refusal) == (BreakerState.CLOSED, None)
    _fail(breaker, clock, 1)
    assert breaker.state is BreakerState.OPEN
    assert breaker.refusal is not None
    assert "failed 5 times in a row (last: it died)" in breaker.refusal
    assert f"next try is in {breaker.delay_s:.1f} s" in breaker.refusal


def test_half_open_an_answer_closes_it_and_a_failure_opens_it_for_longer() -> None:
    clock = _Clock()
    breaker = CircuitBreaker(clock=clock)
    first = _fail(breaker, clock, 5)[-1]
    clock.now_s += first
    assert (breaker.state, breaker.refusal) == (BreakerState.HALF_OPEN, None)
    breaker.failed("it died again")
    assert breaker.state is BreakerState.OPEN
    assert breaker.delay_s > first
    clock.now_s += breaker.delay_s
    breaker.answered()
    assert (breaker.state, breaker.delay_s) == (BreakerState.CLOSED, 0)
    assert _fail(breaker, clock, 1)[0] <= 0.2  # counted anew


def test_half_open_there_is_one_try_at_a_time() -> None:
    clock = _Clock()
    breaker = CircuitBreaker(clock=clock)
    _fail(breaker, clock, 5)
    clock.now_s += breaker.delay_s
    breaker.begin()
    assert breaker.refusal is not None
    assert breaker.refusal.endswith("it is being tried again")
    breaker.failed("it died again")
    assert breaker.refusal.endswith(f"(last: it died again); the next try is in {breaker.delay_s:.1f} s")
    clock.now_s += breaker.delay_s
    breaker.begin()
    breaker.answered()
    assert (breaker.state, breaker.refusal) == (BreakerState.CLOSED, None)


def test_a_try_that_is_never_told_of_holds_up_the_others_for_one_backoff() -> None:
    clock = _Clock()
    breaker = CircuitBreaker(clock=clock)
    clock.now_s += _fail(breaker, clock, 5)[-1]
    breaker.begin()
    clock.now_s += breaker.delay_s
    assert (breaker.state, breaker.refusal) == (BreakerState.HALF_OPEN, None)


def test_the_calls_that_one_death_took_along_count_as_one_failure() -> None:
    breaker = CircuitBreaker(clock=_Clock())
    for _ in range(50):
        breaker.failed("it died")
    assert breaker.state is BreakerState.CLOSED


def test_a_fault_that_lasts_opens_it_at_once() -> None:
    breaker = CircuitBreaker(clock=_Clock())
    breaker.failed("no such command", is_lasting=True)
    assert breaker.state is BreakerState.OPEN


async def _call(pool: ToolPool, tool: str) -> ToolResult:
    async with pool.session() as session:
        return await call(session, tool, server="crasher")


def _server(folder: Path) -> StdioServer:
    return script_server("crasher.py", FOLDER=str(folder))


def _metrics(pool: ToolPool) -> ServerMetrics:
    return pool.metrics().servers[0]


async def test_a_crash_loop_opens_the_breaker_and_a_recovered_server_closes_it(tmp_path: Path) -> None:
    async with ToolPool([_server(tmp_path)]) as pool:
        (tmp_path / "die-at-calls").touch()
        # It starts, lists its tools and dies at every call: as often as a safe call is sent, and again.
        lost = [await _call(pool, "look") for _ in range(2)]
        assert {result.failure for result in lost} == {FailureKind.CRASHED}
        assert _metrics(pool).breaker is BreakerState.OPEN
        starts = (tmp_path / "starts").read_text()
        refused = await asyncio.gather(*(_call(pool, "look") for _ in range(100)))
        assert {result.failure for result in refused} == {FailureKind.CRASHED}
        assert all("5 times in a row" in r.content and "next try is in" in r.content for r in refused)
        assert all("it ended by itself with exit code 3" in result.content for result in refused)
        assert all(result.latency_s == 0.0 for result in refused)
        assert (tmp_path / "starts").read_text() == starts  # no process was started for them

        (tmp_path / "die-at-calls").unlink()
        await asyncio.sleep(_metrics(pool).next_try_s)
        assert (await _call(pool, "look")).content == "done"
        assert _metrics(pool).breaker is BreakerState.CLOSED


async def test_a_server_that_does_not_come_back_fails_every_call_within_the_bound(tmp_path: Path) -> None:
    async with ToolPool([_server(tmp_path)]) as pool:
        (tmp_path / "die-at-start").touch()
        (tmp_path / "die-at-calls").touch()
        # One lost call, then starts that fail, until the breaker opens: all who waited learn of it.
        results = await asyncio.gather(*(_call(pool, "look") for _ in range(30)))
        assert {result.failure for result in results} == {FailureKind.CRASHED}
        assert all("the licence has expired" in result.content for result in results)
        assert _metrics(pool).breaker is BreakerState.OPEN
        assert _metrics(pool).waited_max_s < 60.0
        assert _metrics(pool).restarts == 0


async def test_a_start_that_hangs_is_waited_for_no_longer_than_the_limit(tmp_path: Path) -> None:
    limits = {"crasher": ServerSection(start_timeout_s=2.0)}
    async with ToolPool([_server(tmp_path)], ToolsConfig(per_server=limits)) as pool:
        (tmp_path / "hang-at-start").touch()
        (tmp_path / "die-at-calls").touch()
        async with asyncio.timeout(60):
            results = await asyncio.gather(*(_call(pool, "look") for _ in range(30)))
        assert {result.failure for result in results} == {FailureKind.CRASHED}
        assert all("within 2 s" in result.content for result in results)
        assert (await _call(pool, "look")).latency_s == 0.0
        assert _metrics(pool).breaker is BreakerState.OPEN


async def test_a_server_that_dies_is_named_once_also_if_the_repeat_of_the_call_hides_it(
    tmp_path: Path,
) -> None:
    notes: list[str] = []
    async with ToolPool([_server(tmp_path)], on_note=notes.append) as pool:
        for _ in range(3):
            (tmp_path / "die-once").touch()
            assert (await _call(pool, "look")).failure is None
        (note,) = notes
        assert "server 'crasher' ended in mid-run" in note and "exit code 3" in note
        (tmp_path / "die-at-calls").touch()
        for _ in range(2):
            assert (await _call(pool, "change")).failure is FailureKind.UNKNOWN_OUTCOME
    lost = notes[1]
    assert len(notes) == 2 and "'crasher' failed a call of change (unknown_outcome)" in lost
    assert "not scored" in lost


async def test_an_episode_that_wrote_to_a_server_does_not_go_on_with_a_blank_one(tmp_path: Path) -> None:
    async with ToolPool([_server(tmp_path)]) as pool, pool.session() as wrote, pool.session() as read:
        for session, first in ((wrote, "change"), (read, "look")):
            assert (await call(session, first, server="crasher")).failure is None
        (tmp_path / "die-at-calls").touch()
        assert (await _call(pool, "change")).failure is FailureKind.UNKNOWN_OUTCOME
        (tmp_path / "die-at-calls").unlink()
        for tool in ("look", "change"):
            refused = await call(wrote, tool, server="crasher")
            assert refused.failure is FailureKind.CRASHED
            assert refused.failure.is_infrastructure  # so the episode is left unscored
            assert "restarted since this episode wrote to it" in refused.content
            assert (await call(read, tool, server="crasher")).failure is None


async def test_an_episodes_own_instance_that_died_is_replaced_only_while_it_was_read_from(
    tmp_path: Path,
) -> None:
    async with ToolPool([replace(_server(tmp_path), isolation="episode")]) as pool:
        for first, kind in (("look", None), ("change", FailureKind.CRASHED)):
            async with pool.session() as session:
                assert (await call(session, first, server="crasher")).failure is None
                (tmp_path / "die-once").touch()
                assert (await call(session, "look", server="crasher")).failure is kind


async def test_a_server_that_keeps_its_state_elsewhere_may_be_declared_so(tmp_path: Path) -> None:
    config = ToolsConfig(per_server={"crasher": ServerSection(survives_restart=True)})
    async with ToolPool([_server(tmp_path)], config) as pool, pool.session() as session:
        assert (await call(session, "change", server="crasher")).failure is None
        (tmp_path / "die-at-calls").touch()
        assert (await call(session, "change", server="crasher")).failure is FailureKind.UNKNOWN_OUTCOME
        (tmp_path / "die-at-calls").unlink()
        assert (await call(session, "change", server="crasher")).failure is None


async def test_a_tool_that_the_user_declares_safe_is_repeated(tmp_path: Path) -> None:
    limits = {"crasher": ServerSection(safe_to_retry=("change",))}
    async with ToolPool([_server(tmp_path)], ToolsConfig(per_server=limits)) as pool:
        (tmp_path / "die-once").touch()
        assert (await _call(pool, "change")).failure is None
        assert [tool.repeats for tool in _metrics(pool).tools] == [1]


@pytest.mark.parametrize("on_change", ["warn", "refuse"])
async def test_a_server_that_comes_back_with_other_tools_is_noted_or_refused(
    tmp_path: Path, on_change: OnChange
) -> None:
    notes: list[str] = []
    pool = ToolPool([_server(tmp_path)], ToolsConfig(on_catalog_change=on_change), on_note=notes.append)
    async with pool:
        pinned = pool.catalog_hash
        (tmp_path / "other-tools").touch()
        (tmp_path / "die-once").touch()
        result = await _call(pool, "look")
        assert pool.catalog_hash == pinned
    if on_change == "warn":
        assert result.failure is None
        assert "'crasher' ended in mid-run" in notes[0]
        assert "has other tools than at the start (in what they say" in notes[1]
    else:
        assert result.failure is FailureKind.CRASHED
        assert "has other tools than at the start" in result.content
