"""`mcpagent export`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from mcpagent.cli.sampling import Json
from mcpagent.console import Console

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def export(
    checkpoint: Annotated[
        Path,
        typer.Argument(
            help="A checkpoint folder, or a run folder: its best one; RUN@latest and RUN@STEP name others.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option("--out", help="The new folder.", show_default=False)],
    merge: Annotated[
        bool, typer.Option("--merge", help="Add LoRA adapters to their base: a model that needs no PEFT.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Write a checkpoint as a plain Hugging Face folder with a model card; without --merge, LoRA adapters
    stay adapters.

    Example: mcpagent export outputs/mine --merge --out model
    """
    from mcpagent.workflows.export import export as export_checkpoint

    console = Console(is_json=as_json)
    done = export_checkpoint(checkpoint, out, merge=merge)
    if as_json:
        console.print_json(done.as_json())
        return
    console.say(f"{done.kind:<10}  {done.out}")
    console.say(f"checkpoint  {done.checkpoint}{f' ({done.why})' if done.why else ''}")
    console.say(f"card        {done.out / 'README.md'}")
    console.say(f"next        mcpagent eval checkpoint {done.out} --data {done.data}")
