"""slack: channels, messages, threads and reactions of a workspace."""

from __future__ import annotations

from typing import Annotated

from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcpagent.servers import embedded as lookup
from mcpagent.servers.builtin import Answer, BuiltinTool, ServerDefinition, echo, first
from mcpagent.servers.embedded import SERVER_EPOCH_S, Message, User, WorkspaceChannel, build

ChannelIdArg = Annotated[str, Field(description="Channel id.")]


class Channel(Answer):
    id: str
    name: str


class Channels(Answer):
    """`next_cursor` is empty on the last page."""

    channels: list[Channel]
    next_cursor: str


class Sent(Answer):
    """`channel` is the id; `ts` names the message within it."""

    channel: str
    ts: str


class History(Answer):
    """Newest message first."""

    messages: list[Message]


class Thread(Answer):
    """The parent, then its replies, oldest first."""

    messages: list[Message]


class Users(Answer):
    """`next_cursor` is empty on the last page."""

    users: list[User]
    next_cursor: str


class Reaction(Answer):
    channel: str
    ts: str
    name: str


class SentMessage(Answer):
    channel: str
    text: str
    ts: str


class WorkspaceChanges(Answer):
    """In the order in which they were made."""

    messages: list[SentMessage]
    reactions: list[Reaction]


class Identity(Answer):
    user_id: str
    user: str
    team: str


_TEAM = "Example Desk"
_MAX_MESSAGE_CHARS = 40_000  # chat.postMessage refuses longer ones: msg_too_long


class EmbeddedSlack:
    """The tools of slack. It holds only what its client changed, so opening one costs nothing; what was there
    before is read from the data set. `ts` values count up from the data set's time."""

    def __init__(self) -> None:
        self._data = build()
        self._sent: list[tuple[str, Message]] = []
        self._reactions: list[Reaction] = []

    async def list_slack_channels(self, limit: int = 100, cursor: str = "") -> Channels:
        """Channels of the workspace."""
        channels, next_cursor = lookup.page(self._data.channels, limit=limit, cursor=cursor)
        return Channels(channels=[Channel(id=c.id, name=c.name) for c in channels], next_cursor=next_cursor)

    async def send_slack_message(
        self, channel: Annotated[str, Field(description="Channel id or name.")], message: str
    ) -> Sent:
        """Send a message to a channel."""
        target = self._channel(channel)
        if not message.strip():
            raise ToolError("message is empty.")
        if len(message) > _MAX_MESSAGE_CHARS:
            raise ToolError(f"message is longer than {_MAX_MESSAGE_CHARS} characters.")
        ts = f"{SERVER_EPOCH_S + len(self._sent) + 1}.000100"
        me = self._data.users[0].id
        self._sent.append((target.id, Message(user=me, text=message, ts=ts)))
        return Sent(channel=target.id, ts=ts)

    async def get_slack_channel_history(self, channel_id: ChannelIdArg, limit: int = 10) -> History:
        """Latest messages of a channel, newest first."""
        newest_first = list(reversed(self._messages(self._channel(channel_id))))
        return History(messages=list(first(newest_first, limit)))

    async def list_slack_users(self, limit: int = 100, cursor: str = "") -> Users:
        """Users of the workspace."""
        users, next_cursor = lookup.page(self._data.users, limit=limit, cursor=cursor)
        return Users(users=list(users), next_cursor=next_cursor)

    async def get_slack_thread_replies(
        self,
        channel_id: ChannelIdArg,
        thread_ts: Annotated[str, Field(description="ts of the parent message.")],
    ) -> Thread:
        """A message and its replies."""
        channel = self._channel(channel_id)
        parent = self._message(channel, thread_ts)
        replies = channel.replies if parent is channel.message else ()
        return Thread(messages=[parent, *replies])

    async def add_slack_reaction(
        self,
        channel_id: ChannelIdArg,
        timestamp: Annotated[str, Field(description="ts of the message.")],
        reaction: Annotated[str, Field(description="Emoji name.")],
    ) -> Reaction:
        """Add an emoji reaction to a message."""
        channel = self._channel(channel_id)
        parent = self._message(channel, timestamp)
        emoji = reaction.strip().strip(":")
        if not emoji:
            raise ToolError("reaction is empty.")
        added = Reaction(channel=channel.id, ts=parent.ts, name=emoji)
        if added in self._reactions:
            raise ToolError("Already reacted with it.")
        self._reactions.append(added)
        return added

    async def slack_auth_test(self) -> Identity:
        """Return the user as whom this server acts."""
        me = self._data.users[0]
        return Identity(user_id=me.id, user=me.name, team=_TEAM)

    async def get_slack_workspace_changes(self) -> WorkspaceChanges:
        """Messages and reactions added in this session."""
        sent = [SentMessage(channel=channel, text=m.text, ts=m.ts) for channel, m in self._sent]
        return WorkspaceChanges(messages=sent, reactions=list(self._reactions))

    def _channel(self, id_or_name: str) -> WorkspaceChannel:
        channel = self._data.channel_by_key.get(id_or_name.strip().removeprefix("#").casefold())
        if channel is None:
            raise ToolError(f"Unknown channel {echo(id_or_name)}.")
        return channel

    def _messages(self, channel: WorkspaceChannel) -> list[Message]:
        """Oldest first."""
        return [channel.message, *(message for id, message in self._sent if id == channel.id)]

    def _message(self, channel: WorkspaceChannel, ts: str) -> Message:
        for message in self._messages(channel):
            if message.ts == ts.strip():
                return message
        raise ToolError(f"No message {echo(ts)} in {channel.id}.")


SLACK = ServerDefinition(
    name="slack",
    instructions="Channels, messages, threads and reactions of a Slack workspace.",
    stateful=True,
    embedded=EmbeddedSlack,
    tools=(
        BuiltinTool(EmbeddedSlack.list_slack_channels),
        BuiltinTool(EmbeddedSlack.send_slack_message, read_only=False),
        BuiltinTool(EmbeddedSlack.get_slack_channel_history),
        BuiltinTool(EmbeddedSlack.list_slack_users, in_limited_set=False),
        BuiltinTool(EmbeddedSlack.get_slack_thread_replies, in_limited_set=False),
        BuiltinTool(EmbeddedSlack.add_slack_reaction, read_only=False, in_limited_set=False),
        BuiltinTool(
            EmbeddedSlack.slack_auth_test, description="Who this server acts as.", in_limited_set=False
        ),
        BuiltinTool(EmbeddedSlack.get_slack_workspace_changes, in_limited_set=False),
    ),
)
