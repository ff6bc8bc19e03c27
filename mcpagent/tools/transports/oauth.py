"""OAuth logins at servers over HTTP: kept where a person made them, sent with calls, and renewed in mid-run.

Not the SDK's provider, which makes the logins (`transports.login`): in a run it would hold one lock around
every whole request.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shlex
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit, urlunsplit

import httpx2
from filelock import AsyncFileLock, Timeout
from mcp import MCPError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth, extract_scope_from_www_auth
from mcp.shared.auth import (
    OAuthClientInformationFull,
    OAuthClientMetadata,
    OAuthToken,
)
from pydantic import AnyUrl, BaseModel

from mcpagent.config.environment import state_folder
from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError
from mcpagent.storage.atomic import atomic_file
from mcpagent.tools.servers_config import HttpServer
from mcpagent.tools.transports.exchange import LOOPBACK, http_client, read_body, send_request
from mcpagent.tools.wire import LOGIN_NEEDED, NOT_SENT

log = logging.getLogger(__name__)

_RENEWALS_MAX = 3  # for one request: a new token may have ended when its turn comes
_LOCK_WAIT_S = 30.0
_TOKEN_TIMEOUT_S = 20.0
_BODY_BYTES = 256 * 1024
_FORM = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/json"}


class Login(BaseModel):
    """The outcome of a login at a server: everything that it takes to use and to renew the token."""

    server: str  # its URL, without user, query and fragment
    token: OAuthToken
    client: OAuthClientInformationFull
    token_endpoint: str
    resource: str | None = None  # RFC 8707

    def learn(self) -> Login:
        """Let nothing that is written or printed hold what must be kept secret of it."""
        for value in (self.token.access_token, self.token.refresh_token, self.client.client_secret):
            if value:
                SECRETS.add(value, "OAUTH_TOKEN")
        return self


def login_url(url: str) -> str:
    """Return the part of a server's URL that its login is stored under."""
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2].lower()
    return urlunsplit((parts.scheme.lower(), host, parts.path, "", ""))


def _place(server: str) -> Path:
    return state_folder() / "logins" / f"{hashlib.sha256(server.encode()).hexdigest()[:32]}.json"


def stored_login(server: str) -> Login | None:
    """Return the login at the server of that URL; None if there is none, or none that can be read."""
    place = _place(login_url(server))
    try:
        return Login.model_validate_json(place.read_bytes()).learn()
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        log.warning("the login in %s cannot be read: %s", place, type(error).__name__)
        return None


def store_login(login: Login) -> Path:
    """Keep a login in a file that its user alone can read; return the file."""
    place = _place(login.server)
    place.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    place.parent.chmod(0o700)
    with atomic_file(place) as path:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(login.learn().model_dump_json(exclude_none=True))
    return place


def forget_login(server: str) -> bool:
    """Remove the login at the server of that URL; False if there was none."""
    place = _place(login_url(server))
    is_there = place.exists()
    place.unlink(missing_ok=True)
    return is_there


class Authorization(httpx2.Auth):
    """The bearer token of one server, for all its connections: as it was stored by a login, renewed if
    the server refuses it. Several processes may share a login."""

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._url = server.url
        self._has_own = any(name.lower() == "authorization" for name in server.headers)
        self._login = None if self._has_own else stored_login(self._url)
        self._lock = asyncio.Lock()

    async def async_auth_flow(
        self, request: httpx2.Request
    ) -> AsyncGenerator[httpx2.Request, httpx2.Response]:
        """Send the request with the token, and again with another one if it is refused: a server that answers
        401 did nothing else. Raises MCPError if only a person can log in."""
        renewals_left = _RENEWALS_MAX
        while True:
            token = None if self._login is None else self._login.token.access_token
            if token is not None:
                request.headers["authorization"] = f"Bearer {token}"
            response = yield request
            if response.status_code != 401 or not renewals_left or not await self._get_another(token):
                break
            renewals_left -= 1
        if (needed := self._refusal(response)) is not None:
            raise needed

    async def _get_another(self, refused: str | None) -> bool:
        """Get another token than the one that the server refused; False if there is none. Raises MCPError
        if only a person can."""
        if self._login is None:
            self._login = None if self._has_own else stored_login(self._url)  # made since
            return self._login is not None
        await self._renew(refused or "")
        return True

    def _refusal(self, response: httpx2.Response) -> MCPError | None:
        """The error for a 401 or 403 that a login would fix; None if it would not, and for anything else."""
        if self._has_own:
            return None
        scope = extract_scope_from_www_auth(response)
        is_step_up = extract_field_from_www_auth(response, "error") == "insufficient_scope"
        if response.status_code == 403 and is_step_up:
            held = (self._login.token.scope if self._login else None) or ""
            wider = " ".join(dict.fromkeys([*held.split(), *(scope or "").split()]))
            return self._needed(f"needs the scope {scope!r}" if scope else "needs a wider scope", scope=wider)
        is_bearer = response.headers.get("www-authenticate", "").lower().startswith("bearer")
        if response.status_code == 401 and (is_bearer or self._server.oauth or self._login):
            return self._needed("does not take the token of the login" if self._login else "wants a login")
        return None

    async def _renew(self, used: str) -> None:
        async with self._lock:
            login = self._login
            assert login is not None
            if login.token.access_token != used:
                return  # another call has done it
            async with _lock_of(login.server):
                self._login = await self._renewed(login, used)

    async def _renewed(self, login: Login, used: str) -> Login:
        stored = await asyncio.to_thread(stored_login, login.server)
        if stored is not None and stored.token.access_token != used:
            return stored  # another process has renewed it, or a person has logged in again
        if login.token.refresh_token is None:
            raise self._needed("gave a token that has expired, and no refresh token")
        token = await _ask_token_endpoint(
            login.token_endpoint,
            {
                "grant_type": "refresh_token",
                "refresh_token": login.token.refresh_token,
                "client_id": login.client.client_id,
                **({} if login.resource is None else {"resource": login.resource}),
            },
            login.client,
        )
        if isinstance(token, str):
            raise self._needed(f"has ended the login ({token})")
        kept = {"refresh_token": login.token.refresh_token, "scope": login.token.scope}
        token = token.model_copy(update={k: v for k, v in kept.items() if getattr(token, k) is None})
        renewed = login.model_copy(update={"token": token})
        await asyncio.to_thread(store_login, renewed)
        return renewed

    def _needed(self, why: str, *, scope: str | None = None) -> MCPError:
        server = self._server
        command = f"mcpagent tools login {server.name}" + (f" --servers {server.file}" if server.file else "")
        if scope:
            command += f" --scope {shlex.quote(scope)}"
        return MCPError(LOGIN_NEEDED, f"{urlsplit(self._url).hostname} {why}", {"remedy": command})


@dataclass
class KeptInMemory:
    """The storage of the SDK's provider, in memory: `store_login` keeps the whole of it at the end."""

    client: OAuthClientInformationFull | None = None
    tokens: OAuthToken | None = None

    async def get_tokens(self) -> OAuthToken | None:
        """Return the tokens."""
        return self.tokens

    async def set_tokens(self, tokens: OAuthToken) -> None:
        """Keep the tokens."""
        self.tokens = tokens

    async def get_client_info(self) -> OAuthClientInformationFull | None:
        """Return the client."""
        return self.client

    async def set_client_info(self, client_info: OAuthClientInformationFull) -> None:
        """Keep the client."""
        self.client = client_info


async def _ask_token_endpoint(
    endpoint: str, data: dict[str, str], client: OAuthClientInformationFull
) -> OAuthToken | str:
    """Return the token, or the error that the endpoint names, after one request with what authenticates the
    client. Raises MCPError if it cannot be reached, or cannot answer now."""
    check_transport(endpoint)
    host = urlsplit(endpoint).hostname
    metadata = OAuthClientMetadata(redirect_uris=[AnyUrl("http://127.0.0.1/callback")])
    context = OAuthContext(endpoint, metadata, KeptInMemory(), None, None, client_info=client)
    data, headers = context.prepare_token_auth(data, dict(_FORM))
    try:
        async with asyncio.timeout(_TOKEN_TIMEOUT_S), http_client(endpoint, {}) as web:
            response = await send_request(
                web, web.build_request("POST", endpoint, data=data, headers=headers)
            )
            body = await whole_body(response)
    except (httpx2.HTTPError, httpx2.StreamError, TimeoutError) as error:
        away = f"the login cannot be renewed: {host}: {type(error).__name__}"
        raise MCPError(NOT_SENT, away) from error
    status = response.status_code
    if status >= 500 or status == 429:
        raise MCPError(NOT_SENT, f"the login cannot be renewed: {host} failed (HTTP {status})")
    try:
        if status < 300:
            return OAuthToken.model_validate_json(body)
        document = json.loads(body)
    except ValueError:  # a ValidationError is one
        return "its answer is no token" if status < 300 else f"HTTP {status}"
    error = document.get("error") if isinstance(document, dict) else None
    return str(error)[:100] if error else f"HTTP {status}"


async def whole_body(response: httpx2.Response) -> bytes:
    """Return the body of an answer of an authorization server, which is then closed."""
    try:
        return await read_body(response, _BODY_BYTES)
    finally:
        await response.aclose()


@asynccontextmanager
async def _lock_of(server: str) -> AsyncGenerator[None]:
    """Let one process at a time renew the login at a server; if a lock is held too long, go on."""
    async with AsyncExitStack() as stack:
        with suppress(Timeout):
            lock = AsyncFileLock(_place(server).with_suffix(".lock"), timeout=_LOCK_WAIT_S)
            await stack.enter_async_context(lock)
        yield


def check_transport(url: str) -> None:
    """Raise UserError for an address to which a token would travel in the clear."""
    parts = urlsplit(url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        raise UserError("a token is sent over TLS only", where=login_url(url), remedy="Use an https URL.")
