"""A server behind OAuth, with its authorization server: `python guarded.py`, which prints its port.

A token is good for USES requests, and a login for REFRESHES refreshes, each of which gives a new refresh
token and ends the old one. `GET /seen` says what was issued and done, for the tests alone.
"""

from __future__ import annotations

import os
import secrets
import socket
import time

import uvicorn
from mcp.server import MCPServer
from mcp.server.auth.provider import (
    AccessToken,
    AuthorizationCode,
    AuthorizationParams,
    OAuthAuthorizationServerProvider,
    RefreshToken,
    TokenError,
    construct_redirect_uri,
)
from mcp.server.auth.settings import AuthSettings, ClientRegistrationOptions
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken
from mcp.types import ToolAnnotations
from pydantic import AnyHttpUrl
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

USES = int(os.environ.get("USES", "1000000"))
REFRESHES = int(os.environ.get("REFRESHES", "1000000"))


class Logins(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.uses_left: dict[str, int] = {}
        self.scopes: dict[str, list[str]] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.issued: list[str] = []
        self.refreshes = 0
        self.refused = 0
        self.resources: list[str | None] = []

    async def get_client(self, client_id: str) -> OAuthClientInformationFull | None:
        return self.clients.get(client_id)

    async def register_client(self, client_info: OAuthClientInformationFull) -> None:
        self.clients[client_info.client_id] = client_info

    async def authorize(self, client: OAuthClientInformationFull, params: AuthorizationParams) -> str:
        code = self.secret("code")
        self.resources.append(params.resource)
        if os.environ.get("DENY"):
            refusal = {"error": "access_denied", "error_description": "she said no"}
            return construct_redirect_uri(str(params.redirect_uri), state=params.state, **refusal)
        self.codes[code] = AuthorizationCode(
            code=code,
            scopes=params.scopes or [],
            expires_at=time.time() + 60,
            client_id=client.client_id,
            code_challenge=params.code_challenge,
            redirect_uri=params.redirect_uri,
            redirect_uri_provided_explicitly=params.redirect_uri_provided_explicitly,
            resource=params.resource,
        )
        return construct_redirect_uri(str(params.redirect_uri), code=code, state=params.state)

    async def load_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: str
    ) -> AuthorizationCode | None:
        return self.codes.get(authorization_code)

    async def exchange_authorization_code(
        self, client: OAuthClientInformationFull, authorization_code: AuthorizationCode
    ) -> OAuthToken:
        del self.codes[authorization_code.code]
        return self.token(client.client_id, authorization_code.scopes)

    async def load_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: str
    ) -> RefreshToken | None:
        return self.refresh.get(refresh_token)

    async def exchange_refresh_token(
        self, client: OAuthClientInformationFull, refresh_token: RefreshToken, scopes: list[str]
    ) -> OAuthToken:
        self.refreshes += 1
        if self.refreshes > REFRESHES:
            raise TokenError("invalid_grant", "this login has ended")
        del self.refresh[refresh_token.token]
        return self.token(client.client_id, scopes)

    async def load_access_token(self, token: str) -> AccessToken | None:
        if self.uses_left.get(token, 0) <= 0:
            self.refused += 1
            return None
        self.uses_left[token] -= 1
        return AccessToken(token=token, client_id="any", scopes=self.scopes[token])

    def token(self, client_id: str, scopes: list[str]) -> OAuthToken:
        access, refresh = self.secret("access"), self.secret("refresh")
        self.uses_left[access], self.scopes[access] = USES, scopes
        self.refresh[refresh] = RefreshToken(token=refresh, client_id=client_id, scopes=scopes)
        return OAuthToken(access_token=access, expires_in=3600, refresh_token=refresh, scope=" ".join(scopes))

    def secret(self, kind: str) -> str:
        self.issued.append(f"{kind}-{secrets.token_urlsafe(24)}")
        return self.issued[-1]


logins = Logins()
effects: list[str] = []


def build(port: int) -> MCPServer[None]:
    base = f"http://127.0.0.1:{port}"
    scopes = ["shop"]
    server: MCPServer[None] = MCPServer(
        "guarded",
        log_level="ERROR",
        auth_server_provider=logins,
        auth=AuthSettings(
            issuer_url=AnyHttpUrl(base),
            resource_server_url=AnyHttpUrl(f"{base}/mcp"),
            required_scopes=scopes,
            validate_token_resource=False,
            client_registration_options=ClientRegistrationOptions(
                enabled=True, valid_scopes=["shop", "more"], default_scopes=scopes
            ),
        ),
    )

    @server.tool(annotations=ToolAnnotations(read_only_hint=True))
    async def look(key: str) -> str:
        return f"seen {key}"

    @server.tool()
    async def add(key: str) -> str:
        effects.append(key)
        return f"added {key}"

    @server.custom_route("/seen", methods=["GET"])
    async def seen(request: Request) -> Response:
        registered = [client.model_dump(mode="json") for client in logins.clients.values()]
        return JSONResponse({**{k: v for k, v in vars(logins).items() if k in SHOWN},
                             "effects": effects, "registered": registered})  # fmt: skip

    return server


SHOWN = {"issued", "refreshes", "refused", "resources"}


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", 0))
    port = listener.getsockname()[1]
    print(port, flush=True)
    app = build(port).streamable_http_app()
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
