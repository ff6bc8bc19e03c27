"""JSON over HTTP, for the three services that speak it plainly."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import httpx
from mcp.server.mcpserver.exceptions import ToolError
from pydantic import TypeAdapter, ValidationError

from mcpagent.core.retry_after import retry_after_s
from mcpagent.servers.live.patience import Pace, Transient, UpstreamFailed, misshapen, persist
from mcpagent.servers.live.settings import LiveSettings
from mcpagent.servers.names import live_variable
from mcpagent.servers.text import clean_values

# They log whole URLs, and the key of fmp is in its URL.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)

T = TypeVar("T")

_MAX_MESSAGE_CHARS = 200
_TIMEOUT = httpx.Timeout(15.0, connect=5.0)
_KEY_REFUSED = {401, 402, 403}
_QUOTA_USED_UP = {
    432: "the plan's limit is reached",
    433: "the pay-as-you-go limit is reached",
}  # Tavily's own
_MODELS_FAULT = {400, 404, 422}


class Rejected(ToolError):
    """The service understood the request and found it wrong: an unknown symbol, an empty query."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


class ApiClient:
    """Calls of one service. Every method raises `Rejected` or `UpstreamFailed`."""

    def __init__(self, settings: LiveSettings, *, pace: Pace, http: httpx.AsyncClient) -> None:
        self._settings = settings
        self._pace = pace
        self._http = http

    async def get(self, path: str, shape: type[T], **params: str | int) -> T:
        """The answer of a GET, parsed as `shape`."""
        return await self._ask("GET", path, shape, params=clean_values(params))

    async def post(self, path: str, shape: type[T], **body: Any) -> T:
        """The answer of a POST that only reads, so that it is repeated as a GET is."""
        return await self._ask("POST", path, shape, body=clean_values(body))

    async def _ask(
        self,
        method: str,
        path: str,
        shape: type[T],
        *,
        params: Mapping[str, str | int] | None = None,
        body: Mapping[str, Any] | None = None,
    ) -> T:
        async def attempt() -> Any:
            try:
                response = await self._http.request(method, path, params=params, json=body)
            except httpx.RequestError as error:
                raise Transient(f"the connection failed ({type(error).__name__})") from None
            return self._read(response)

        document = await persist(attempt, settings=self._settings, pace=self._pace)
        try:
            return TypeAdapter(shape).validate_python(document)
        except ValidationError as error:
            raise misshapen(self._settings, error) from None

    def _read(self, response: httpx.Response) -> Any:
        """The JSON of a good answer; every other answer by whose fault it is."""
        status = response.status_code
        document = _json(response)
        said = _message(document)
        told = f": {said}" if said else ""
        if status == 429 or status >= 500:
            what = "its rate limit is reached" if status == 429 else f"it answered {status}"
            raise Transient(what + told, retry_after_s=retry_after_s(response.headers))
        if status in _KEY_REFUSED:
            hint = _hint(said, self._settings)
            raise self._failed(f"refused the key in {self._settings.key_name} ({status}){told}{hint}")
        if status in _QUOTA_USED_UP:
            raise self._failed(f"{_QUOTA_USED_UP[status]} ({status}){told}")
        if status in _MODELS_FAULT and said:
            raise Rejected(status, self._settings.redact(said))
        if status == 200 and said:
            raise self._failed(f"answered with an error{told}")
        if status != 200:
            url = live_variable(self._settings.service, "BASE_URL")
            raise self._failed(f"answered {status}{told}; is {url} the address of its API?")
        if document is None:
            raise Transient("its answer is not JSON")
        return document

    def _failed(self, text: str) -> UpstreamFailed:
        return UpstreamFailed(self._settings, text)


@asynccontextmanager
async def open_api(
    settings: LiveSettings,
    *,
    pace: Pace,
    headers: Mapping[str, str] | None = None,
    params: Mapping[str, str] | None = None,
) -> AsyncGenerator[ApiClient]:
    """A client that sends `headers` and `params`, one of which holds the key, to one host only: redirects are
    not followed."""
    async with httpx.AsyncClient(
        base_url=settings.base_url, headers=headers, params=params, timeout=_TIMEOUT, follow_redirects=False
    ) as http:
        yield ApiClient(settings, pace=pace, http=http)


def _json(response: httpx.Response) -> Any:
    """The document, or None where the body is none."""
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return None


def _message(document: Any) -> str:
    """What an error document says; empty where it is none. Massive answers {"status", "error" or "message"},
    FMP {"Error Message"}, Tavily {"detail": {"error"}}."""
    if not isinstance(document, dict):
        return ""
    for name in ("Error Message", "error", "message", "detail"):
        found = document.get(name)
        if isinstance(found, dict):
            found = found.get("error")
        if found:
            text = found if isinstance(found, str) else json.dumps(found)
            return " ".join(text.split())[:_MAX_MESSAGE_CHARS]
    return ""


def _hint(said: str, settings: LiveSettings) -> str:
    if "Legacy Endpoint" not in said:
        return ""
    return f". {live_variable(settings.service, 'BASE_URL')} must be the address of the stable API"
