"""`mcpagent report RUN`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from mcpagent.cli.sampling import Json, Overwrite, out_file, refuse_existing

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def report(
    run: Annotated[Path, typer.Argument(help="Run folder, such as outputs/quickstart.", show_default=False)],
    out: Annotated[
        Path | None,
        typer.Option(
            callback=out_file("report.html"),
            help="A file for the page, or a folder. Default: report.html in the run, written anew each time.",
        ),
    ] = None,
    overwrite: Overwrite = False,
    as_json: Json = False,
) -> None:
    """Write the self-contained HTML report of a run and print its path.

    Example: mcpagent report outputs/quickstart
    """
    from mcpagent.console import Console
    from mcpagent.storage.packages import require

    if out is not None:
        refuse_existing(out, overwrite=overwrite)
    require("report", use="the report")
    from mcpagent.evaluate.report import write_page
    from mcpagent.evaluate.report_run import read_run
    from mcpagent.evaluate.report_verdicts import judge

    console = Console(is_json=as_json)
    view = read_run(run)
    path = write_page(view, out)
    if as_json:
        verdicts = [dataclasses.asdict(v) for v in judge(view)]
        console.print_json({"report": str(path), "verdicts": verdicts})
    else:
        console.say(str(path))
