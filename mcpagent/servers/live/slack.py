"""slack's answers from a real workspace.

Sending is off but for the channels that are allowed by name. A real workspace outlives the session: what the
session changed is what it sent.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Collection
from contextlib import asynccontextmanager

import aiohttp
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from mcpagent.config.environment import environment
from mcpagent.servers.arguments import at_least_one, echo
from mcpagent.servers.live.patience import Pace
from mcpagent.servers.live.settings import LiveSettings
from mcpagent.servers.live.slack_api import SlackApi
from mcpagent.servers.names import live_variable
from mcpagent.servers.slack import (
    Channel,
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

_MAX_CHANNELS = 1000  # the documented maxima of `limit`
_MAX_USERS = 1000
_MAX_MESSAGES = 999
_MAX_PAGES = 50
_TIMEOUT = aiohttp.ClientTimeout(total=15, connect=5)
_CHANNEL_ID = re.compile(r"[CGD][A-Z0-9]{2,}")


class _More(BaseModel):
    next_cursor: str = ""


class _Channel(BaseModel):
    id: str
    name: str


class _Channels(BaseModel):
    channels: list[_Channel]
    response_metadata: _More = _More()


class _Message(BaseModel):
    text: str = ""
    ts: str
    user: str = ""
    bot_id: str = ""  # the author where no user is


class _Messages(BaseModel):
    messages: list[_Message]
    response_metadata: _More = _More()


class _User(BaseModel):
    id: str
    name: str
    deleted: bool = False


class _Users(BaseModel):
    members: list[_User]
    response_metadata: _More = _More()


class _Posted(BaseModel):
    channel: str
    ts: str


class _Identity(BaseModel):
    user_id: str
    user: str
    team: str


class _Done(BaseModel):
    ok: bool


class LiveSlack:
    """A `SlackUpstream`. `allow_send` holds the names or ids of the channels that may be written to."""

    def __init__(self, api: SlackApi, *, allow_send: Collection[str]) -> None:
        self._api = api
        self._allow_send = {_plain(name) for name in allow_send}
        self._known: list[_Channel] = []
        self._sent: list[SentMessage] = []
        self._reactions: list[Reaction] = []

    async def channels(self, *, limit: int, cursor: str) -> Channels:
        page = await self._channels(min(at_least_one("limit", limit), _MAX_CHANNELS), cursor)
        return Channels(
            channels=[Channel(id=c.id, name=c.name) for c in page.channels],
            next_cursor=page.response_metadata.next_cursor,
        )

    async def send(self, channel: str, message: str) -> Sent:
        target = await self._writable(channel)
        if not message.strip():
            raise ToolError("message is empty.")
        posted = await self._api.call("chat.postMessage", _Posted, channel=target, text=message)
        self._sent.append(SentMessage(channel=posted.channel, text=message, ts=posted.ts))
        return Sent(channel=posted.channel, ts=posted.ts)

    async def history(self, channel_id: str, *, limit: int) -> History:
        wanted, channel = at_least_one("limit", limit), await self._id(channel_id)
        found = await self._messages("conversations.history", wanted, channel=channel)
        return History(messages=found[:wanted])

    async def users(self, *, limit: int, cursor: str) -> Users:
        wanted = min(at_least_one("limit", limit), _MAX_USERS)
        page = await self._api.call("users.list", _Users, limit=wanted, cursor=cursor)
        return Users(
            users=[User(id=u.id, name=u.name) for u in page.members if not u.deleted],
            next_cursor=page.response_metadata.next_cursor,
        )

    async def thread(self, channel_id: str, ts: str) -> Thread:
        channel = await self._id(channel_id)
        found = await self._messages("conversations.replies", None, channel=channel, ts=ts.strip())
        return Thread(messages=found)

    async def react(self, channel_id: str, ts: str, name: str) -> Reaction:
        target = await self._writable(channel_id)
        emoji = name.strip().strip(":")
        if not emoji:
            raise ToolError("reaction is empty.")
        await self._api.call("reactions.add", _Done, channel=target, timestamp=ts.strip(), name=emoji)
        reaction = Reaction(channel=target, ts=ts.strip(), name=emoji)
        self._reactions.append(reaction)
        return reaction

    async def identity(self) -> Identity:
        me = await self._api.call("auth.test", _Identity)
        return Identity(user_id=me.user_id, user=me.user, team=me.team)

    async def changes(self) -> WorkspaceChanges:
        return WorkspaceChanges(messages=list(self._sent), reactions=list(self._reactions))

    async def _channels(self, limit: int, cursor: str) -> _Channels:
        page = {"limit": limit, "cursor": cursor, "exclude_archived": "true"}
        return await self._api.call("conversations.list", _Channels, **page)

    async def _messages(self, method: str, wanted: int | None, **arguments: str) -> list[Message]:
        """The messages of as many pages as hold `wanted` of them; None is all, of at most 50 pages."""
        found: list[Message] = []
        cursor = ""
        for _ in range(_MAX_PAGES):
            limit = min(_MAX_MESSAGES, (wanted or _MAX_MESSAGES + len(found)) - len(found))
            page = await self._api.call(method, _Messages, limit=limit, cursor=cursor, **arguments)
            found += [Message(user=m.user or m.bot_id, text=m.text, ts=m.ts) for m in page.messages]
            cursor = page.response_metadata.next_cursor
            if not cursor or (wanted is not None and len(found) >= wanted):
                break
        return found

    async def _writable(self, id_or_name: str) -> str:
        """The id of a channel that may be written to. Name and id are looked up, so that neither can stand
        for another channel."""
        channel = await self._find(id_or_name)
        if self._allow_send & {_plain(channel.id), _plain(channel.name)}:
            return channel.id
        raise ToolError(f"Writing to {echo(channel.name)} is not allowed here.")

    async def _id(self, id_or_name: str) -> str:
        wanted = id_or_name.strip()
        return wanted if _CHANNEL_ID.fullmatch(wanted) else (await self._find(id_or_name)).id

    async def _find(self, id_or_name: str) -> _Channel:
        wanted = _plain(id_or_name)
        for is_fresh in (False, True):
            if is_fresh:
                self._known = await self._all_channels()
            for channel in self._known:
                if wanted in (_plain(channel.id), _plain(channel.name)):
                    return channel
        raise ToolError(f"Unknown channel {echo(id_or_name)}.")

    async def _all_channels(self) -> list[_Channel]:
        found: list[_Channel] = []
        cursor = ""
        for _ in range(_MAX_PAGES):
            page = await self._channels(_MAX_CHANNELS, cursor)
            found += page.channels
            cursor = page.response_metadata.next_cursor
            if not cursor:
                break
        return found


def allowed_channels(given: Collection[str]) -> tuple[str, ...]:
    """The channels that may be written to: those of `--allow-send` and of `MCPAGENT_SLACK_ALLOW_SEND`, which
    separates them by commas."""
    named = environment().get(live_variable("slack", "ALLOW_SEND"), "").split(",")
    return tuple(name.strip() for name in (*given, *named) if name.strip())


@asynccontextmanager
async def open_slack(
    settings: LiveSettings, *, paces: dict[str, Pace], allow_send: Collection[str]
) -> AsyncGenerator[LiveSlack]:
    async with aiohttp.ClientSession(timeout=_TIMEOUT) as http:
        yield LiveSlack(SlackApi(settings, paces=paces, http=http), allow_send=allow_send)


def _plain(id_or_name: str) -> str:
    return id_or_name.strip().removeprefix("#").casefold()
