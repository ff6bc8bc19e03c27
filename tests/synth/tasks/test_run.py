import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from mcpagent.core.tasks import Task
from mcpagent.servers.ledger import Ledger
from mcpagent.servers.provider import builtin_servers
from mcpagent.synth.tasks.prove import plays_alike
from mcpagent.synth.tasks.run import CallCache
from mcpagent.synth.tasks.stages import Rejection
from mcpagent.tools.pool import ToolPool
from tests.synth.running import in_own_process

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


SHELVES = Path(__file__).parents[1] / "explore" / "shelves.py"


async def asked(cache: CallCache, generation: int, tool: str, said: str, *, only_reads: bool = True) -> Any:
    parameter = "shelf" if tool == "open_shelf" else "title"
    async with cache.session(generation=generation, only_reads=only_reads) as session:
        result = await session.call(server="shelves", tool=tool, arguments={parameter: said})
    return result.structured or json.loads(result.content)


@pytest.mark.system
def test_reads_of_a_generation_share_a_process(tmp_path: Path) -> None:
    starts = tmp_path / "starts"
    titles = [f"Book {'x' * n}" for n in range(8)]

    async def run(own_instances: list[str]) -> list[int]:
        """How many processes were started, after each stage."""
        starts.write_text("")
        counts = []
        async with in_own_process("shelves", SHELVES, starts) as pool:
            cache = CallCache(pool, own_instances=own_instances)
            for generation in (0, 1):
                for title in titles:
                    grams = (await asked(cache, generation, "weigh_book", title))["grams"]
                    assert grams == 100 + 7 * len(title)
                counts.append(len(starts.read_text().splitlines()))
        return counts

    # One more lists the tools.
    assert asyncio.run(run(["shelves"])) == [1 + 1, 1 + 1 + 1]
    assert asyncio.run(run([])) == [1 + 8, 1 + 8 + 8]


@pytest.mark.system
def test_a_session_that_may_change_something_shares_nothing(tmp_path: Path) -> None:
    async def run() -> list[str]:
        async with in_own_process("shelves", SHELVES, tmp_path / "starts") as pool:
            cache = CallCache(pool, own_instances=["shelves"])
            await asked(cache, 0, "open_shelf", "north")
            shared = await asked(cache, 0, "read_book", "Anna")
            alone = await asked(cache, 0, "read_book", "Emma", only_reads=False)
            return [shared["from"], alone["from"]]

    assert asyncio.run(run()) == ["north", "no shelf"]


@pytest.mark.system
def test_a_plan_that_is_right_only_after_the_reads_of_others_is_wrong_on_a_fresh_start(
    tmp_path: Path,
) -> None:
    truth = {
        "task_id": "t",
        "tool_sequence": [
            {"step": 1, "server": "shelves", "tool": "read_book", "params": {"title": "Anna"}},
        ],
        "final_answer": {"type": "name", "value": "north"},
        "evidence": [{"value": "north", "about": [["Anna"]]}],
        "reference_answer": "It is north.",
    }
    task = Task.model_validate(
        {
            "prompt": [{"role": "user", "content": "Where is Anna?"}],
            "reward_spec": {"ground_truth": truth},
        }
    )

    async def run() -> tuple[object, object]:
        async with in_own_process("shelves", SHELVES, tmp_path / "starts") as pool:
            shared = CallCache(pool, own_instances=["shelves"])
            await asked(shared, 0, "open_shelf", "north")
            return await plays_alike(task, shared), await plays_alike(task, CallCache(pool))

    in_shared, alone = asyncio.run(run())
    assert in_shared is None and isinstance(alone, Rejection)
