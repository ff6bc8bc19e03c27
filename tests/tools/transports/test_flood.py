"""A server that sends what nobody asked for is cut off, and costs its neighbours nothing."""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind
from mcpagent.errors import UserError
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import ServerConfig, StdioServer
from mcpagent.tools.transports.jsonrpc import (
    LOG_BYTES,
    NOTIFICATION,
    Flood,
    UnaskedTraffic,
    append_to_log,
    is_notification,
)
from tests.tools.support import call
from tests.tools.wayward import measure
from tests.tools.wild import http_poison, stdio_poison

pytestmark = pytest.mark.system


@contextmanager
def wayward(transport: str) -> Iterator[ServerConfig]:
    """The poison server, which misbehaves when it is asked to, under a name of its own."""
    with nullcontext(stdio_poison()) if transport == "stdio" else http_poison() as server:
        yield replace(server, name="wayward")


FLOODS = [
    *(("stdio", kind) for kind in ("notify", "odd", "ping", "answers", "noise", "blank")),
    *(("http", kind) for kind in ("notify", "odd", "ping", "noise", "blank")),
]


@pytest.mark.parametrize(("transport", "kind"), FLOODS)
async def test_a_flood_is_cut_off_while_a_neighbour_is_answered(transport: str, kind: str) -> None:
    with wayward(transport) as server:
        begun_s = time.process_time()
        async with (
            ToolPool([server, stdio_poison()], ToolsConfig(timeout_s=30.0, retry=0)) as pool,
            pool.session() as session,
        ):
            flooding = asyncio.create_task(call(session, "misbehave", server="wayward", kind=kind))
            answered = 0
            while not flooding.done():
                assert (await call(session, "echo", server="poison", text="fine")).content == "fine"
                answered += 1
            assert answered
            refused = await call(session, "echo", server="wayward", text="again")
            assert refused.failure is FailureKind.CRASHED
            assert "it was cut off: it sends more than 2,000 messages" in refused.content
            result = await flooding
        spent_s = time.process_time() - begun_s
    # Its effect is not known; and the flood was not read until a deadline.
    assert result.failure is FailureKind.UNKNOWN_OUTCOME
    assert spent_s < 25  # its deadline is 30 s


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_a_hundred_notifications_before_an_answer_are_no_flood(transport: str) -> None:
    with wayward(transport) as server:
        async with ToolPool([server]) as pool, pool.session() as session:
            for _ in range(20):
                assert (await call(session, "misbehave", server="wayward", kind="progress")).content == "done"


@pytest.mark.parametrize("transport", ["stdio", "http"])
async def test_meta_is_cut_with_a_mark(transport: str) -> None:
    with wayward(transport) as server:
        async with ToolPool([server]) as pool, pool.session() as session:
            result = await call(session, "misbehave", server="wayward", kind="meta")
    assert result.failure is None
    # 5 characters of the name and 2^20 of the text; the list has ten thousands of numbers.
    assert set(result.meta) == {"small", "mcpagent/cut"}
    assert int(result.meta["mcpagent/cut"].split()[0]) > 2**20 + 10**5
    assert len(result.model_dump_json()) < 5000


async def test_a_stderr_without_end_is_kept_in_a_bounded_log_with_its_ends(tmp_path: Path) -> None:
    with wayward("stdio") as server:
        async with (
            ToolPool([server], ToolsConfig(timeout_s=60.0), log_dir=tmp_path) as pool,
            pool.session() as session,
        ):
            begin = asyncio.create_task(call(session, "misbehave", server="wayward", kind="stderr", mib=8))
            outcome = await begin
        assert outcome.content == "done"
    log = (tmp_path / "wayward.log").read_bytes()
    assert len(log) <= LOG_BYTES
    banner = b"[stdout] welcome to the poison server\n"
    assert log.startswith(banner + b"e" * 1000)
    assert log.endswith(b"\nthe last words\n")
    head, _, tail = log.partition(b"\n[... ")
    cut, _, tail = tail.partition(b" bytes cut ...]\n")
    # Whatever was cut, nothing was lost uncounted.
    assert len(head) + int(cut) + len(tail) == len(banner) + 8 * 2**20 + len(b"\nthe last words\n")


def test_a_log_stays_bounded_whatever_is_appended(tmp_path: Path) -> None:
    written = 0
    with (tmp_path / "log").open("ab") as log:
        for size in (10, LOG_BYTES - 10, 1, 3, 2 * LOG_BYTES, 5, *[LOG_BYTES // 3] * 20):
            append_to_log(log, b"a" * size)
            written += size
            text = (tmp_path / "log").read_bytes()
            assert len(text) <= LOG_BYTES
            assert text.count(b"bytes cut") == (1 if written > LOG_BYTES else 0)
            cut = int(text.partition(b"\n[... ")[2].partition(b" ")[0] or 0)
            assert text.count(b"a") + cut == written


@pytest.mark.parametrize(
    ("exits", "said"),
    [
        ("import sys; sys.exit(3)", "it ended by itself with exit code 3"),
        ("import sys; sys.exit(0)", "it ended by itself with exit code 0"),
        ("import os; os.kill(os.getpid(), 9)", "it was ended by SIGKILL"),
        ("raise RuntimeError('no key')", "exit code 1; its last words:\n"),
        (
            "import sys; sys.stderr.write('bye\\x1b[2J'); sys.exit(4)",
            "exit code 4; its last words:\nbye\\x1b[2J",
        ),
        ("import os; os.close(1); os.close(0); os._exit(5)", "exit code 5"),
    ],
)
async def test_a_server_that_exits_at_once_is_said_with_its_exit_code_and_last_words(
    exits: str, said: str
) -> None:
    with pytest.raises(UserError) as error:
        async with ToolPool([StdioServer(name="bad", command=sys.executable, args=("-c", exits))]):
            pass
    assert f"server 'bad' did not start: {said}" in error.value.message or said in error.value.message
    assert "\x1b" not in error.value.message


def test_unasked_traffic_is_counted_by_messages_and_bytes_over_time() -> None:
    now_s = 0.0
    traffic = UnaskedTraffic(clock=lambda: now_s)
    for _ in range(20_000):
        traffic.note(100, NOTIFICATION)
    with pytest.raises(Flood):
        traffic.note(100, NOTIFICATION)
    now_s += 60.0  # long enough to be as new: 20,000 units at 2,000 a second, and what it is in debt
    traffic.note(19_000 * 1024)
    with pytest.raises(Flood):
        traffic.note(2_000 * 1024)


@pytest.mark.parametrize(
    ("line", "is_dropped"),
    [
        (b'{"jsonrpc":"2.0","method":"notifications/message","params":{}}', True),
        (b' { "method" : "notifications/progress" , "jsonrpc":"2.0"}', True),
        (b'{"jsonrpc":"2.0","method":"notifications/x"}', True),
        (b'{"jsonrpc":"2.0","id":1,"method":"notifications/x"}', False),
        (b'{"jsonrpc":"2.0","method":"ping","id":1}', False),
        (b'{"jsonrpc":"2.0","id":1,"result":{"method":"notifications/x"}}', False),
        (b'{"result":{"a":{"method":"notifications/x"}},"id":1,"jsonrpc":"2.0"}', False),
    ],
)
def test_only_what_is_surely_a_notification_is_dropped_unread(line: bytes, is_dropped: bool) -> None:
    assert is_notification(line) is is_dropped


@pytest.mark.slow
def test_five_servers_are_as_quick_beside_a_hung_a_flooding_and_a_dying_one() -> None:
    """Over 10,000 episodes, with the memory of this process flat and nothing left over."""
    alone, beside = (measure(10_000, with_bad, at_once=16) for with_bad in (False, True))
    assert (alone.failed, beside.failed) == (0, 0)
    assert beside.p99_s < 2 * alone.p99_s
    assert beside.memory_late_mib < beside.memory_early_mib + 5
    assert beside.left == 0
