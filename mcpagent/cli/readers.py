"""Which tools only read: as they say, as a person says when asked once, or as they look."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from mcpagent.config.dataset_servers import read_dataset_servers
from mcpagent.console import Console, counted
from mcpagent.core.tools import ToolSpec
from mcpagent.errors import UserError

if TYPE_CHECKING:
    from mcpagent.config.schema import ToolsConfig

YesReadOnly = Annotated[
    bool,
    typer.Option(
        "--yes-read-only",
        help="Do not ask which tools only read: take those that say nothing of it and look safe. One that "
        "executes a language (SQL, GraphQL, code) never does.",
    ),
]


def with_readers(tools: ToolsConfig, console: Console, *, takes_guess: bool, folder: Path) -> ToolsConfig:
    """Return the settings with the tools that only read though they do not say so: those that are named, else
    those that a dataset in `folder` remembers, else the chosen ones; with `takes_guess` those that look safe,
    too. Raises UserError if no tool is known to read then."""
    from mcpagent.tools.setup import open_tools

    if tools.read_only and not takes_guess:
        return tools
    kept = read_dataset_servers(folder) if folder.is_dir() else None
    names = () if kept is None else tuple(kept.settings.get(("tools", "read_only"), ()))
    if not names:
        with open_tools(tools, on_note=console.note) as opened:
            names = chosen_readers(list(opened.pool.tools.values()), console, takes_guess=takes_guess)
    return tools.model_copy(update={"read_only": tuple(dict.fromkeys((*tools.read_only, *names)))})


def chosen_readers(specs: Sequence[ToolSpec], console: Console, *, takes_guess: bool) -> tuple[str, ...]:
    """Return the unmarked tools that only read: those that look safe with `takes_guess`, those that a person
    at the terminal names, else none. Raises UserError if no tool is known to read then."""
    from mcpagent.tools.words import seems_to_read

    unmarked = [spec for spec in specs if spec.annotations.effect == "unmarked"]
    safe = tuple(spec.dotted for spec in unmarked if seems_to_read(spec, specs))
    is_asked = console.is_terminal and sys.stdin.isatty() and not console.is_json
    readers = safe if takes_guess else _asked(unmarked, safe, console) if is_asked and unmarked else ()
    if unmarked and not readers and not any(spec.annotations.read_only for spec in specs):
        option = "--yes-read-only" if safe and not takes_guess else "--read-only SERVER.TOOL,..."
        names = ", ".join(safe or (spec.dotted for spec in unmarked))
        looks = f"{len(safe)} of them look safe: {names}" if safe else f"none of them looks safe: {names}"
        raise UserError(
            f"{len(unmarked)} of {counted(len(specs), 'tool')} do not say whether they only read, and no "
            f"other one does\n  {looks}",
            remedy=f"{shlex.join(['mcpagent', *sys.argv[1:]])} {option}",
        )
    return readers


def _asked(unmarked: Sequence[ToolSpec], safe: tuple[str, ...], console: Console) -> tuple[str, ...]:
    """Return which tools only read, as the person at the terminal says."""
    console.note("These tools do not say whether they only read. Ticked are those that look safe:")
    for spec in unmarked:
        console.note(f"  [{'x' if spec.dotted in safe else ' '}] {spec.dotted}")
        for line in spec.description.strip().splitlines():
            console.note(f"        {line.strip()}")
    answer = typer.prompt(
        "Enter for the ticked ones, or the names of those that only read, or none",
        default="",
        show_default=False,
        err=True,
    )
    named = tuple(name.strip() for name in answer.split(",") if name.strip())
    return () if named == ("none",) else named or safe
