"""`mcpagent serve`: run one built-in server. Over stdio, nothing but MCP is on stdout."""

from __future__ import annotations

import socket
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from mcpagent.errors import UserError
from mcpagent.servers.names import UpstreamKind
from mcpagent.servers.sandbox.kinds import SandboxKind

if TYPE_CHECKING:
    from mcp.server import MCPServer

app = typer.Typer(add_completion=False, rich_markup_mode=None)


class Transport(StrEnum):
    STDIO = "stdio"
    HTTP = "http"


@app.command()
def serve(
    name: Annotated[str, typer.Argument(help="polygon, fmp, tavily, slack or python.")],
    limited: Annotated[bool, typer.Option("--limited", help="Serve the small tool set.")] = False,
    upstream: Annotated[
        UpstreamKind,
        typer.Option(
            help="embedded: the data set that ships with mcpagent. live: the real service, with your own key "
            "from the environment or .env."
        ),
    ] = UpstreamKind.EMBEDDED,
    allow_send: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CHANNEL",
            help="A channel that the live slack may write to; repeat it for more. Default: none.",
            show_default=False,
        ),
    ] = None,
    sandbox: Annotated[
        SandboxKind, typer.Option(help="Where python runs code; auto takes the first that works here.")
    ] = SandboxKind.AUTO,
    transport: Annotated[Transport, typer.Option(help="http is streamable HTTP at /mcp.")] = Transport.STDIO,
    host: Annotated[str, typer.Option(help="Address for http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for http; 0 takes any free one.")] = 8000,
) -> None:
    """Run one of the built-in MCP servers.

    Example: mcpagent serve slack --limited
    """
    from mcpagent.console import Console
    from mcpagent.servers.registry import build_server

    server = build_server(
        name, limited=limited, upstream=upstream, allow_send=allow_send or (), sandbox=sandbox
    )
    if name == "python":
        from mcpagent.servers.sandbox.choose import choose_sandbox

        Console().note(f"python: {choose_sandbox(sandbox)}")
    if transport is Transport.STDIO:
        server.run()
    else:
        _serve_http(server, host=host, port=port)


def _serve_http(server: MCPServer[Any], *, host: str, port: int) -> None:
    """Serve until interrupted. The address is announced on stderr once clients may connect."""
    import uvicorn

    from mcpagent.console import Console

    with _listen(host, port) as listener:
        shown_host = f"[{host}]" if ":" in host else host
        Console().note(f"{server.name} at http://{shown_host}:{listener.getsockname()[1]}/mcp")
        config = uvicorn.Config(server.streamable_http_app(host=host), log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A listening socket. Raises `UserError` if there can be none."""
    try:
        return socket.create_server((host, port), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
    except OSError as error:
        raise UserError(
            f"cannot listen on {host}:{port} ({error.strerror or error})",
            where="--host/--port",
            remedy="use --port 0 for any free port, and an address of this machine as --host",
        ) from error
