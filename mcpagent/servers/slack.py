"""slack: channels, messages, threads and reactions of a workspace."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Protocol

from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import Field

from mcpagent.servers import embedded as lookup
from mcpagent.servers.builtin import Answer, BuiltinTool, ServerDefinition, echo, first
from mcpagent.servers.embedded import SERVER_EPOCH_S, ChatMessage, WorkspaceChannel, build

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


class Message(Answer):
    """`user` is a user id."""

    user: str
    text: str
    ts: str


class History(Answer):
    """Newest message first."""

    messages: list[Message]


class Thread(Answer):
    """The parent, then its replies, oldest first."""

    messages: list[Message]


class User(Answer):
    id: str
    name: str


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


class SlackUpstream(Protocol):
    """Where the answers come from. Every method raises `ToolError` with a sentence for the model."""

    async def channels(self, *, limit: int, cursor: str) -> Channels:
        """Return one page of the channels."""
        ...

    async def send(self, channel: str, message: str) -> Sent:
        """Post a message to a channel."""
        ...

    async def history(self, channel_id: str, *, limit: int) -> History:
        """Return the newest messages of a channel."""
        ...

    async def users(self, *, limit: int, cursor: str) -> Users:
        """Return one page of the users."""
        ...

    async def thread(self, channel_id: str, ts: str) -> Thread:
        """Return a message and its replies."""
        ...

    async def react(self, channel_id: str, ts: str, name: str) -> Reaction:
        """Add a reaction to a message."""
        ...

    async def identity(self) -> Identity:
        """Return the user that the calls are made as."""
        ...

    async def changes(self) -> WorkspaceChanges:
        """Return the messages and reactions that this client made."""
        ...


def _upstream(ctx: Context[Any, Any]) -> SlackUpstream:
    return ctx.request_context.lifespan_context


async def list_slack_channels(ctx: Context, limit: int = 100, cursor: str = "") -> Channels:
    """Channels of the workspace."""
    return await _upstream(ctx).channels(limit=limit, cursor=cursor)


async def send_slack_message(
    channel: Annotated[str, Field(description="Channel id or name.")], message: str, ctx: Context
) -> Sent:
    """Send a message to a channel."""
    return await _upstream(ctx).send(channel, message)


async def get_slack_channel_history(channel_id: ChannelIdArg, ctx: Context, limit: int = 10) -> History:
    """Latest messages of a channel, newest first."""
    return await _upstream(ctx).history(channel_id, limit=limit)


async def list_slack_users(ctx: Context, limit: int = 100, cursor: str = "") -> Users:
    """Users of the workspace."""
    return await _upstream(ctx).users(limit=limit, cursor=cursor)


async def get_slack_thread_replies(
    channel_id: ChannelIdArg,
    thread_ts: Annotated[str, Field(description="ts of the parent message.")],
    ctx: Context,
) -> Thread:
    """A message and its replies."""
    return await _upstream(ctx).thread(channel_id, thread_ts)


async def add_slack_reaction(
    channel_id: ChannelIdArg,
    timestamp: Annotated[str, Field(description="ts of the message.")],
    reaction: Annotated[str, Field(description="Emoji name.")],
    ctx: Context,
) -> Reaction:
    """Add an emoji reaction to a message."""
    return await _upstream(ctx).react(channel_id, timestamp, reaction)


async def slack_auth_test(ctx: Context) -> Identity:
    """Who this server acts as."""
    return await _upstream(ctx).identity()


async def get_slack_workspace_changes(ctx: Context) -> WorkspaceChanges:
    """Messages and reactions added in this session."""
    return await _upstream(ctx).changes()


SLACK = ServerDefinition(
    name="slack",
    instructions="Channels, messages, threads and reactions of a Slack workspace.",
    stateful=True,
    tools=(
        BuiltinTool(run=list_slack_channels),
        BuiltinTool(run=send_slack_message, read_only=False),
        BuiltinTool(run=get_slack_channel_history),
        BuiltinTool(run=list_slack_users, in_limited_set=False),
        BuiltinTool(run=get_slack_thread_replies, in_limited_set=False),
        BuiltinTool(run=add_slack_reaction, read_only=False, in_limited_set=False),
        BuiltinTool(run=slack_auth_test, in_limited_set=False),
        BuiltinTool(run=get_slack_workspace_changes, in_limited_set=False),
    ),
)


_TEAM = "Example Desk"
_MAX_MESSAGE_CHARS = 40_000  # chat.postMessage refuses longer ones: msg_too_long


@dataclass(frozen=True)
class Snapshot:
    """What a workspace holds beyond the data set: messages with their channel's id, reactions as channel id,
    message and name; both in the order in which they came. Nothing is ever edited or removed."""

    messages: tuple[tuple[str, ChatMessage], ...] = ()
    reactions: tuple[tuple[str, str, str], ...] = ()

    def since(self, earlier: Snapshot) -> Snapshot:
        """Return what was added after `earlier`, a snapshot of the same workspace."""
        return Snapshot(
            messages=self.messages[len(earlier.messages) :],
            reactions=self.reactions[len(earlier.reactions) :],
        )


class EmbeddedSlack:
    """A `SlackUpstream`. It holds only what its client changed, so opening one costs nothing; what was there
    before is read from the data set. `ts` values count up from the data set's time."""

    def __init__(self) -> None:
        self._data = build()
        self._sent: list[tuple[str, ChatMessage]] = []
        self._reactions: dict[tuple[str, str, str], None] = {}

    def snapshot(self) -> Snapshot:
        """Return the state at this moment; `Snapshot.since` compares two."""
        return Snapshot(messages=tuple(self._sent), reactions=tuple(self._reactions))

    async def channels(self, *, limit: int, cursor: str) -> Channels:
        """Return one page of the channels."""
        channels, next_cursor = lookup.page(self._data.channels, limit=limit, cursor=cursor)
        return Channels(channels=[Channel(id=c.id, name=c.name) for c in channels], next_cursor=next_cursor)

    async def send(self, channel: str, message: str) -> Sent:
        """Post a message to a channel."""
        target = self._channel(channel)
        if not message.strip():
            raise ToolError("message is empty.")
        if len(message) > _MAX_MESSAGE_CHARS:
            raise ToolError(f"message is longer than {_MAX_MESSAGE_CHARS} characters.")
        ts = f"{SERVER_EPOCH_S + len(self._sent) + 1}.000100"
        me = self._data.users[0].id
        self._sent.append((target.id, ChatMessage(me, message, ts)))
        return Sent(channel=target.id, ts=ts)

    async def history(self, channel_id: str, *, limit: int) -> History:
        """Return the newest messages of a channel."""
        newest_first = list(reversed(self._messages(self._channel(channel_id))))
        return History(messages=[_message(m) for m in first(newest_first, limit)])

    async def users(self, *, limit: int, cursor: str) -> Users:
        """Return one page of the users."""
        users, next_cursor = lookup.page(self._data.users, limit=limit, cursor=cursor)
        return Users(users=[User(id=u.id, name=u.name) for u in users], next_cursor=next_cursor)

    async def thread(self, channel_id: str, ts: str) -> Thread:
        """Return a message and its replies."""
        channel = self._channel(channel_id)
        parent = self._message(channel, ts)
        replies = channel.replies if parent is channel.message else ()
        return Thread(messages=[_message(m) for m in (parent, *replies)])

    async def react(self, channel_id: str, ts: str, name: str) -> Reaction:
        """Add a reaction to a message."""
        channel = self._channel(channel_id)
        parent = self._message(channel, ts)
        emoji = name.strip().strip(":")
        if not emoji:
            raise ToolError("reaction is empty.")
        reaction = (channel.id, parent.ts, emoji)
        if reaction in self._reactions:
            raise ToolError("Already reacted with it.")
        self._reactions[reaction] = None
        return Reaction(channel=channel.id, ts=parent.ts, name=emoji)

    async def identity(self) -> Identity:
        """Return the user that the calls are made as."""
        me = self._data.users[0]
        return Identity(user_id=me.id, user=me.name, team=_TEAM)

    async def changes(self) -> WorkspaceChanges:
        """Return the messages and reactions that this client made."""
        added = self.snapshot().since(Snapshot())
        return WorkspaceChanges(
            messages=[SentMessage(channel=c, text=m.text, ts=m.ts) for c, m in added.messages],
            reactions=[Reaction(channel=c, ts=ts, name=name) for c, ts, name in added.reactions],
        )

    def _channel(self, id_or_name: str) -> WorkspaceChannel:
        channel = self._data.channel_by_key.get(id_or_name.strip().removeprefix("#").casefold())
        if channel is None:
            raise ToolError(f"Unknown channel {echo(id_or_name)}.")
        return channel

    def _messages(self, channel: WorkspaceChannel) -> list[ChatMessage]:
        """Oldest first."""
        return [channel.message, *(message for id, message in self._sent if id == channel.id)]

    def _message(self, channel: WorkspaceChannel, ts: str) -> ChatMessage:
        for message in self._messages(channel):
            if message.ts == ts.strip():
                return message
        raise ToolError(f"No message {echo(ts)} in {channel.id}.")


def _message(message: ChatMessage) -> Message:
    return Message(user=message.user, text=message.text, ts=message.ts)
