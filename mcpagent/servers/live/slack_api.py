"""Calls of Slack's Web API by the official SDK: their pace, their repeats, and whose fault a refusal is."""

from __future__ import annotations

import logging
from typing import Any, TypeVar

import aiohttp
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import TypeAdapter, ValidationError
from slack_sdk.errors import SlackApiError
from slack_sdk.web.async_client import AsyncWebClient
from slack_sdk.web.async_slack_response import AsyncSlackResponse

from mcpagent.core.retry_after import retry_after_s
from mcpagent.servers.live.patience import Pace, Transient, UpstreamFailed, misshapen, persist
from mcpagent.servers.live.settings import LiveSettings, Rate
from mcpagent.servers.text import clean_values

BASE_URL = "https://slack.com/api"
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

# It logs request parameters, and would log them at its default level.
_LOG = logging.getLogger("slack_sdk.web")
_LOG.setLevel(logging.WARNING)

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
_WRITES = {"chat.postMessage", "reactions.add"}
_PASSING = {"fatal_error", "internal_error", "ratelimited", "request_timeout", "service_unavailable"}


class SlackApi:
    """Calls of the Web API. Raises `ToolError` or `UpstreamFailed`."""

    def __init__(
        self, settings: LiveSettings, *, paces: dict[str, Pace], http: aiohttp.ClientSession
    ) -> None:
        self._settings = settings
        self._paces = paces
        self._client = AsyncWebClient(
            token=settings.key, base_url=settings.base_url, session=http, logger=_LOG, retry_handlers=[]
        )

    async def call(self, method: str, shape: type[T], **arguments: Any) -> T:
        """The answer of a method. One that writes is repeated only where it cannot have been carried out."""
        # An empty argument is one that is not given: the cursor of a first page.
        given = {name: value for name, value in clean_values(arguments).items() if value != ""}
        is_write = method in _WRITES
        request: dict[str, Any] = {"json": given} if is_write else {"http_verb": "GET", "params": given}

        async def attempt() -> Any:
            try:
                answer = await self._client.api_call(method, **request)
            except SlackApiError as error:
                raise self._refusal(method, error) from None
            except aiohttp.ClientConnectorError as error:
                raise Transient(f"the connection failed ({type(error).__name__})") from None
            # The SDK raises an AttributeError for a body that is no JSON object, and a RecursionError for one
            # that is nested too deeply.
            except (
                aiohttp.ClientError,
                TimeoutError,
                ValueError,
                AttributeError,
                RecursionError,
            ) as error:
                raise self._lost(method, type(error).__name__) from None
            return answer.data

        document = await persist(attempt, settings=self._settings, pace=self._paces[method])
        try:
            return TypeAdapter(shape).validate_python(document)
        except ValidationError as error:
            raise misshapen(self._settings, error) from None

    def _refusal(self, method: str, error: SlackApiError) -> Exception:
        response = error.response
        if not isinstance(response, AsyncSlackResponse):  # the SDK could not read the body
            return self._lost(method, "its answer is not JSON")
        said = response.data if isinstance(response.data, dict) else {}
        code, status = str(said.get("error", "")), response.status_code
        if status == 429 or code == "ratelimited":
            return Transient("its rate limit is reached", retry_after_s=retry_after_s(response.headers))
        if status >= 500 or code in _PASSING or not code:
            return self._lost(method, f"it answered {status} {code}".strip(), retry_after_s(response.headers))
        if code in _MODELS_FAULT:
            return ToolError(_MODELS_FAULT[code])
        needed = f", the scope {said['needed']} is missing" if "needed" in said else ""
        return UpstreamFailed(
            self._settings, f"refused {method} with {self._settings.key_name} ({code}{needed})"
        )

    def _lost(self, method: str, why: str, after_s: float | None = None) -> Exception:
        if method in _WRITES:
            return UpstreamFailed(self._settings, f"{method} may have been carried out: {why}")
        return Transient(why, retry_after_s=after_s)
