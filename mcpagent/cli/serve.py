"""`mcpagent serve`: run one built-in server. Over stdio, nothing but MCP is on stdout."""

from __future__ import annotations

import socket
from enum import StrEnum
from typing import Annotated

import typer

from mcpagent.errors import UserError
from mcpagent.servers.names import UpstreamKind

app = typer.Typer(add_completion=False)


class Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"


@app.command()
def serve(
    name: Annotated[str, typer.Argument(help="polygon, fmp, tavily or slack.")],
    limited: Annotated[bool, typer.Option("--limited", help="Serve the small tool set.")] = False,
    upstream: Annotated[
        UpstreamKind, typer.Option(help="embedded answers from the data set that ships with mcpagent.")
    ] = UpstreamKind.EMBEDDED,
    transport: Annotated[Transport, typer.Option(help="http is streamable HTTP at /mcp.")] = Transport.STDIO,
    host: Annotated[str, typer.Option(help="Address for http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port for http.")] = 8000,
) -> None:
    """Run one of the built-in MCP servers.

    Example: mcpagent serve slack --limited
    """
    from mcpagent.servers.registry import build_server

    server = build_server(name, limited=limited, upstream=upstream)
    if transport is Transport.STDIO:
        server.run()
        return
    _require_free_port(host, port)
    typer.echo(f"{name} at http://{host}:{port}/mcp", err=True)
    server.run("streamable-http", host=host, port=port)


def _require_free_port(host: str, port: int) -> None:
    """Raises `UserError` where the address cannot be bound, which uvicorn would only log."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            raise UserError(
                f"cannot listen on {host}:{port}: {error.strerror or error}",
                where="--host/--port",
                remedy=f"use another port: --port {port + 1 if port < 65535 else 8000}",
            ) from error
