import asyncio
import json
from pathlib import Path

from mcpagent.servers.ledger import Ledger
from mcpagent.synth.tasks.run import CallCache
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import builtin_servers

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
