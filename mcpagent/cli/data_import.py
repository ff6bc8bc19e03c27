"""`mcpagent data import`: the tasks of a public benchmark, from the user's own copy of it."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Literal

import typer

from mcpagent.cli.sampling import Json, Overwrite


class Category(StrEnum):
    BASE = "base"
    MISS_FUNC = "miss_func"
    MISS_PARAM = "miss_param"
    LONG_CONTEXT = "long_context"


def import_(
    source: Annotated[
        Literal["bfcl"], typer.Argument(help="bfcl: the multi-turn tasks of BFCL v3.", show_default=False)
    ],
    package: Annotated[
        Path,
        typer.Option(
            help="The folder that holds bfcl_eval: an unzipped wheel of bfcl-eval, or site-packages.",
            show_default=False,
        ),
    ],
    out: Annotated[
        Path, typer.Option(help="Folder for the tasks, an mcp.json and a config.", show_default=False)
    ],
    category: Annotated[
        list[Category] | None,
        typer.Option(metavar="|".join(Category), help="One category; repeat it for more. Default: all four."),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Make tasks of a benchmark, with its backends as MCP servers. The config brings both together.

    Example: mcpagent data import bfcl --package bfcl --out data/bfcl --category base

    Example: mcpagent eval checkpoint RUN --config data/bfcl/bfcl.yaml
    """
    from mcpagent.console import Console
    from mcpagent.synth.bfcl.files import import_bfcl

    console = Console(is_json=as_json)
    imported = import_bfcl(package, out, categories=list(category or Category), overwrite=overwrite)
    if as_json:
        console.print_json({"source": source, **imported.as_json()})
        return
    rows = [
        (name, count, imported.calls[name], str(imported.paths[name]))
        for name, count in imported.tasks.items()
    ]
    console.table(f"{source}, from {package}", ("Category", "Tasks", "Calls", "File"), rows)
    console.say(f"servers   {imported.servers}")
    console.say(f"settings  {imported.config}: pass it as --config")
