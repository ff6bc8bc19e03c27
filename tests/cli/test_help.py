"""No bracket of a help text is taken for markup and lost."""

from __future__ import annotations

import importlib
import re
from collections.abc import Iterator

import pytest
import typer.main
from typer.testing import CliRunner

from mcpagent.cli.main import COMMANDS

_BRACKETS = re.compile(r"\[[^\[\]]*\]")


def pages(command: object, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], list[str]]]:
    """The words after the command's name, and every text of that page's help."""
    params = getattr(command, "params", [])
    yield (
        path,
        [str(getattr(command, "help", "") or ""), *(str(getattr(p, "help", "") or "") for p in params)],
    )
    for name, inner in getattr(command, "commands", {}).items():
        yield from pages(inner, (*path, name))


@pytest.mark.parametrize("name", COMMANDS)
def test_help_shows_every_bracket_of_its_texts(name: str) -> None:
    app = importlib.import_module(COMMANDS[name][0]).app
    command = typer.main.get_command(app)
    for path, texts in pages(command):
        shown = CliRunner().invoke(app, [*path, "--help"], env={"COLUMNS": "400", "TERMINAL_WIDTH": "400"})
        assert shown.exit_code == 0
        plain = " ".join(shown.output.split())
        for text in texts:
            for brackets in _BRACKETS.findall(text):
                assert " ".join(brackets.split()) in plain, f"{name} {' '.join(path)}: {brackets} is lost"
