"""What servers over HTTP listen on and whom they answer, and the process of `mcpagent env serve`: serve until
Ctrl-C, keep each episode as it ends."""

from __future__ import annotations

import ipaddress
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import uvicorn
from mcp.server.transport_security import TransportSecurityMiddleware, TransportSecuritySettings
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from mcpagent.bridges.host import Host
from mcpagent.bridges.ors import EpisodeServer, ServeLimits
from mcpagent.config.environment import environment
from mcpagent.console import counted
from mcpagent.core.records import short_repr
from mcpagent.errors import UserError
from mcpagent.interrupts import Interrupted
from mcpagent.storage.locks import locked_file
from mcpagent.storage.trajectories import TrajectoryLog

_SHUTDOWN_S = 30.0  # for sessions that are closed at the end
_HERE = ("127.0.0.1", "localhost", "[::1]")
_REFUSALS = {  # by the status that the SDK gives: the header, and what it must be
    400: ("content-type", "a body must be application/json"),
    403: ("origin", f"a page must come from {', '.join(_HERE)}"),
    421: ("host", f"a request must be for {', '.join(_HERE)}"),
}


@contextmanager
def serve(
    server: EpisodeServer, host: Host, *, address: str = "127.0.0.1", port: int = 8000
) -> Iterator[int]:
    """Serve while the block runs, and then close the open sessions; gives the port (a free one if `port` is
    0). Raise UserError for a port that is taken, and for an address that other machines reach if no token
    is asked for."""
    if server.is_open and not _is_loopback(address):
        raise UserError(
            f"{address} can be reached from other machines, and no token is asked for",
            where="--host",
            remedy="set MCPAGENT_SERVE_TOKEN to a secret that clients send as a bearer token",
        )
    with listening(address, port) as sock:
        app = _HeaderGuard(server.app, rules=header_rules(address))
        config = uvicorn.Config(app, log_level="warning", access_log=False, timeout_keep_alive=60)
        running = uvicorn.Server(config)
        ended = host.tools.io.submit(running.serve(sockets=[sock]))
        try:
            yield sock.getsockname()[1]
        finally:
            running.should_exit = True
            ended.result(timeout=_SHUTDOWN_S)


def serve_until_interrupted(
    host: Host,
    *,
    address: str,
    port: int,
    limits: ServeLimits,
    out: Path | None,
    say: Callable[[str], None],
    note: Callable[[str], None],
) -> None:
    """Serve until Ctrl-C, with the token of the environment; each episode that ends is appended to `out`,
    which is replaced once the server listens. Raise UserError."""
    limits = replace(limits, token=environment().get("MCPAGENT_SERVE_TOKEN") or None)
    with ExitStack() as stack:
        kept = None if out is None else TrajectoryLog(out)
        server = EpisodeServer(host, limits, on_end=(lambda _: None) if kept is None else kept.append)
        if server.left_out:
            note(f"{server.left_out} tasks are not served: a user speaks again in them")
        if out is not None:
            stack.enter_context(locked_file(out))
        bound = stack.enter_context(serve(server, host, address=address, port=port))
        if kept is not None:
            kept.begin()
        try:
            say(url_of(address, bound))
            threading.Event().wait()
        except KeyboardInterrupt as interrupt:
            stack.close()
            if kept is None:
                raise KeyboardInterrupt("episodes are no longer served") from interrupt
            say(str(out))
            ended = f"{out} has {counted(len(kept), 'ended episode')}"
            # The same command again would be refused, or replace what it has just kept.
            raise Interrupted(ended, command="") from interrupt


def header_rules(address: str) -> TransportSecuritySettings:
    """Return which Host and Origin a server that listens on `address` answers. On the loopback only those of
    this machine: else a web page whose name resolves to 127.0.0.1 (DNS rebinding) would reach a person's
    tools. Elsewhere any: its names are not known here."""
    names = (*_HERE, f"[{address}]" if ":" in address else address)
    hosts = [f"{name}{port}" for name in names for port in ("", ":*")]
    return TransportSecuritySettings(
        enable_dns_rebinding_protection=_is_loopback(address),
        allowed_hosts=hosts,
        allowed_origins=[f"http://{host}" for host in hosts],
    )


class _HeaderGuard:
    """Holds requests against the SDK's own guard, which `mcpagent serve` has too, before anything reads
    them."""

    def __init__(self, app: ASGIApp, *, rules: TransportSecuritySettings) -> None:
        self._app, self._guard = app, TransportSecurityMiddleware(rules)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The ASGI application."""
        if scope["type"] == "http":
            headers = (request := Request(scope)).headers
            has_body = headers.get("content-length", "0") != "0" or "transfer-encoding" in headers
            refusal = await self._guard.validate_request(request, is_post=has_body)
            if refusal is not None:
                header, rule = _REFUSALS[refusal.status_code]
                detail = f"{rule}, not {short_repr(headers.get(header))} ({header})"
                await JSONResponse({"detail": detail}, status_code=refusal.status_code)(scope, receive, send)
                return
        await self._app(scope, receive, send)


def _is_loopback(address: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(address).is_loopback
    return address == "localhost"


def url_of(address: str, port: int) -> str:
    """Return the URL of a server that listens there; an IPv6 address stands in brackets (RFC 3986)."""
    return f"http://[{address}]:{port}" if ":" in address else f"http://{address}:{port}"


def listening(address: str, port: int) -> socket.socket:
    """Return a listening socket whose connections send at once. Raises UserError if there can be none.

    asyncio sets TCP_NODELAY only on a socket that was made with IPPROTO_TCP, which `create_server` does not
    do. Without it the end of a response waits for the client's delayed ACK: 40 ms. Connections inherit it."""
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        sock = socket.create_server((address, port), family=family, backlog=2048)
    except OSError as error:
        raise UserError(
            f"cannot listen on {address}:{port} ({error.strerror or error})",
            where="--host/--port",
            remedy="use --port 0 for any free port, and an address of this machine as --host",
        ) from error
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock
