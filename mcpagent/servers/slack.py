"""slack: channels, messages, threads and reactions of a workspace."""

from __future__ import annotations

from typing import Annotated, Any, Protocol

from mcp.server.mcpserver import Context
from pydantic import Field

from mcpagent.servers.builtin import Answer, BuiltinTool, ServerDefinition

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

    async def channels(self, *, limit: int, cursor: str) -> Channels: ...
    async def send(self, channel: str, message: str) -> Sent: ...
    async def history(self, channel_id: str, *, limit: int) -> History: ...
    async def users(self, *, limit: int, cursor: str) -> Users: ...
    async def thread(self, channel_id: str, ts: str) -> Thread: ...
    async def react(self, channel_id: str, ts: str, name: str) -> Reaction: ...
    async def identity(self) -> Identity: ...
    async def changes(self) -> WorkspaceChanges: ...


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
