"""`mcpagent tools`: list, call and measure the tools of MCP servers, and log in at servers."""

from __future__ import annotations

import json
import os
import sys
import textwrap
import webbrowser
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from mcpagent.cli.options import (
    ConfigOptions,
    Json,
    Servers,
    group_app,
    settings_of,
)
from mcpagent.console import Block, Console, Facts, counted
from mcpagent.core.tools import FailureKind, ToolSpec, catalog_hash, model_names, renamed
from mcpagent.errors import UserError
from mcpagent.servers.names import BUILTIN_NAMES, UpstreamKind
from mcpagent.servers.sandbox.contract import SandboxKind

if TYPE_CHECKING:
    from mcp.server import MCPServer

    from mcpagent.checks.servers import BenchOutcome, ListedServer
    from mcpagent.tools.servers_config import ServerConfig


_Tool = Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="As `mcpagent tools list` prints it.")]
_Arguments = Annotated[str, typer.Argument(metavar="JSON", help="The arguments, a JSON object.")]
_Timeout = Annotated[
    float | None,
    typer.Option("--timeout", min=0.001, metavar="SECONDS", help="Deadline of a call; overrides the file."),
]
_INDENT = " " * 12


@dataclass(frozen=True, kw_only=True)
class ServerOptions:
    """The servers that a command is about."""

    servers: Servers = None
    data: Annotated[
        Path | None,
        typer.Option(help="A dataset or its folder: the servers that it remembers (servers.yaml)."),
    ] = None

    def read(self, console: Console) -> Sequence[ServerConfig]:
        """Return the servers of an mcp.json, else those that the folder of the data remembers, else all
        built-in ones. Raises UserError."""
        from mcpagent.tools.setup import configured_servers

        is_named = self.servers is not None or self.data is not None
        settings = [] if is_named else settings_of({"tools.builtin": BUILTIN_NAMES})
        config = ConfigOptions(servers=self.servers, settings=settings)
        tools = config.config(console, data=self.data, has_data=False).tools
        return configured_servers(tools, on_note=console.note)


def list_tools(options: ServerOptions, as_json: Json = False) -> None:
    """Start the servers and list their tools. Exits 1 if a server does not start; the others are listed.

    Example: mcpagent tools list --servers mcp.json
    """
    from mcpagent.checks.servers import list_servers

    console = Console(is_json=as_json)
    configs = options.read(console)
    with console.progress("starting servers", total=len(configs)) as advance:
        listed = list_servers(
            configs,
            on_note=lambda _, text: console.note(text),
            on_listed=lambda server: advance(note=server.name),
        )
    specs = [spec for server in listed for spec in server.tools]
    shown = {name: spec.dotted for name, spec in model_names(specs).items()}
    prefixed = {dotted: name for name, dotted in shown.items() if not dotted.endswith(f".{name}")}
    of_api = {shown[name]: other for name, other in renamed(shown).items()}
    if as_json:
        console.print_json(specs)
        for who, names in (("a model", prefixed), ("a model behind an API", of_api)):
            for dotted, name in names.items():
                console.note(f"{who} sees {dotted} as {name}")
    else:
        arrows = {dotted: f" -> {name}" for dotted, name in prefixed.items()}
        arrows |= {dotted: f" => {name}" for dotted, name in of_api.items()}
        for server in listed:
            _print_server(server, arrows, console)
        if prefixed:
            console.say("-> is what a model sees if several tools share a name")
        if of_api:
            console.say("=> is what a model behind an API or a bridge sees, since APIs take no such name")
    failed = [server.error for server in listed if server.error is not None]
    started = f"{len(listed) - len(failed)} of " if failed else ""
    console.say(f"{counted(len(specs), 'tool')} of {started}{counted(len(listed), 'server')}")
    console.say(f"catalog {catalog_hash(specs)}")
    for error in failed:
        needs_login = error.remedy is not None and "tools login" in error.remedy
        console.complain(f"{error.message}\n  {error.remedy}" if needs_login else error.message)
    if failed:
        raise typer.Exit(1)


def call_tool(
    tool: _Tool,
    arguments: _Arguments = "{}",
    *,
    options: ServerOptions,
    timeout: _Timeout = None,
    as_json: Json = False,
) -> None:
    """Call one tool and print what a model would see. Exits 1 if the call fails.

    Example: mcpagent tools call tavily.tavily_search '{"query": "QTPH price target"}'

    Example: mcpagent tools call time.get_current_time '{"timezone": "UTC"}' --servers mcp.json --timeout 5
    """
    from mcpagent.checks.servers import call_tool

    console = Console(is_json=as_json)
    parsed = _read_arguments(arguments)
    configs = options.read(console)
    spec, result = call_tool(tool, parsed, configs, timeout_s=timeout, console=console)
    if as_json:
        console.print_json(result)
    else:
        console.show(result.content, is_error=result.is_error)
    if result.truncated_chars:
        console.note(f"{result.truncated_chars} characters are cut, as they would be for a model")
    if result.failure is FailureKind.INVALID_ARGUMENTS:
        console.note(f"the tool is {_signature(spec)}; mcpagent tools list --json shows its schema")
    if result.is_error:
        raise typer.Exit(1)


def log_in(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the file.")],
    *,
    options: ServerOptions,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the browser, or only print the address.")
    ] = True,
    scope: Annotated[
        str | None, typer.Option(metavar="SCOPE", help="Ask for this one, in place of the entry's.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Log in at a server that wants OAuth. The token is kept in a file that you alone can read, and used
    and renewed by every command.

    Example: mcpagent tools login shop --servers mcp.json
    """
    from mcpagent.checks.servers import log_in_at

    console = Console(is_json=as_json)
    outcome = log_in_at(
        server,
        options.read(console),
        scope=scope,
        show=lambda text: console.show(text, is_error=True),
        visit=webbrowser.open if open_browser and _has_browser() else lambda _: None,
    )
    until = "" if outcome["renewable"] else "; it cannot be renewed, so this has to be done again"
    console.print_blocks(outcome, [f"logged in at {outcome['url']}; kept in {outcome['kept_in']}{until}"])


def log_out(
    server: Annotated[str, typer.Argument(metavar="SERVER", help="Its name in the file.")],
    *,
    options: ServerOptions,
) -> None:
    """Forget the login at a server.

    Example: mcpagent tools logout shop --servers mcp.json
    """
    from mcpagent.checks.servers import log_out_at

    console = Console()
    had_login = log_out_at(server, options.read(console))
    console.say("the login is forgotten" if had_login else "there was no login")


def _has_browser() -> bool:
    """Return whether a browser on this machine can be shown to the person at the terminal."""
    if "SSH_CONNECTION" in os.environ:
        return False
    return sys.platform == "darwin" or "DISPLAY" in os.environ or "WAYLAND_DISPLAY" in os.environ


def bench_tool(
    tool: _Tool,
    arguments: _Arguments = "{}",
    calls: Annotated[int, typer.Option(min=1, help="How many calls.")] = 1000,
    concurrency: Annotated[int, typer.Option(min=1, help="How many of them at a time.")] = 8,
    allow_writes: Annotated[
        bool, typer.Option("--allow-writes", help="Call a tool that does not say that it is read-only.")
    ] = False,
    *,
    options: ServerOptions,
    timeout: _Timeout = None,
    as_json: Json = False,
) -> None:
    """Call one tool many times and measure it. Exits 1 if a call fails; Ctrl-C shows what was measured.

    Example: mcpagent tools bench polygon.polygon_get_market_status --calls 2000 --concurrency 32
    """
    from mcpagent.checks.servers import bench_tool

    console = Console(is_json=as_json)
    outcome = bench_tool(
        tool,
        _read_arguments(arguments),
        options.read(console),
        calls=calls,
        concurrency=concurrency,
        timeout_s=timeout,
        allow_writes=allow_writes,
        console=console,
    )
    console.print_blocks(outcome, _measured(outcome))
    if outcome.calls < outcome.planned:
        raise KeyboardInterrupt(f"{outcome.calls} of {outcome.planned} calls are measured")
    if outcome.failures:
        raise typer.Exit(1)


def _print_server(server: ListedServer, arrows: Mapping[str, str], console: Console) -> None:
    if server.error is not None:
        console.say(f"{server.name}: did not start ({server.start_s:.1f} s)\n")
        return
    console.say(f"{server.name}: {counted(len(server.tools), 'tool')}, started in {server.start_s:.1f} s")
    for spec in server.tools:
        effect = f"{spec.annotations.effect:<10}"
        line = f"  {effect}{_signature(spec)}{arrows.get(spec.dotted, '')}"
        console.say(line, indent=len(_INDENT) + 2)
        summary = spec.description.strip().partition("\n")[0]
        if summary:
            console.say(_INDENT + summary, indent=len(_INDENT) + 2)
    console.say("")


def _measured(outcome: BenchOutcome) -> Iterator[Block]:
    def shown(value: float | None, scale: float, unit: str) -> str:
        if value is None:
            return "none"
        scaled = value * scale
        return f"{scaled:,.0f} {unit}" if scaled >= 100 else f"{scaled:.3g} {unit}"

    p50, p95 = (shown(outcome.latency_s(quantile), 1e3, "ms") for quantile in (0.5, 0.95))
    failures = ", ".join(f"{n} {kind}" for kind, n in outcome.failures.most_common())
    of = "" if outcome.calls == outcome.planned else f" of {outcome.planned}"
    yield (
        f"{outcome.tool}: {outcome.calls}{of} calls, {outcome.concurrency} at a time, "
        f"in {outcome.wall_s:.2f} s after {outcome.start_s:.1f} s to start"
    )
    yield Facts(
        [
            ("  throughput", shown(outcome.calls_per_s, 1, "calls/s")),
            ("  latency", f"p50 {p50}, p95 {p95}"),
            ("  client CPU", f"{shown(outcome.cpu_s_per_call, 1e3, 'ms')} a call"),
            ("  failures", failures or "none"),
        ]
    )
    if outcome.first_failure is not None:
        yield f"  the first   {outcome.first_failure}"


def _signature(spec: ToolSpec) -> str:
    """Return `server.tool(needed, [optional])`."""
    required = spec.input_schema.get("required", [])
    names = spec.input_schema.get("properties", {})
    arguments = ", ".join(name if name in required else f"[{name}]" for name in names)
    return f"{spec.dotted}({arguments})"


def _read_arguments(argument: str) -> dict[str, Any]:
    """Return the JSON object that the argument holds. Raises UserError."""
    where = textwrap.shorten(argument, 60, placeholder=" ...")
    try:
        parsed = json.loads(argument)
    except json.JSONDecodeError as error:
        raise UserError(
            f"the arguments are not valid JSON: {error.msg} at line {error.lineno}, column {error.colno}",
            where=where,
            remedy="""Quote them for the shell: '{"name": "value"}'; of a file: "$(cat FILE)\"""",
        ) from error
    except (ValueError, RecursionError) as error:
        raise UserError(f"the arguments cannot be read: {error}", where=where) from error
    if not isinstance(parsed, dict):
        raise UserError(
            "the arguments must be a JSON object", where=where, remedy="""For example '{"name": 1}'"""
        )
    return parsed


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
    transport: Annotated[
        Literal["stdio", "http"], typer.Option(help="http is streamable HTTP at /mcp.")
    ] = "stdio",
    host: Annotated[str, typer.Option(help="Address for http.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for http; 0 takes any free one.")] = 8000,
) -> None:
    """Run one of the built-in MCP servers.

    Example: mcpagent serve slack --limited
    """
    from mcpagent.servers.registry import build_server

    server = build_server(
        name, limited=limited, upstream=upstream, allow_send=allow_send or (), sandbox=sandbox
    )
    if name == "python":
        from mcpagent.servers.sandbox.choose import choose_sandbox

        Console().note(f"python: {choose_sandbox(sandbox)}")
    if transport == "stdio":
        server.run()
    else:
        _serve_http(server, host=host, port=port)


def _serve_http(server: MCPServer[Any], *, host: str, port: int) -> None:
    """Serve until interrupted. The address is announced on stderr once clients may connect."""
    import uvicorn

    from mcpagent.bridges.serving import header_rules, listening, url_of

    with listening(host, port) as listener:
        Console().note(f"{server.name} at {url_of(host, listener.getsockname()[1])}/mcp")
        app = server.streamable_http_app(host=host, transport_security=header_rules(host))
        config = uvicorn.Config(app, log_level="warning")
        uvicorn.Server(config).run(sockets=[listener])


tools_app = group_app(
    "List, call and measure the tools of MCP servers; log in at them.",
    {
        "list": list_tools,
        "call": call_tool,
        "login": log_in,
        "logout": log_out,
        "bench": bench_tool,
    },
)
