"""Write docs/cli.md from the help of every command: `make docs`. `--check` says whether it is current."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
import typer.main

from mcpagent.cli.main import COMMANDS, load_command

PAGE = Path(__file__).with_name("cli.md")
_WIDTH = 100  # of the text, whatever the terminal

_HEAD = """\
# Command line

Written by `make docs` from `--help`; do not edit.

Every command that prints a result takes `--json`: one JSON document on stdout, everything else on stderr.
Exit codes: 0 good, 1 the run or a check failed, 2 you have something to fix (the message says what), 130
interrupted, with a last line on stderr that says what is kept and which command goes on.

| command | |
|---|---|
"""


def reference() -> str:
    """The whole page: the same text on every terminal."""
    rows = "".join(f"| [`{name}`](#mcpagent-{name}) | {line} |\n" for name, (_, line) in COMMANDS.items())
    parts = [_HEAD + rows]
    for name in COMMANDS:
        command = load_command(name)
        parts += _sections(command, f"mcpagent {name}")
    return "\n".join(parts)


def _sections(command: Any, path: str, *, level: int = 2) -> Iterator[str]:
    """A section for the command and one for each of its subcommands."""
    context = typer.Context(command, info_name=path, terminal_width=_WIDTH)
    text = command.get_help(context).strip()
    yield f"{'#' * level} mcpagent {path.removeprefix('mcpagent ')}\n\n```text\n{text}\n```\n"
    for name, subcommand in getattr(command, "commands", {}).items():
        yield from _sections(subcommand, f"{path} {name}", level=3)


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
