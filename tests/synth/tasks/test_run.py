import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from mcpagent.servers.ledger import Ledger
from mcpagent.synth.tasks.run import CallCache
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer, builtin_servers

CHANNELS = {"server": "slack", "tool": "list_slack_channels"}
HISTORY = {"server": "slack", "tool": "get_slack_channel_history"}
SEND = {"server": "slack", "tool": "send_slack_message"}
QUOTE = {"server": "fmp", "tool": "fmp_get_quote"}


def newest(structured: object) -> str:
    assert isinstance(structured, dict)
    return structured["messages"][0]["text"]


def test_a_repeated_read_is_answered_once_and_reads_after_a_change_are_real(tmp_path: Path) -> None:
    ledger = tmp_path / "ledger.jsonl"

    async def run() -> tuple[list[str], int]:
        texts: list[str] = []
        async with ToolPool(builtin_servers(), ledger=ledger) as pool:
            cache = CallCache(pool)
            async with cache.session() as session:
                listed = await session.call(
                    server="slack", tool="list_slack_channels", arguments={"limit": 1}
                )
            assert listed.structured is not None
            channel = listed.structured["channels"][0]["id"]
            arguments = {"channel_id": channel, "limit": 1}
            for _ in range(2):
                async with cache.session() as session:
                    before = await session.call(**HISTORY, arguments=arguments)
                    message = {"channel": channel, "message": "hello"}
                    await session.call(**SEND, arguments=message)
                    after = await session.call(**HISTORY, arguments=arguments)
                    texts += [newest(before.structured), newest(after.structured)]
            return texts, cache.executed

    texts, executed = asyncio.run(run())
    assert texts[1] == texts[3] == "hello"
    assert texts[0] == texts[2] != "hello"
    # list, read, send, read after it; then only send and the read after it.
    entries = [json.loads(line) for line in Ledger(ledger).environment_path.read_text().splitlines()]
    assert executed == len(entries) == 6
    # Synthesis must not look like a model's calls.
    assert {entry["purpose"] for entry in entries} == {"synth"}
    assert not ledger.exists()


def test_a_failed_read_is_not_remembered() -> None:
    async def run() -> int:
        async with ToolPool(builtin_servers()) as pool:
            cache = CallCache(pool)
            for _ in range(2):
                async with cache.session() as session:
                    result = await session.call(
                        server="fmp", tool="fmp_get_quote", arguments={"symbol": "??"}
                    )
                    assert result.is_error
            return cache.executed

    assert asyncio.run(run()) == 2


SHELVES = Path(__file__).with_name("shelves.py")


def shelves(starts: Path) -> ToolPool:
    """A library of which each session has its own process."""
    server = StdioServer(name="shelves", command=sys.executable, args=("-S", str(SHELVES), str(starts)))
    return ToolPool([server], isolation={"shelves": "episode"})


async def asked(cache: CallCache, generation: int, tool: str, said: str, *, only_reads: bool = True) -> Any:
    parameter = "shelf" if tool == "open_shelf" else "title"
    async with cache.session(generation=generation, only_reads=only_reads) as session:
        result = await session.call(server="shelves", tool=tool, arguments={parameter: said})
    return result.structured or json.loads(result.content)


@pytest.mark.system
def test_reads_share_a_process_once_new_processes_answered_like_one_that_had_answered_others(
    tmp_path: Path,
) -> None:
    starts = tmp_path / "starts"
    titles = [f"Book {'x' * n}" for n in range(8)]

    async def run(own_instances: list[str]) -> list[int]:
        """How many processes were started, after each stage."""
        starts.write_text("")
        counts = []
        async with shelves(starts) as pool:
            cache = CallCache(pool, own_instances=own_instances)
            for generation in (0, 1):
                for title in titles:
                    grams = (await asked(cache, generation, "weigh_book", title))["grams"]
                    assert grams == 100 + 7 * len(title)
                counts.append(len(starts.read_text().splitlines()))
            assert not await cache.depends_on_order()
            counts.append(len(starts.read_text().splitlines()))
        return counts

    # One lists the tools. The first generation has one, the second two new ones and one that is shared, the
    # check at the end one.
    assert asyncio.run(run(["shelves"])) == [1 + 1, 2 + 2 + 1, 5 + 1]
    assert asyncio.run(run([]))[:2] == [1 + 8, 1 + 8 + 8]


@pytest.mark.system
def test_a_session_that_may_change_something_shares_nothing(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with shelves(tmp_path / "starts") as pool:
            cache = CallCache(pool, own_instances=["shelves"])
            await asked(cache, 0, "open_shelf", "north")
            shared = await asked(cache, 0, "read_book", "Anna")
            alone = await asked(cache, 0, "read_book", "Emma", only_reads=False)
            return [shared["from"], alone["from"]]

    assert asyncio.run(run()) == ["north", "no shelf"]


@pytest.mark.system
def test_reads_that_depend_on_reads_before_them_are_found_out_and_no_process_is_shared_from_then_on(
    tmp_path: Path,
) -> None:
    async def run() -> tuple[list[str], bool, str, bool]:
        async with shelves(tmp_path / "starts") as pool:
            cache = CallCache(pool, own_instances=["shelves"])
            plans = [("read_book", "Anna"), ("read_book", "Emma")]
            plans += [("open_shelf", shelf) for shelf in ("east", "west", "north")]
            plans += [("read_book", "Ulysses")]
            for tool, said in plans:
                await asked(cache, 0, tool, said)
            again = [await asked(cache, 1, tool, said) for tool, said in plans]
            depends = await cache.depends_on_order()
            alone = await asked(cache, 1, "read_book", "Ulysses")
            return (
                [a["from"] for a in again if "from" in a],
                depends,
                alone["from"],
                (await cache.depends_on_order()),
            )

    read, depends, alone, depends_still = asyncio.run(run())
    # The last one was read in the shared process, and looks repeatable.
    assert read == ["no shelf", "no shelf", "north"]
    assert depends and alone == "no shelf" and not depends_still


@pytest.mark.system
def test_a_kind_of_call_that_a_new_process_answers_differently_is_never_shared(tmp_path: Path) -> None:
    async def run() -> tuple[list[str], bool]:
        async with shelves(tmp_path / "starts") as pool:
            cache = CallCache(pool, own_instances=["shelves"])
            shelves_opened, titles = ["east", "west", "north"], ["Anna", "Emma", "Ulysses", "Utopia"]
            for generation in (0, 1):  # the last one in a process that is shared
                for shelf in shelves_opened:
                    await asked(cache, generation, "open_shelf", shelf)
            for title in titles:
                assert (await asked(cache, 0, "read_book", title))["from"] == "north"
            again = [(await asked(cache, 1, "read_book", title))["from"] for title in titles]
            return again, await cache.depends_on_order()

    assert asyncio.run(run()) == (["no shelf"] * 4, False)
