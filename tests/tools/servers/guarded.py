"""A server behind OAuth, with its authorization server: `python guarded.py`, which prints its port.

A token is good for USES requests, and a login for REFRESHES refreshes, each of which gives a new refresh
token and ends the old one. With DEVICE the metadata offers the device flow. `GET /seen` says what was issued
and done, for the tests alone.
"""

from __future__ import annotations

import json
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
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

USES = int(os.environ.get("USES", "1000000"))
REFRESHES = int(os.environ.get("REFRESHES", "1000000"))
LIFE_S = int(os.environ.get("LIFE_S", "3600"))
DEVICE_GRANT = "urn:ietf:params:oauth:grant-type:device_code"


class Logins(OAuthAuthorizationServerProvider[AuthorizationCode, RefreshToken, AccessToken]):
    def __init__(self) -> None:
        self.clients: dict[str, OAuthClientInformationFull] = {}
        self.codes: dict[str, AuthorizationCode] = {}
        self.uses_left: dict[str, int] = {}
        self.scopes: dict[str, list[str]] = {}
        self.refresh: dict[str, RefreshToken] = {}
        self.device: dict[str, int] = {}  # code -> polls until the person has typed it
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
        return OAuthToken(
            access_token=access, expires_in=LIFE_S, refresh_token=refresh, scope=" ".join(scopes)
        )

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

    @server.custom_route("/device", methods=["POST"])
    async def device(request: Request) -> Response:
        code = logins.secret("device")
        logins.device[code] = 2
        answer = {"device_code": code, "user_code": "WDJB-MJHT", "verification_uri": f"{base}/type"}
        return JSONResponse({**answer, "expires_in": 600, "interval": 0})

    return server


SHOWN = {"issued", "refreshes", "refused", "resources"}


class WithDevice:
    """Offers the device flow: in the metadata, and at the token endpoint."""

    def __init__(self, app: ASGIApp, port: int) -> None:
        self._app, self._port = app, port

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/token":
            request = Request(scope, receive)
            body = await request.body()

            async def again() -> dict[str, object]:
                return {"type": "http.request", "body": body, "more_body": False}

            form = await Request(scope, again).form()
            if form.get("grant_type") == DEVICE_GRANT:
                await self._poll(str(form["device_code"]), str(form["client_id"]))(scope, receive, send)
                return
            await self._app(scope, again, send)
            return
        if scope["type"] == "http" and scope["path"] == "/.well-known/oauth-authorization-server":
            base = f"http://127.0.0.1:{self._port}"
            await JSONResponse({
                "issuer": f"{base}/", "authorization_endpoint": f"{base}/authorize",
                "token_endpoint": f"{base}/token", "registration_endpoint": f"{base}/register",
                "device_authorization_endpoint": f"{base}/device",
                "response_types_supported": ["code"], "code_challenge_methods_supported": ["S256"],
                "grant_types_supported": ["authorization_code", "refresh_token", DEVICE_GRANT],
            })(scope, receive, send)  # fmt: skip
            return
        await self._app(scope, receive, send)

    def _poll(self, code: str, client_id: str) -> Response:
        if code not in logins.device:
            return JSONResponse({"error": "invalid_grant"}, status_code=400)
        if os.environ.get("DENY"):
            return JSONResponse({"error": "access_denied"}, status_code=400)
        logins.device[code] -= 1
        if logins.device[code] > 0:
            return JSONResponse({"error": "authorization_pending"}, status_code=400)
        return JSONResponse(logins.token(client_id, ["shop"]).model_dump(exclude_none=True))


if __name__ == "__main__":
    listener = socket.create_server(("127.0.0.1", int(os.environ.get("PORT", "0"))))
    port = listener.getsockname()[1]
    print(json.dumps(port), flush=True)
    app = build(port).streamable_http_app()
    if os.environ.get("DEVICE"):
        app.user_middleware.insert(0, Middleware(WithDevice, port=port))
    uvicorn.Server(uvicorn.Config(app, log_level="error")).run(sockets=[listener])
