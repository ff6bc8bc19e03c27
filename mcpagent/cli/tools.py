"""`mcpagent tools`: list and call the tools of MCP servers."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from mcpagent.errors import UserError
from mcpagent.tools.servers_config import ServerConfig

app = typer.Typer(add_completion=False, no_args_is_help=True, help="List and call the tools of MCP servers.")

_Servers = Annotated[
    Path | None, typer.Option("--servers", help="An mcp.json; without it, the built-in servers.")
]
_Json = Annotated[bool, typer.Option("--json", help="One JSON document on stdout.")]


@app.command("list")
def list_tools(servers: _Servers = None, as_json: _Json = False) -> None:
    """Start the servers and list their tools.

    Example: mcpagent tools list --servers mcp.json
    """
    from mcpagent.tools.pool import ToolPool

    configs = _configs(servers)

    async def collect() -> list[tuple[str, Any]]:
        async with ToolPool(configs) as pool:
            return list(pool.tools.items())

    tools = asyncio.run(collect())
    if as_json:
        typer.echo(json.dumps([spec.model_dump(mode="json") for _, spec in tools], ensure_ascii=False))
        return
    from rich.console import Console
    from rich.table import Column, Table

    # The name is what one copies into the next command: it is never broken.
    table = Table(Column("Tool", no_wrap=True), "Arguments", "Effect", "Description")
    for _, spec in tools:
        required = spec.input_schema.get("required", [])
        names = spec.input_schema.get("properties", {})
        arguments = ", ".join(name if name in required else f"[{name}]" for name in names)
        summary = spec.description.strip().partition("\n")[0]
        effect = "reads" if spec.annotations.read_only else "writes"
        table.add_row(spec.dotted, arguments.replace("[", "\\["), effect, summary.replace("[", "\\["))
    Console().print(table)


@app.command("call")
def call_tool(
    tool: Annotated[str, typer.Argument(metavar="SERVER.TOOL", help="As `mcpagent tools list` prints it.")],
    arguments: Annotated[str, typer.Argument(help="A JSON object.")] = "{}",
    servers: _Servers = None,
    as_json: _Json = False,
) -> None:
    """Call one tool. Exits 1 if the call fails.

    Example: mcpagent tools call tavily.tavily_search '{"query": "interest rates"}'
    """
    from mcpagent.core.tools import ToolCall, ToolResult
    from mcpagent.tools.pool import ToolPool

    parsed = _arguments(arguments)
    config, name = _place(tool, _configs(servers))

    async def call() -> ToolResult:
        async with ToolPool([config]) as pool, pool.session() as session:
            if name not in {spec.name for spec in pool.tools.values()}:
                raise _unknown("tool", tool, [spec.dotted for spec in pool.tools.values()])
            return await session.call(ToolCall(id="cli", server=config.name, tool=name, arguments=parsed))

    result = asyncio.run(call())
    if as_json:
        typer.echo(result.model_dump_json())
    else:
        typer.echo(result.content, err=result.is_error)
    if result.is_error:
        raise typer.Exit(1)


def _configs(servers: Path | None) -> Sequence[ServerConfig]:
    from mcpagent.tools.servers_config import builtin_servers, load_servers

    if servers is None:
        return builtin_servers()
    loaded = load_servers(servers)
    for note in loaded.notes:
        typer.echo(f"note: {servers}: {note}", err=True)
    return loaded.servers


def _arguments(text: str) -> dict[str, Any]:
    try:
        parsed = json.loads(text)
    except json.JSONDecodeError as error:
        raise UserError(
            f"the arguments are not valid JSON: {error.msg} at column {error.colno}",
            where=text,
            remedy="""Quote them for the shell: '{"name": "value"}'""",
        ) from error
    if not isinstance(parsed, dict):
        raise UserError(
            "the arguments must be a JSON object", where=text, remedy="""For example '{"name": 1}'"""
        )
    return parsed


def _place(tool: str, configs: Sequence[ServerConfig]) -> tuple[ServerConfig, str]:
    """The server and the tool that SERVER.TOOL names. Both may hold dots: the longest server name wins."""
    for config in sorted(configs, key=lambda c: len(c.name), reverse=True):
        if tool.startswith(f"{config.name}."):
            return config, tool.removeprefix(f"{config.name}.")
    server, dot, _ = tool.partition(".")
    if not dot:
        raise UserError(
            f"{tool!r} names no server", remedy="Write SERVER.TOOL; mcpagent tools list shows them."
        )
    raise _unknown("server", server, [config.name for config in configs])


def _unknown(kind: str, name: str, known: Sequence[str]) -> UserError:
    from mcpagent.tools.catalog import near_match

    near = near_match(name, known)
    return UserError(f"there is no {kind} {name!r}", remedy=near or f"There are: {', '.join(sorted(known))}")
