"""A login at a server over HTTP, made by a person in a browser.

The SDK's provider finds the authorization server, registers, and proves the code (PKCE).
"""

from __future__ import annotations

import asyncio
import html
import logging
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from urllib.parse import parse_qs, urlsplit

import httpx2
from mcp.client.auth import OAuthClientProvider, OAuthFlowError, OAuthRegistrationError
from mcp.client.auth.oauth2 import OAuthContext
from mcp.client.auth.utils import extract_field_from_www_auth
from mcp.shared.auth import (
    AuthorizationCodeResult,
    OAuthClientInformationFull,
    OAuthClientMetadata,
)
from mcp_types import LATEST_PROTOCOL_VERSION
from pydantic import AnyUrl, ValidationError

from mcpagent.core.redact import SECRETS
from mcpagent.errors import UserError
from mcpagent.tools.servers_config import HttpServer, OAuthClient
from mcpagent.tools.transports.exchange import http_client, send_request
from mcpagent.tools.transports.oauth import (
    KeptInMemory,
    Login,
    check_transport,
    login_url,
    whole_body,
)

logging.getLogger("mcp.client.auth").setLevel(logging.CRITICAL)  # it logs tracebacks of what is raised anyhow

_LOGIN_TIMEOUT_S = 300.0


async def log_in(
    server: HttpServer, *, scope: str | None, show: Callable[[str], None], visit: Callable[[str], object]
) -> Login:
    """Have a person log in at a server: `show` prints the address, `visit` may open a browser. `scope`, of
    words separated by spaces, is asked for in place of that of the entry or the server.

    Raises UserError if that fails.
    """
    url = server.url
    check_transport(url)
    try:
        async with asyncio.timeout(_LOGIN_TIMEOUT_S):
            return await _Flow(server, scope, show, visit).run()
    except TimeoutError:
        problem, remedy = f"no login came within {_LOGIN_TIMEOUT_S:g} s", "Run the command again."
    except OAuthRegistrationError:
        problem = "its authorization server registers no clients by itself, or asks for no login at all"
        remedy = 'Register one there, and name it: "oauth": {"clientId": "...", "callbackPort": 8765}'
    except (OAuthFlowError, ValidationError, ValueError) as error:
        problem, remedy = f"the login failed: {str(error).partition(chr(10))[0][:300]}", "Try it again."
    except (httpx2.HTTPError, httpx2.StreamError) as error:
        problem, remedy = f"cannot be reached: {error}", "Check the server's url, and that it runs there."
    raise UserError(problem, where=f"server {server.name!r}", remedy=remedy)


@dataclass
class _Flow:
    """One login. The provider's requests are sent from here, so that a person can log in at a server which
    asks for a login only once a tool is called."""

    server: HttpServer
    scope: str | None
    show: Callable[[str], None]
    visit: Callable[[str], object]

    async def run(self) -> Login:
        entry = self.server.oauth or OAuthClient()
        url = self.server.url
        async with _Redirect.listen(entry.callback_port) as redirect, http_client(url, {}) as web:
            provider = self._provider(url, entry, redirect)
            request = _first_request(web, self.server)
            flow = provider.async_auth_flow(request)
            try:
                await anext(flow)
                response = await self._challenge(web, request, entry)
                while (outgoing := await flow.asend(response)) is not request:
                    check_transport(str(outgoing.url))
                    response = await _exchanged(web, outgoing)
            finally:
                await flow.aclose()
        context = provider.context
        token = context.current_tokens
        assert token is not None and context.client_info is not None
        has_resource = context.should_include_resource_param()
        return Login(
            server=login_url(url),
            token=token,
            client=context.client_info,
            token_endpoint=_token_endpoint(context),
            resource=context.get_resource_url() if has_resource else None,
        ).learn()

    def _provider(self, url: str, entry: OAuthClient, redirect: _Redirect) -> OAuthClientProvider:
        client = None
        if entry.client_id is not None:
            client = OAuthClientInformationFull(
                client_id=entry.client_id,
                client_secret=entry.client_secret,
                redirect_uris=[AnyUrl(redirect.uri)],
                token_endpoint_auth_method="client_secret_post" if entry.client_secret else "none",
            )

        async def visit(address: str) -> None:
            metadata = provider.context.oauth_metadata  # which names the ways that its token endpoint takes
            ways = None if metadata is None else metadata.token_endpoint_auth_methods_supported
            if client is not None and client.client_secret and ways and "client_secret_post" not in ways:
                client.token_endpoint_auth_method = "client_secret_basic"
            redirect.state = parse_qs(urlsplit(address).query)["state"][0]
            self.show(f"Log in with a browser on this machine:\n{address}")
            self.visit(address)

        provider = OAuthClientProvider(
            url,
            OAuthClientMetadata(
                redirect_uris=[AnyUrl(redirect.uri)],
                client_name="mcpagent",
                token_endpoint_auth_method="none",
            ),
            KeptInMemory(client),
            visit,
            redirect.wait,
        )
        return provider

    async def _challenge(
        self, web: httpx2.AsyncClient, request: httpx2.Request, entry: OAuthClient
    ) -> httpx2.Response:
        """The server's 401, or one in its place; a scope that was chosen is the one that it asks for."""
        sent = await send_request(web, request)
        await whole_body(sent)
        header = sent.headers.get("www-authenticate", "") if sent.status_code == 401 else ""
        if scope := self.scope or entry.scope:
            metadata = extract_field_from_www_auth(sent, "resource_metadata") if header else None
            header = f'Bearer scope="{scope}"' + (f', resource_metadata="{metadata}"' if metadata else "")
        return httpx2.Response(401, headers={"www-authenticate": header} if header else {}, request=request)


def _token_endpoint(context: OAuthContext) -> str:
    if context.oauth_metadata is not None:
        return str(context.oauth_metadata.token_endpoint)
    return f"{context.get_authorization_base_url(context.server_url)}/token"


async def _exchanged(web: httpx2.AsyncClient, outgoing: httpx2.Request) -> httpx2.Response:
    sent = await web.send(outgoing, stream=True, follow_redirects=False)
    body = await whole_body(sent)
    headers = {k: v for k, v in sent.headers.items() if k.lower() != "content-encoding"}
    return httpx2.Response(sent.status_code, headers=headers, content=body, request=outgoing)


def _first_request(web: httpx2.AsyncClient, server: HttpServer) -> httpx2.Request:
    """Return what a server answers with 401 if it wants a login."""
    if server.is_sse:
        return web.build_request("GET", server.url, headers={"accept": "text/event-stream"})
    params = {
        "protocolVersion": LATEST_PROTOCOL_VERSION,
        "capabilities": {},
        "clientInfo": {"name": "mcpagent", "version": "0"},
    }
    message = {"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params}
    accepted = {"accept": "application/json, text/event-stream"}
    return web.build_request("POST", server.url, headers=accepted, json=message)


class _Redirect:
    """A listener on the loopback that the authorization server sends the browser back to."""

    def __init__(self, host: str) -> None:
        self.uri = ""
        self.state = ""  # of the request under way; what says another is not ours
        self._host = host
        self._result: asyncio.Future[dict[str, str]] = asyncio.get_running_loop().create_future()

    @classmethod
    @asynccontextmanager
    async def listen(cls, port: int | None) -> AsyncGenerator[_Redirect]:
        """A fixed port is one that a registered client has to name, and those are registered as localhost."""
        redirect = cls("127.0.0.1" if port is None else "localhost")
        try:
            listener = await asyncio.start_server(redirect._answer, "127.0.0.1", port or 0)
        except OSError as error:
            raise UserError(f"cannot listen on the port {port}: {error.strerror}", where="oauth") from error
        async with listener:
            redirect.uri = f"http://{redirect._host}:{listener.sockets[0].getsockname()[1]}/callback"
            yield redirect

    async def wait(self) -> AuthorizationCodeResult:
        """Return what the browser brings back. Raises OAuthFlowError if it was refused."""
        result = await self._result
        if "code" not in result:
            why = result.get("error_description") or result.get("error", "no code")
            raise OAuthFlowError(f"the authorization server says {why!r}")
        SECRETS.add(result["code"], "OAUTH_TOKEN")
        return AuthorizationCodeResult(code=result["code"], state=result.get("state"), iss=result.get("iss"))

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            target = (await reader.readuntil(b"\r\n\r\n")).split(b" ")[1].decode("ascii")
            query = {key: values[0] for key, values in parse_qs(urlsplit(target).query).items()}
            is_ours = urlsplit(target).path == "/callback" and query.get("state") == self.state != ""
            text = "You are logged in; this page may be closed." if "code" in query else "It was refused."
            text = text if is_ours else "This is not the page that you are looking for."
            page = f"<!doctype html><title>mcpagent</title><p>{html.escape(text)}".encode()
            status = "200 OK" if is_ours else "404 Not Found"
            head = f"HTTP/1.1 {status}\r\nContent-Type: text/html\r\nContent-Length: {len(page)}\r\n"
            writer.write(head.encode() + b"Connection: close\r\n\r\n" + page)
            await writer.drain()
            if is_ours and not self._result.done():
                self._result.set_result(query)
        writer.close()
