"""`mcpagent runs`."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.cli.sampling import Json

if TYPE_CHECKING:
    from mcpagent.storage.runs import RunInfo

app = typer.Typer(add_completion=False, rich_markup_mode=None)
_DEFAULT = Path("outputs")


@app.command()
def runs(
    folder: Annotated[Path, typer.Argument(help="The folder that holds the runs.")] = _DEFAULT,
    as_json: Json = False,
) -> None:
    """List the training runs in a folder, the latest first: state, steps and success.

    A run is running, finished, interrupted (Ctrl-C, or its process was killed: --resume goes on) or failed.
    Success is the best one on the validation set, or that of the last step's episodes.

    Example: mcpagent runs outputs
    """
    from mcpagent.console import Console
    from mcpagent.storage.runs import list_runs

    console = Console(is_json=as_json)
    found = list_runs(folder) if folder.exists() or folder != _DEFAULT else []
    if as_json:
        console.print_json([run.as_json() for run in found])
        return
    if not found:
        console.say(f"no runs in {folder}")
        return
    rows = [(run.name, run.kind, run.state, _steps(run), _success(run), _started(run)) for run in found]
    console.table(
        f"Runs in {folder}", ("run", "kind", "state", "steps", "success", "started"), rows, is_text=True
    )
    if any(run.success_of == "training" for run in found):
        console.say("* of the last step's episodes; the run has no evaluation")
    for run in found:
        if run.state == "failed" and run.reason is not None:
            console.say(f"{run.name} failed: {run.reason}")
        if run.state == "running" and run.process is not None:
            console.say(f"{run.name} is written by pid {run.process.get('pid')} on {run.process.get('host')}")


def _steps(run: RunInfo) -> str:
    return str(run.steps) if run.total_steps is None else f"{run.steps}/{run.total_steps}"


def _success(run: RunInfo) -> str:
    return "" if run.success is None else f"{run.success:.0%}{'*' if run.success_of == 'training' else ''}"


def _started(run: RunInfo) -> str:
    if run.started_at is None:
        return ""
    return f"{datetime.fromisoformat(run.started_at).astimezone():%Y-%m-%d %H:%M}"
