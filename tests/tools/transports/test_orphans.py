"""Nothing outlives a pool, nor a trainer that was killed: not even what ignores every request to end."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
from pathlib import Path

import psutil
import pytest

from mcpagent.tools.pool import ToolPool
from tests.running import Python, children
from tests.tools.support import call, memory_echo
from tests.tools.wild import DAEMONS, FAMILIES, SCRIPTS, family, living, stubborn, wait_for_end


def test_no_process_of_any_server_outlives_a_trainer_that_was_killed(tmp_path: Path) -> None:
    command = ("-m", "tests.tools.servers.trainer", tmp_path)
    assert SCRIPTS.parents[2] == Path.cwd()
    with Python(*command, stdout=subprocess.PIPE) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"up\n"
        everybody = {child.pid for child in psutil.Process(trainer.pid).children(recursive=True)}
        servers = set().union(*(family(tmp_path, *traits) for traits in FAMILIES))
        assert servers <= everybody == living(everybody)
        trainer.kill()
    assert wait_for_end(everybody) == set()


async def test_a_pool_ends_whole_families_of_servers_its_watchdog_and_its_tasks(tmp_path: Path) -> None:
    before = children()
    async with ToolPool([*(stubborn(tmp_path, *traits) for traits in FAMILIES), memory_echo()]):
        everybody = {child.pid for child in children() if child not in before}
    assert len(everybody) == 8  # the four servers, their three children, the watchdog
    assert living(everybody) == set()
    assert asyncio.all_tasks() == {asyncio.current_task()}


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_no_daemon_that_left_its_server_outlives_a_trainer(tmp_path: Path, number: signal.Signals) -> None:
    """Forked twice, in a session of its own, deaf, and nobody's descendant any more."""
    command = ("-m", "tests.tools.servers.trainer", tmp_path, "daemons")
    with Python(*command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as trainer:
        assert trainer.stdout is not None
        assert trainer.stdout.readline() == b"up\n"
        servers = set().union(*(family(tmp_path, *traits) for traits in DAEMONS))
        assert living(servers) == servers
        descendants = {child.pid for child in psutil.Process(trainer.pid).children(recursive=True)}
        assert servers - descendants  # they really left
        trainer.send_signal(number)
    assert wait_for_end(servers) == set()


async def test_a_daemon_that_left_its_server_goes_with_it_and_is_named(tmp_path: Path) -> None:
    notes: list[str] = []
    servers = [*(stubborn(tmp_path, *traits) for traits in DAEMONS), stubborn(tmp_path)]
    async with ToolPool(servers, on_note=notes.append) as pool, pool.session() as session:
        families = set().union(*(family(tmp_path, *traits) for traits in DAEMONS))
        assert living(families) == families
        assert (await call(session, "echo", server="plain", text="beside")).content == "beside"
    assert living(families) == set()
    assert any("'orphan' left a process behind, which was ended" in note for note in notes)


async def test_a_server_that_is_told_to_end_in_the_middle_of_its_start_is_gone(tmp_path: Path) -> None:
    """A cancelled start must not leave the process that it had just made."""
    starting = asyncio.create_task(ToolPool([stubborn(tmp_path, "deaf", "child")]).__aenter__())
    while not (tmp_path / "deaf-child").exists():
        await asyncio.sleep(0.005)
    starting.cancel()
    await asyncio.wait({starting})
    assert starting.cancelled() and asyncio.all_tasks() == {asyncio.current_task()}
    assert wait_for_end(family(tmp_path, "deaf", "child")) == set()


async def test_a_dead_server_is_noticed_while_its_child_still_holds_its_output(tmp_path: Path) -> None:
    async with ToolPool([stubborn(tmp_path, "child")]) as pool, pool.session() as session:
        server = next(p for p in psutil.Process().children() if "stubborn.py" in " ".join(p.cmdline()))
        waiting = asyncio.create_task(call(session, "wait", server="child"))
        assert (await call(session, "echo", server="child", text="up")).content == "up"
        os.kill(server.pid, signal.SIGKILL)
        async with asyncio.timeout(20):
            assert (await waiting).is_error
        async with pool.session() as other:
            assert (await call(other, "echo", server="child", text="back")).content == "back"


async def test_a_watchdog_that_was_killed_is_replaced(tmp_path: Path) -> None:
    async with ToolPool([stubborn(tmp_path)]) as pool, pool.session() as session:
        killed = _watchdog()
        killed.kill()
        assert wait_for_end({killed.pid}) == set()
        async with ToolPool([stubborn(tmp_path, "deaf")]):
            assert (await call(session, "echo", server="plain", text="up")).content == "up"
            assert _watchdog().is_running()
        assert living(family(tmp_path, "deaf")) == set()


def _watchdog() -> psutil.Process:
    (found,) = (
        process
        for process in psutil.Process().children()
        if process.status() != psutil.STATUS_ZOMBIE and "process_trees.py" in " ".join(process.cmdline())
    )
    return found
