"""What the live upstreams share: keys and addresses, their pace and repeats, JSON over HTTP."""

from __future__ import annotations

import asyncio
import json
import logging
import math
import re
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any, TypeVar
from urllib.parse import urlsplit

import httpx
from aiolimiter import AsyncLimiter
from mcp.server.mcpserver.exceptions import ToolError
from mcp.shared.exceptions import MCPError
from mcp.types import INTERNAL_ERROR, REQUEST_TIMEOUT
from pydantic import TypeAdapter, ValidationError

from mcpagent.config.environment import environment
from mcpagent.core.redact import SECRETS
from mcpagent.core.values import backoff_s, retry_after_s
from mcpagent.errors import UserError
from mcpagent.servers.builtin import Upstream, clean_values
from mcpagent.servers.names import KEY_NAMES, live_variable

HIDDEN = "[key]"  # what stands where a key stood

# ASCII that JSON writes as it is, so that a key is found in it, and long enough not to be found by chance.
_KEY = re.compile(r"[!#-\[\]-~]{8,}")


@dataclass(frozen=True)
class Rate:
    """`calls` in any `period_s`, all at once at first."""

    calls: float
    period_s: float


@dataclass(frozen=True, kw_only=True)
class LiveSettings:
    """One service as this process uses it. `rate` None is the documented one.

    `deadline_s` bounds one request with its repeats and waits. It is below the 30 s that a tool call has by
    default, so that the reason reaches the client. `backoff_s` is the first pause if the service names
    none; each repeat doubles it.
    """

    service: str
    key: str = field(repr=False)
    key_name: str
    base_url: str
    rate: Rate | None = None
    deadline_s: float = 25.0
    attempts: int = 4
    backoff_s: float = 0.5

    def redact(self, text: str) -> str:
        """`text` without the key, in any form in which a service or a library may repeat it."""
        return SECRETS.text(text, mark=HIDDEN)


def read_settings(service: str, *, base_url: str) -> LiveSettings:
    """The settings of a service: its key by name, `MCPAGENT_<NAME>_BASE_URL` in place of `base_url`, and
    `MCPAGENT_<NAME>_RATE` as CALLS/SECONDS. Raises UserError, which never shows the key."""
    variables = environment()
    key_name, key = _key(service, variables)
    SECRETS.add(key, key_name)
    url_name = live_variable(service, "BASE_URL")
    return LiveSettings(
        service=service,
        key=key,
        key_name=key_name,
        base_url=_base_url(url_name, variables.get(url_name) or base_url),
        rate=_rate(live_variable(service, "RATE"), variables),
    )


def _key(service: str, variables: Mapping[str, str]) -> tuple[str, str]:
    names = KEY_NAMES[service]
    for name in names:
        key = variables.get(name, "").strip()
        if key and not _KEY.fullmatch(key):
            raise UserError(f"{name} holds what cannot be a key", where=service, remedy="Copy it again.")
        if key:
            return name, key
    raise UserError(
        f"{' or '.join(names)} is not set: the live {service} needs a key",
        remedy=f"export {names[0]}=...  (or put {names[0]}=... into .env); without one: --upstream embedded",
    )


def _base_url(name: str, url: str) -> str:
    """`url` without its last slash. A key travels over TLS, or does not leave this machine."""
    parts = urlsplit(url)
    is_here = parts.hostname in {"127.0.0.1", "::1", "localhost"}
    if not parts.hostname or not (parts.scheme == "https" or (parts.scheme == "http" and is_here)):
        raise UserError(f"{url!r} is not an https:// address", where=name, remedy=f"unset {name}")
    return url.rstrip("/")


def _rate(name: str, variables: Mapping[str, str]) -> Rate | None:
    text = variables.get(name, "")
    if not text:
        return None
    calls, _, period_s = text.partition("/")
    try:
        rate = Rate(float(calls), float(period_s))
    except ValueError:
        rate = Rate(0, 0)
    if not (1 <= rate.calls < math.inf and 0 < rate.period_s < math.inf):
        raise UserError(
            f"{text!r} is not a rate", where=name, remedy=f"{name}=100/60 is 100 calls in 60 seconds"
        )
    return rate


T = TypeVar("T")

_MAX_PAUSE_S = 8.0
_MAX_FAULTS = 3


class UpstreamFailed(MCPError):
    """A failure that is not the model's."""

    def __init__(self, settings: LiveSettings, text: str, *, code: int = INTERNAL_ERROR) -> None:
        super().__init__(code=code, message=settings.redact(f"{settings.service}: {text}"))


class Transient(Exception):
    """An attempt failed in a way that may pass. `retry_after_s` is what the service asked to wait;
    `was_taken` is False only if the service certainly did nothing."""

    def __init__(self, text: str, *, retry_after_s: float | None = None, was_taken: bool = True) -> None:
        super().__init__(text)
        self.retry_after_s = retry_after_s
        self.was_taken = was_taken


# They log whole URLs, and the key of fmp is in its URL.
for _name in ("httpx", "httpcore"):
    logging.getLogger(_name).setLevel(logging.WARNING)


_MAX_MESSAGE_CHARS = 200
_TIMEOUT = httpx.Timeout(15.0, connect=5.0)
_KEY_REFUSED = {401, 402, 403}
_QUOTA_USED_UP = {
    432: "the plan's limit is reached",
    433: "the pay-as-you-go limit is reached",
}  # Tavily's own
_MODELS_FAULT = {400, 404, 422}


class RefusedRequest(ToolError):
    """The service understood the request and found it wrong: an unknown symbol, an empty query."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status


# Returns the document of a good answer to a request of the path; raises every other one by whose fault it is:
# Transient, ToolError or UpstreamFailed.
ReadAnswer = Callable[[LiveSettings, str, httpx.Response], Any]


class ApiClient:
    """Calls of one service. Every method returns the answer parsed as `shape`; raises ToolError or
    UpstreamFailed. `paces` are by path; that of "" is for all other paths."""

    def __init__(
        self,
        settings: LiveSettings,
        *,
        paces: Mapping[str, AsyncLimiter],
        read: ReadAnswer,
        http: httpx.AsyncClient,
    ) -> None:
        self._settings = settings
        self._paces = paces
        self._read = read
        self._http = http

    async def get(self, path: str, shape: type[T], **params: Any) -> T:
        """Return the answer of a GET."""
        return await self._ask(path, shape, method="GET", params=clean_values(params))

    async def post(self, path: str, shape: type[T], **body: Any) -> T:
        """Return the answer of a POST that only reads, so that it is repeated as a GET is."""
        return await self._ask(path, shape, method="POST", json=clean_values(body))

    async def write(self, path: str, shape: type[T], **body: Any) -> T:
        """Return the answer of a POST that is repeated only if it was certainly not carried out."""
        return await self._ask(path, shape, is_write=True, method="POST", json=clean_values(body))

    async def _ask(self, path: str, shape: type[T], *, is_write: bool = False, **request: Any) -> T:
        """Make the request, again after a `Transient`, until the deadline."""
        settings = self._settings
        pace = self._paces[path if path in self._paces else ""]
        loop = asyncio.get_running_loop()
        deadline_s = loop.time() + settings.deadline_s
        made, is_waiting = 0, True
        failure: Transient | None = None
        try:
            async with asyncio.timeout_at(deadline_s):
                while True:
                    made, is_waiting = made + 1, True
                    await pace.acquire()
                    is_waiting = False
                    try:
                        response = await self._sent(path, request)
                        return TypeAdapter(shape).validate_python(self._read(settings, path, response))
                    except Transient as transient:
                        failure = transient
                    if is_write and failure.was_taken:
                        raise UpstreamFailed(settings, f"{path} may have been carried out: {failure}")
                    asked_s = failure.retry_after_s
                    pause_s = backoff_s(made, first_s=settings.backoff_s, max_s=_MAX_PAUSE_S, asked_s=asked_s)
                    # A pause that would pass the deadline is not begun: the reason is known now.
                    if made == settings.attempts or loop.time() + pause_s >= deadline_s:
                        wait = f"; it asks to wait {asked_s:g} s" if asked_s else ""
                        raise UpstreamFailed(settings, f"{failure}{wait}")
                    await asyncio.sleep(pause_s)
        except ValidationError as error:  # its values are not repeated
            faults = [
                f"{'.'.join(map(str, e['loc'])) or 'all'}: {e['msg']}" for e in error.errors()[:_MAX_FAULTS]
            ]
            raise UpstreamFailed(
                settings, f"its answer is not shaped as documented ({'; '.join(faults)})"
            ) from None
        except TimeoutError:
            calls, period_s = pace.max_rate, pace.time_period
            rate = f" (its rate here is {calls:g} calls in {period_s:g} s)" if is_waiting else ""
            why = f"{rate}; before that: {failure}" if failure else rate
            raise UpstreamFailed(
                settings, f"no answer within {settings.deadline_s:g} s{why}", code=REQUEST_TIMEOUT
            ) from None

    async def _sent(self, path: str, request: Mapping[str, Any]) -> httpx.Response:
        try:
            return await self._http.request(url=path, **request)
        except httpx.RequestError as error:
            was_taken = not isinstance(error, (httpx.ConnectError, httpx.ConnectTimeout))
            text = f"the connection failed ({type(error).__name__})"
            raise Transient(text, was_taken=was_taken) from None


def read_answer(settings: LiveSettings, path: str, response: httpx.Response) -> Any:
    """Read the answers of a service that says by the status whose fault it is."""
    status = response.status_code
    document = json_of(response)
    said = _message(document)
    told = f": {said}" if said else ""
    if status == 429 or status >= 500:
        what = "its rate limit is reached" if status == 429 else f"it answered {status}"
        raise Transient(what + told, retry_after_s=retry_after_s(response.headers))
    if status in _KEY_REFUSED:
        hint = _hint(said, settings)
        raise UpstreamFailed(settings, f"refused the key in {settings.key_name} ({status}){told}{hint}")
    if status in _QUOTA_USED_UP:
        raise UpstreamFailed(settings, f"{_QUOTA_USED_UP[status]} ({status}){told}")
    if status in _MODELS_FAULT and said:
        raise RefusedRequest(status, settings.redact(said))
    if status == 200 and said:
        raise UpstreamFailed(settings, f"answered with an error{told}")
    if status != 200:
        url = live_variable(settings.service, "BASE_URL")
        raise UpstreamFailed(settings, f"answered {status}{told}; is {url} the address of its API?")
    if document is None:
        raise Transient("its answer is not JSON")
    return document


@dataclass(frozen=True, kw_only=True)
class LiveService:
    """A service: its address, its documented rates by path ("": all others), the class of the tools, what its
    answers mean, and the parameter that takes the key (None: a bearer token)."""

    base_url: str
    rates: Mapping[str, Rate]
    tools: Callable[[ApiClient], Any]
    read: ReadAnswer = read_answer
    key_parameter: str | None = None

    def upstream(self, settings: LiveSettings) -> Upstream:
        """Return the upstream, whose clients share the rates and send the key to one host only: redirects are
        not followed."""
        rates = {path: settings.rate or rate for path, rate in self.rates.items()}
        paces = {path: AsyncLimiter(rate.calls, rate.period_s) for path, rate in rates.items()}
        bearer = {"Authorization": f"Bearer {settings.key}"}

        @asynccontextmanager
        async def opened() -> AsyncIterator[Any]:
            async with httpx.AsyncClient(
                base_url=settings.base_url,
                headers=bearer if self.key_parameter is None else None,
                params=None if self.key_parameter is None else {self.key_parameter: settings.key},
                timeout=_TIMEOUT,
                follow_redirects=False,
            ) as http:
                yield self.tools(ApiClient(settings, paces=paces, read=self.read, http=http))

        return Upstream(open=opened, is_live=True, redact=settings.redact)


def json_of(response: httpx.Response) -> Any:
    """Return the document, or None if the body is not one."""
    try:
        return json.loads(response.content)
    except (ValueError, RecursionError):
        return None


def _message(document: Any) -> str:
    """Return what an error document says; empty if it is not one. Massive answers {"status", "error" or
    "message"}, FMP {"Error Message"}, Tavily {"detail": {"error"}}."""
    if not isinstance(document, dict):
        return ""
    for name in ("Error Message", "error", "message", "detail"):
        said = document.get(name)
        if isinstance(said, dict):
            said = said.get("error")
        if said:
            text = said if isinstance(said, str) else json.dumps(said)
            return " ".join(text.split())[:_MAX_MESSAGE_CHARS]
    return ""


def _hint(said: str, settings: LiveSettings) -> str:
    if "Legacy Endpoint" not in said:
        return ""
    return f". {live_variable(settings.service, 'BASE_URL')} must be the address of the stable API"
