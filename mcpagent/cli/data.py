"""`mcpagent data`: validate a dataset, or count what is in it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.console import Console
    from mcpagent.core.tools import ToolSpec

app = typer.Typer(
    add_completion=False, no_args_is_help=True, help="Validate a dataset, or show what is in it."
)

_File = Annotated[Path, typer.Argument(help=".jsonl or .json, also .gz and .zst.", show_default=False)]
_Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]


@app.command()
def validate(
    file: _File,
    servers: Annotated[
        Path | None,
        typer.Option(help="An mcp.json whose tools the tasks may use. Default: the built-in servers."),
    ] = None,
    catalog: Annotated[bool, typer.Option(help="Check tool names against the servers.")] = True,
    as_json: _Json = False,
) -> None:
    """Check every record: JSON, schema, compact prompt, plan and checks, tools, ids. Exits 2 if any is wrong.

    Example: mcpagent data validate data/processed/train.jsonl
    """
    from mcpagent.console import Console
    from mcpagent.synth.validate import validate_dataset

    console = Console(is_json=as_json)
    tools = asyncio.run(_tools(servers, console)) if catalog else None
    report = validate_dataset(file, catalog=tools)
    for finding in report.findings:
        console.note(f"{finding.where}: {finding.code}: {finding.message}")
    if report.rejects.total() > len(report.findings):
        console.note(f"... and {report.rejects.total() - len(report.findings)} more")
    if as_json:
        console.print_json(report.as_json())
    else:
        console.say(f"{file}: {report.valid} of {report.records} records are valid")
        for code, count in report.rejects.items():
            console.say(f"  {code}: {count}")
    if report.valid < report.records:
        raise typer.Exit(UserError.exit_code)


@app.command()
def stats(file: _File, as_json: _Json = False) -> None:
    """Count the records by class, complexity, server, tool, template and split.

    Example: mcpagent data stats data/processed/train.jsonl --json
    """
    from mcpagent.console import Console
    from mcpagent.storage.jsonl import read_tasks
    from mcpagent.synth.describe import count_tasks

    console = Console(is_json=as_json)
    counts = {"path": str(file), **count_tasks(read_tasks(file)).as_json()}
    if as_json:
        console.print_json(counts)
        return
    rows = [
        (f"{name.removeprefix('by_').replace('_', ' ')}: {key}", count)
        for name, group in counts.items()
        if isinstance(group, dict)
        for key, count in group.items()
    ]
    console.table(f"{file}: {counts['records']} records", ("", "Records"), rows)


async def _tools(servers: Path | None, console: Console) -> list[ToolSpec]:
    from mcpagent.cli.chosen_servers import chosen_servers
    from mcpagent.tools.pool import ToolPool

    # The full set of the built-in servers: it contains the limited one under the same names.
    async with ToolPool(chosen_servers(servers, console=console, limited=False)) as pool:
        return list(pool.tools.values())
