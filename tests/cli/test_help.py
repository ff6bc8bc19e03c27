"""Help pages lose nothing, brackets included, and break their lines where the edge is."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import pairwise

import pytest
import typer.main
from typer.testing import CliRunner

from mcpagent.cli.main import COMMANDS, load_app


def pages(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The words after the command's name, and every text of that page's help."""
    params = getattr(command, "params", [])
    yield (
        path,
        [str(getattr(command, "help", "") or ""), *(str(getattr(p, "help", "") or "") for p in params)],
    )
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, (*path, name))


@pytest.mark.parametrize("columns", [80, 140])
@pytest.mark.parametrize("name", COMMANDS)
def test_help_fills_its_lines_up_to_the_edge_and_cuts_none(name: str, columns: int) -> None:
    app = load_app(name)
    command = typer.main.get_command(app)
    for path, texts in pages(command):
        environment = {"COLUMNS": str(columns), "TERMINAL_WIDTH": str(columns)}
        page = CliRunner().invoke(app, [*path, "--help"], env=environment).output
        where = f"{name} {' '.join(path)}"
        assert max(map(len, page.splitlines())) <= columns, where
        cut = re.sub(r"TOOL,\.\.\.|\[ARGS\]\.\.\.|\{(?:PARTS|RUNS)\}\.\.\.", "", page)
        assert "│" not in page and "..." not in cut, where
        shown = "".join(page.split())  # a line may break after a hyphen
        for text in texts:
            assert "".join(text.split()) in shown, f"{where}: {text}"
        description = re.split(r"\n(?:Arguments|Options):\n", page.partition("\n\n")[2])[0]
        for paragraph in description.split("\n\n"):
            lines = paragraph.rstrip().splitlines()
            for line, following in pairwise(lines):
                assert len(f"{line} {following.split()[0]}") > 78, f"{where}: {line!r} breaks early"
