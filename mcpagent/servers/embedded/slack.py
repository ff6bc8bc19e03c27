"""slack's answers: a workspace with state, one for each client, over the shared data set."""

from __future__ import annotations

from dataclasses import dataclass

from mcp.server.mcpserver.exceptions import ToolError

from mcpagent.servers.arguments import echo, first
from mcpagent.servers.embedded import lookup
from mcpagent.servers.embedded.generate import SERVER_EPOCH_S, Channel, ChatMessage, build
from mcpagent.servers.slack import Channel as ChannelAnswer
from mcpagent.servers.slack import (
    Channels,
    History,
    Identity,
    Message,
    Reaction,
    Sent,
    SentMessage,
    Thread,
    User,
    Users,
    WorkspaceChanges,
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
        """What was added after `earlier`, a snapshot of the same workspace."""
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
        """The state at this moment; `Snapshot.since` compares two."""
        return Snapshot(messages=tuple(self._sent), reactions=tuple(self._reactions))

    async def channels(self, *, limit: int, cursor: str) -> Channels:
        found, next_cursor = lookup.page(self._data.channels, limit=limit, cursor=cursor)
        return Channels(
            channels=[ChannelAnswer(id=c.id, name=c.name) for c in found], next_cursor=next_cursor
        )

    async def send(self, channel: str, message: str) -> Sent:
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
        newest_first = list(reversed(self._messages(self._channel(channel_id))))
        return History(messages=[_message(m) for m in first(newest_first, limit)])

    async def users(self, *, limit: int, cursor: str) -> Users:
        found, next_cursor = lookup.page(self._data.users, limit=limit, cursor=cursor)
        return Users(users=[User(id=u.id, name=u.name) for u in found], next_cursor=next_cursor)

    async def thread(self, channel_id: str, ts: str) -> Thread:
        channel = self._channel(channel_id)
        parent = self._message(channel, ts)
        replies = channel.replies if parent is channel.message else ()
        return Thread(messages=[_message(m) for m in (parent, *replies)])

    async def react(self, channel_id: str, ts: str, name: str) -> Reaction:
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
        me = self._data.users[0]
        return Identity(user_id=me.id, user=me.name, team=_TEAM)

    async def changes(self) -> WorkspaceChanges:
        added = self.snapshot().since(Snapshot())
        return WorkspaceChanges(
            messages=[SentMessage(channel=c, text=m.text, ts=m.ts) for c, m in added.messages],
            reactions=[Reaction(channel=c, ts=ts, name=name) for c, ts, name in added.reactions],
        )

    def _channel(self, id_or_name: str) -> Channel:
        found = self._data.channel_by_key.get(id_or_name.strip().removeprefix("#").casefold())
        if found is None:
            raise ToolError(f"Unknown channel {echo(id_or_name)}.")
        return found

    def _messages(self, channel: Channel) -> list[ChatMessage]:
        """Oldest first."""
        return [channel.message, *(message for id, message in self._sent if id == channel.id)]

    def _message(self, channel: Channel, ts: str) -> ChatMessage:
        for message in self._messages(channel):
            if message.ts == ts.strip():
                return message
        raise ToolError(f"No message {echo(ts)} in {channel.id}.")


def _message(message: ChatMessage) -> Message:
    return Message(user=message.user, text=message.text, ts=message.ts)
