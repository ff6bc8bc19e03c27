"""slack's answers from a real workspace.

Sending is off but for the channels that are allowed by name. A real workspace outlives the session: what the
session changed is what it sent.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Any, TypeVar

import httpx
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import BaseModel

from mcpagent.config.environment import environment
from mcpagent.core.values import retry_after_s
from mcpagent.servers.builtin import at_least_one, echo
from mcpagent.servers.embedded import Message, User
from mcpagent.servers.live.client import (
    ApiClient,
    LiveService,
    LiveSettings,
    Rate,
    Transient,
    UpstreamFailed,
    json_of,
)
from mcpagent.servers.names import live_variable
from mcpagent.servers.slack import (
    Channel,
    Channels,
    History,
    Identity,
    Reaction,
    Sent,
    SentMessage,
    Thread,
    Users,
    WorkspaceChanges,
)

# The documented tiers of the methods, for internal and Marketplace apps; a message a second and channel.
RATES = {
    "conversations.list": Rate(20, 60),
    "users.list": Rate(20, 60),
    "conversations.history": Rate(50, 60),
    "conversations.replies": Rate(50, 60),
    "reactions.add": Rate(50, 60),
    "chat.postMessage": Rate(1, 1),
    "auth.test": Rate(100, 60),
}

T = TypeVar("T")

# Slack's `error` codes by whose fault they are; one that is in neither table is never the model's.
_MODELS_FAULT = {
    "already_reacted": "Already reacted with it.",
    "bad_timestamp": "There is no such message.",
    "channel_not_found": "Unknown channel.",
    "invalid_cursor": "Unknown cursor.",
    "invalid_name": "Unknown emoji.",
    "invalid_ts_latest": "There is no such message.",
    "is_archived": "The channel is archived.",
    "message_not_found": "There is no such message.",
    "msg_too_long": "message is too long.",
    "no_text": "message is empty.",
    "not_in_channel": "This user is not in the channel.",
    "thread_not_found": "There is no such message.",
    "too_many_emoji": "The message has too many reactions.",
    "too_many_reactions": "The message has too many reactions.",
}
_PASSING = {"fatal_error", "internal_error", "request_timeout", "service_unavailable"}


def read_answer(settings: LiveSettings, method: str, response: httpx.Response) -> Any:
    """Read the answers of the Web API, which says by a code in the document whose fault it is."""
    said, status = json_of(response), response.status_code
    if not isinstance(said, dict):
        raise Transient("its answer is not JSON")
    if status == 200 and said.get("ok"):
        return said
    code, after_s = str(said.get("error", "")), retry_after_s(response.headers)
    if status == 429 or code == "ratelimited":
        raise Transient("its rate limit is reached", retry_after_s=after_s, was_taken=False)
    if status >= 500 or code in _PASSING or not code:
        raise Transient(f"it answered {status} {code}".strip(), retry_after_s=after_s)
    if code in _MODELS_FAULT:
        raise ToolError(_MODELS_FAULT[code])
    needed = f", the scope {said['needed']} is missing" if "needed" in said else ""
    raise UpstreamFailed(settings, f"refused {method} with {settings.key_name} ({code}{needed})")


_MAX_CHANNELS = 1000  # the documented maxima of `limit`
_MAX_USERS = 1000
_MAX_MESSAGES = 999
_MAX_PAGES = 50
_CHANNEL_ID = re.compile(r"[CGD][A-Z0-9]{2,}")


class _More(BaseModel):
    next_cursor: str = ""


class _Channels(BaseModel):
    channels: list[Channel]
    response_metadata: _More = _More()


class _Message(BaseModel):
    text: str = ""
    ts: str
    user: str = ""
    bot_id: str = ""  # the author if no user is


class _Messages(BaseModel):
    messages: list[_Message]
    response_metadata: _More = _More()


class _User(User):
    deleted: bool = False


class _Users(BaseModel):
    members: list[_User]
    response_metadata: _More = _More()


class _Done(BaseModel):
    ok: bool


class LiveSlack:
    """The tools of slack. `allow_send` holds the channels that may be written to, by plain name or id."""

    def __init__(self, api: ApiClient, *, allow_send: set[str]) -> None:
        self._api = api
        self._allow_send = allow_send
        self._channel_cache: list[Channel] = []
        self._sent: list[SentMessage] = []
        self._reactions: list[Reaction] = []

    async def list_slack_channels(self, limit: int, cursor: str) -> Channels:
        """Return one page of the channels."""
        page = await self._channels(min(at_least_one("limit", limit), _MAX_CHANNELS), cursor)
        return Channels(channels=page.channels, next_cursor=page.response_metadata.next_cursor)

    async def send_slack_message(self, channel: str, message: str) -> Sent:
        """Post a message to a channel."""
        target = await self._writable(channel)
        if not message.strip():
            raise ToolError("message is empty.")
        sent = await self._api.write("chat.postMessage", Sent, channel=target, text=message)
        self._sent.append(SentMessage(channel=sent.channel, text=message, ts=sent.ts))
        return sent

    async def get_slack_channel_history(self, channel_id: str, limit: int) -> History:
        """Return the newest messages of a channel."""
        count, channel = at_least_one("limit", limit), await self._id(channel_id)
        messages = await self._messages("conversations.history", count, channel=channel)
        return History(messages=messages[:count])

    async def list_slack_users(self, limit: int, cursor: str) -> Users:
        """Return one page of the users."""
        page_size = min(at_least_one("limit", limit), _MAX_USERS)
        page = await self._get("users.list", _Users, limit=page_size, cursor=cursor)
        return Users(
            users=[user for user in page.members if not user.deleted],
            next_cursor=page.response_metadata.next_cursor,
        )

    async def get_slack_thread_replies(self, channel_id: str, thread_ts: str) -> Thread:
        """Return a message and its replies."""
        channel = await self._id(channel_id)
        messages = await self._messages("conversations.replies", None, channel=channel, ts=thread_ts.strip())
        return Thread(messages=messages)

    async def add_slack_reaction(self, channel_id: str, timestamp: str, reaction: str) -> Reaction:
        """Add a reaction to a message."""
        target = await self._writable(channel_id)
        emoji = reaction.strip().strip(":")
        if not emoji:
            raise ToolError("reaction is empty.")
        await self._api.write("reactions.add", _Done, channel=target, timestamp=timestamp.strip(), name=emoji)
        added = Reaction(channel=target, ts=timestamp.strip(), name=emoji)
        self._reactions.append(added)
        return added

    async def slack_auth_test(self) -> Identity:
        """Return the user that the calls are made as."""
        return await self._get("auth.test", Identity)

    async def get_slack_workspace_changes(self) -> WorkspaceChanges:
        """Return the messages and reactions that this client made."""
        return WorkspaceChanges(messages=list(self._sent), reactions=list(self._reactions))

    async def _get(self, method: str, shape: type[T], **arguments: Any) -> T:
        # An empty argument is one that is not given: the cursor of a first page.
        given = {name: value for name, value in arguments.items() if value != ""}
        return await self._api.get(method, shape, **given)

    async def _channels(self, limit: int, cursor: str) -> _Channels:
        page = {"limit": limit, "cursor": cursor, "exclude_archived": "true"}
        return await self._get("conversations.list", _Channels, **page)

    async def _messages(self, method: str, count: int | None, **arguments: str) -> list[Message]:
        """Return the messages of as many pages as hold `wanted` of them; None is all, of at most 50 pages."""
        messages: list[Message] = []
        cursor = ""
        for _ in range(_MAX_PAGES):
            limit = min(_MAX_MESSAGES, (count or _MAX_MESSAGES + len(messages)) - len(messages))
            page = await self._get(method, _Messages, limit=limit, cursor=cursor, **arguments)
            messages += [Message(user=m.user or m.bot_id, text=m.text, ts=m.ts) for m in page.messages]
            cursor = page.response_metadata.next_cursor
            if not cursor or (count is not None and len(messages) >= count):
                break
        return messages

    async def _writable(self, id_or_name: str) -> str:
        """The id of a channel that may be written to. Name and id are looked up, so that neither can stand
        for another channel."""
        channel = await self._find(id_or_name)
        if self._allow_send & {_plain(channel.id), _plain(channel.name)}:
            return channel.id
        raise ToolError(f"Writing to {echo(channel.name)} is not allowed here.")

    async def _id(self, id_or_name: str) -> str:
        channel = id_or_name.strip()
        return channel if _CHANNEL_ID.fullmatch(channel) else (await self._find(id_or_name)).id

    async def _find(self, id_or_name: str) -> Channel:
        name = _plain(id_or_name)
        for is_fresh in (False, True):
            if is_fresh:
                self._channel_cache = await self._all_channels()
            for channel in self._channel_cache:
                if name in (_plain(channel.id), _plain(channel.name)):
                    return channel
        raise ToolError(f"Unknown channel {echo(id_or_name)}.")

    async def _all_channels(self) -> list[Channel]:
        channels: list[Channel] = []
        cursor = ""
        for _ in range(_MAX_PAGES):
            page = await self._channels(_MAX_CHANNELS, cursor)
            channels += page.channels
            cursor = page.response_metadata.next_cursor
            if not cursor:
                break
        return channels


def slack_service(allow_send: Collection[str]) -> LiveService:
    """Return the service, whose clients may write to the channels of `allow_send` and to those of
    `MCPAGENT_SLACK_ALLOW_SEND`, which separates them by commas."""
    named = environment().get(live_variable("slack", "ALLOW_SEND"), "").split(",")
    channels = {_plain(name) for name in (*allow_send, *named) if name.strip()}
    return LiveService(
        base_url="https://slack.com/api",
        rates=RATES,
        tools=lambda api: LiveSlack(api, allow_send=channels),
        read=read_answer,
    )


def _plain(id_or_name: str) -> str:
    return id_or_name.strip().removeprefix("#").casefold()
