"""slack's workspace: its own for each client, kept within one."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from mcp import Client

from mcpagent.servers.embedded import build
from mcpagent.servers.registry import build_server
from mcpagent.servers.slack import EmbeddedSlack, Reaction, SentMessage, WorkspaceChanges
from tests.servers.calls import CHANNEL, text_of, with_client

SEEDED = {"user": CHANNEL.message.user, "text": CHANNEL.message.text, "ts": CHANNEL.message.ts}


async def send(client: Client, channel: str, message: str) -> dict[str, Any]:
    result = await client.call_tool("send_slack_message", {"channel": channel, "message": message})
    return result.structured_content


async def history(client: Client, **more: Any) -> list[dict[str, Any]]:
    arguments = {"channel_id": CHANNEL.id, **more}
    return (await client.call_tool("get_slack_channel_history", arguments)).structured_content["messages"]


def test_a_sent_message_is_the_newest_of_its_own_channel_only() -> None:
    async def work(client: Client) -> None:
        me = (await client.call_tool("slack_auth_test", {})).structured_content["user_id"]
        first = await send(client, CHANNEL.id, "one")
        second = await send(client, f"#{CHANNEL.name}", "two")
        assert first["channel"] == second["channel"] == CHANNEL.id
        assert await history(client) == [
            {"user": me, "text": "two", "ts": second["ts"]},
            {"user": me, "text": "one", "ts": first["ts"]},
            SEEDED,
        ]
        assert [m["text"] for m in await history(client, limit=1)] == ["two"]
        other = build().channels[1]
        result = await client.call_tool("get_slack_channel_history", {"channel_id": other.id})
        assert [m["text"] for m in result.structured_content["messages"]] == [other.message.text]

    with_client(build_server("slack"), work)


def test_clients_of_one_server_never_see_each_other_and_get_the_same_timestamps() -> None:
    server = build_server("slack", limited=True)

    async def episode(text: str) -> tuple[str, list[str]]:
        async with Client(server) as client:
            ts = (await send(client, CHANNEL.id, text))["ts"]
            return ts, [m["text"] for m in await history(client)]

    async def main() -> list[tuple[str, list[str]]]:
        return await asyncio.gather(*(episode(f"message {i}") for i in range(20)))

    assert asyncio.run(main()) == [
        ("1763497801.000100", [f"message {i}", CHANNEL.message.text]) for i in range(20)
    ]


def test_a_message_with_lone_surrogates_comes_back_encodable() -> None:
    async def work(client: Client) -> None:
        await send(client, CHANNEL.id, "a\ud800b \ud83d\ude00")
        assert (await history(client))[0]["text"] == "a\ufffdb \U0001f600"

    with_client(build_server("slack"), work)


def test_replies_follow_their_parent_and_a_reaction_is_accepted_once() -> None:
    async def work(client: Client) -> None:
        message = {"channel_id": CHANNEL.id, "thread_ts": CHANNEL.message.ts}
        thread = (await client.call_tool("get_slack_thread_replies", message)).structured_content
        assert [m["text"] for m in thread["messages"]] == [CHANNEL.message.text, "noted"]
        reaction = {"channel_id": CHANNEL.id, "timestamp": CHANNEL.message.ts, "reaction": ":eyes:"}
        first = await client.call_tool("add_slack_reaction", reaction)
        assert first.structured_content["name"] == "eyes"
        second = await client.call_tool("add_slack_reaction", reaction)
        assert second.is_error and text_of(second) == "Already reacted with it."

    with_client(build_server("slack"), work)


def test_the_changes_of_a_session_are_what_it_added_in_order() -> None:
    async def main() -> None:
        workspace = EmbeddedSlack()
        assert await workspace.get_slack_workspace_changes() == WorkspaceChanges(messages=[], reactions=[])
        await workspace.send_slack_message(CHANNEL.id, "one")
        sent = await workspace.send_slack_message(f"#{CHANNEL.name}", "two")
        await workspace.add_slack_reaction(CHANNEL.id, CHANNEL.message.ts, "eyes")
        changes = await workspace.get_slack_workspace_changes()
        assert [m.text for m in changes.messages] == ["one", "two"]
        assert changes.messages[1] == SentMessage(channel=CHANNEL.id, text="two", ts=sent.ts)
        assert changes.reactions == [Reaction(channel=CHANNEL.id, ts=CHANNEL.message.ts, name="eyes")]

    asyncio.run(main())


def test_a_thousand_calls_from_hundreds_of_clients_need_one_server_object() -> None:
    server = build_server("slack", limited=True)
    episodes = 350

    async def main() -> int:
        calls = 0
        for _ in range(episodes):
            async with Client(server) as client:
                for number in range(3):
                    sent = await send(client, CHANNEL.id, "x")
                    assert sent["ts"] == f"{1763497801 + number}.000100"
                    calls += 1
        return calls

    started_s = time.process_time()
    assert asyncio.run(main()) == 3 * episodes
    spent_ms = (time.process_time() - started_s) / episodes * 1e3
    print(f"in-memory episode: open, 3 calls, close: {spent_ms:.2f} CPU ms")
