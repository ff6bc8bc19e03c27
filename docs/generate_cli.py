"""Write docs/cli.md from the help of every command: `make docs`. `--check` says whether it is current."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import typer.main

from mcpagent.cli.main import COMMANDS, load_command

PAGE = Path(__file__).with_name("cli.md")
_WIDTH = 10_000  # of a line, so that none is broken

_HEAD = """\
# Command line

Written by `make docs` from `--help`; do not edit.

Every command that prints a result takes `--json`: one JSON document on stdout, everything else on stderr.
Exit codes: 0 good, 1 the run or a check failed, 2 you have something to fix (the message says what), 130
interrupted, with a last line on stderr that says what is kept and which command goes on.
`--help` lists the options of a command, what each does, and its default.
"""


def reference() -> str:
    """Return the whole page: the same text on every terminal."""
    helps = [each for name in COMMANDS for each in _helps(load_command(name), f"mcpagent {name}")]
    return "\n".join([_HEAD, *(_section(*each) for each in helps)])


def _helps(command: Any, path: str) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of a command, or of each of its subcommands."""
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _helps(subcommand, f"{path} {name}")
    if hasattr(command, "commands"):
        return
    context = typer.Context(command, info_name=path, terminal_width=_WIDTH)
    yield path, re.split(r"\n\n(?:Arguments|Options):\n", command.get_help(context).strip())[0]


def _section(path: str, text: str) -> str:
    _, *paragraphs = (" ".join(part.split()) for part in text.split("\n\n"))  # the first is the usage
    told = [part for part in paragraphs if not part.startswith("Example: ")]
    examples = [f"`{part.removeprefix('Example: ')}`" for part in paragraphs if part.startswith("Example: ")]
    return f"## {path}\n\n{' '.join(told)}\nExample: {', '.join(examples)}.\n"


def main() -> int:
    page = reference()
    if "--check" in sys.argv[1:]:
        is_current = PAGE.is_file() and PAGE.read_text(encoding="utf-8") == page
        if not is_current:
            print(f"{PAGE.name} is not what the commands say of themselves; run: make docs", file=sys.stderr)
        return 0 if is_current else 1
    PAGE.write_text(page, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
