"""Benchmarks of others: `mcpagent data import` makes their tasks, `mcpagent eval benchmark` plays them."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from mcpagent.cli.options import BaseUrl, ConfigOptions, Json, Overwrite, ToolFormat, with_options
from mcpagent.console import METRIC_COLUMNS, Console, metric_row

if TYPE_CHECKING:
    from mcpagent.run.benchmark import BoardResult


class Category(StrEnum):
    """The four kinds of BFCL's multi-turn tasks."""

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
    from mcpagent.synth.bfcl import import_bfcl

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


_Categories = Annotated[
    list[Category] | None,
    typer.Option(
        "--category",
        metavar="|".join(Category),
        help="One category; repeat it for more. Default: all four, which the board's number needs.",
    ),
]


@with_options
def benchmark(
    name: Annotated[
        Literal["bfcl-multi-turn"],
        typer.Argument(help="bfcl-multi-turn: the 800 multi-turn tasks of BFCL.", show_default=False),
    ],
    model: Annotated[
        str,
        typer.Argument(
            help="A checkpoint or run folder, a hub id, openai:NAME, gold or empty.", show_default=False
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(help="Folder for tasks, episodes, evaluation.json and board.json.", show_default=False),
    ],
    package: Annotated[
        Path | None,
        typer.Option(help="The folder that holds bfcl_eval. Default: the package that is installed here."),
    ] = None,
    category: _Categories = None,
    base_url: BaseUrl = None,
    tool_format: ToolFormat = None,
    *,
    options: ConfigOptions,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Play a benchmark of others with your own copy of its package, and give the number as its board does.

    An episode is right where BFCL's own checker says so; one that cannot be played, or takes more than 20
    steps in a user turn, is wrong. --max-tasks counts by category.

    Example: mcpagent eval benchmark bfcl-multi-turn outputs/mine --package bfcl --out outputs/bfcl
    """
    from mcpagent.run.benchmark import find_package, play_board
    from mcpagent.storage.locks import locked_file

    console = Console(is_json=as_json)
    copy = find_package(package)
    options = replace(options, tool_format=tool_format, base_url=base_url, default_temperature=0.0)
    max_tasks, options = options.max_tasks, replace(options, max_tasks=None)
    with locked_file(out / "board.json"):
        result = play_board(
            lambda data: options.config(console, policy=model, data=data),
            package=copy,
            model=model,
            categories=list(category or Category),
            folder=out,
            max_tasks=max_tasks,
            overwrite=overwrite,
            console=console,
        )
    console.print_result(result, _print_board)
    if result.outcome.failure is not None:
        console.note(f"no episode could be played; the first error: {result.outcome.failure}")
        raise typer.Exit(1)


def _print_board(result: BoardResult, console: Console) -> None:
    accuracies = {name: score.accuracy for name, score in result.categories.items()}
    if result.overall is not None:
        accuracies["overall"] = result.overall
    rows = [metric_row(name, accuracy, is_rate=True) for name, accuracy in accuracies.items()]
    console.table("BFCL multi-turn", METRIC_COLUMNS, rows)
    if result.overall is None:
        console.say("overall   none: the board's number is the mean of all four categories")
    reasons: Counter[str] = Counter()
    for score in result.categories.values():
        reasons.update(score.errors)
    for reason, count in reasons.most_common():
        console.say(f"wrong     {count} {reason}")
    total = result.agreed + len(result.differing)
    console.say(f"agreement task success is BFCL's verdict in {result.agreed} of {total} episodes")
    for task, reason in list(result.differing.items())[:5]:
        console.say(f"          {task}: {reason}")
    if result.unscored:
        console.say(f"unscored  {result.unscored} episodes could not be played; they count as wrong")
    if result.unparsed:
        console.say(f"unparsed  in {result.unparsed} episodes a call did not parse, and was tried again")
    console.say(f"written   {result.path}")
