"""slack's workspace: its own for each client, kept within one."""

from __future__ import annotations

import asyncio
from typing import Any

from mcp import Client

from mcpagent.servers.embedded import build
from mcpagent.servers.registry import build_server
from mcpagent.servers.slack import EmbeddedSlack, Reaction, SentMessage, WorkspaceChanges
from tests.servers.calls import CHANNEL, text_of

SEEDED = {"user": CHANNEL.message.user, "text": CHANNEL.message.text, "ts": CHANNEL.message.ts}


async def send(client: Client, channel: str, message: str) -> dict[str, Any]:
    result = await client.call_tool("send_slack_message", {"channel": channel, "message": message})
    return result.structured_content


async def history(client: Client, **more: Any) -> list[dict[str, Any]]:
    arguments = {"channel_id": CHANNEL.id, **more}
    return (await client.call_tool("get_slack_channel_history", arguments)).structured_content["messages"]


async def test_a_sent_message_is_the_newest_of_its_own_channel_only() -> None:
    async with Client(build_server("slack")) as client:
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


async def test_clients_of_one_server_never_see_each_other_and_get_the_same_timestamps() -> None:
    server = build_server("slack", limited=True)

    async def episode(text: str) -> tuple[str, list[str]]:
        async with Client(server) as client:
            ts = (await send(client, CHANNEL.id, text))["ts"]
            return ts, [m["text"] for m in await history(client)]

    assert (await asyncio.gather(*(episode(f"message {i}") for i in range(20)))) == [
        ("1763497801.000100", [f"message {i}", CHANNEL.message.text]) for i in range(20)
    ]


async def test_a_message_with_lone_surrogates_comes_back_encodable() -> None:
    async with Client(build_server("slack")) as client:
        await send(client, CHANNEL.id, "a\ud800b \ud83d\ude00")
        assert (await history(client))[0]["text"] == "a\ufffdb \U0001f600"


async def test_replies_follow_their_parent_and_a_reaction_is_accepted_once() -> None:
    async with Client(build_server("slack")) as client:
        message = {"channel_id": CHANNEL.id, "thread_ts": CHANNEL.message.ts}
        thread = (await client.call_tool("get_slack_thread_replies", message)).structured_content
        assert [m["text"] for m in thread["messages"]] == [CHANNEL.message.text, "noted"]
        reaction = {"channel_id": CHANNEL.id, "timestamp": CHANNEL.message.ts, "reaction": ":eyes:"}
        first = await client.call_tool("add_slack_reaction", reaction)
        assert first.structured_content["name"] == "eyes"
        second = await client.call_tool("add_slack_reaction", reaction)
        assert second.is_error and text_of(second) == "Already reacted with it."


async def test_the_changes_of_a_session_are_what_it_added_in_order() -> None:
    workspace = EmbeddedSlack()
    assert await workspace.get_slack_workspace_changes() == WorkspaceChanges(messages=[], reactions=[])
    await workspace.send_slack_message(CHANNEL.id, "one")
    sent = await workspace.send_slack_message(f"#{CHANNEL.name}", "two")
    await workspace.add_slack_reaction(CHANNEL.id, CHANNEL.message.ts, "eyes")
    changes = await workspace.get_slack_workspace_changes()
    assert [m.text for m in changes.messages] == ["one", "two"]
    assert changes.messages[1] == SentMessage(channel=CHANNEL.id, text="two", ts=sent.ts)
    assert changes.reactions == [Reaction(channel=CHANNEL.id, ts=CHANNEL.message.ts, name="eyes")]
