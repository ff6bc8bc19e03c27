"""Options that are declared once, as the fields of a dataclass."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer
from typer.testing import CliRunner

from mcpagent.cli.main import load_command
from mcpagent.cli.options import with_options


@dataclass(frozen=True, kw_only=True)
class Several:
    """Two options."""

    file: Annotated[Path | None, typer.Option("--in-file", help="Read this.")] = None
    words: Annotated[list[str] | None, typer.Option("--word")] = None


def test_a_dataclass_stands_as_its_options_and_arrives_as_one_value() -> None:
    app, seen = typer.Typer(), list[tuple[str, Several, bool]]()

    @app.command()
    @with_options
    def shown(name: Annotated[str, typer.Argument()], *, several: Several, loud: bool = False) -> None:
        """What it does."""
        seen.append((name, several, loud))

    done = CliRunner().invoke(app, ["a", "--in-file", "x.txt", "--word", "1", "--loud", "--word", "2"])
    assert done.exit_code == 0, done.output
    assert CliRunner().invoke(app, ["b"]).exit_code == 0
    assert seen == [("a", Several(file=Path("x.txt"), words=["1", "2"]), True), ("b", Several(), False)]
    shown_help = CliRunner().invoke(app, ["--help"]).output
    assert "What it does." in shown_help and "Read this." in shown_help
    places = [shown_help.index(option) for option in ("--in-file", "--word", "--loud")]
    assert places == sorted(places), "the options stand where the dataclass stands"


def test_an_option_that_two_commands_have_reads_the_same_in_both() -> None:
    def options(group: str, *path: str) -> dict[str, str]:
        command = load_command(group)
        for name in path:
            command = command.commands[name]
        return {option: p.help for p in command.params for option in p.opts if hasattr(p, "help")}

    shared = (
        "--servers",
        "--seed",
        "--config",
        "--set",
        "--json",
    )
    of_rollout = options("rollout")
    for other in (options("eval", "checkpoint"), options("eval", "model"), options("env", "check")):
        assert {name: other[name] for name in shared} == {name: of_rollout[name] for name in shared}
