"""The entry point: `mcpagent` and `python -m mcpagent`, typing errors, completion, missing packages."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
import typer.main

from mcpagent import __version__
from mcpagent.cli.main import app
from mcpagent.storage.packages import extra_with, missing
from tests.house import ROOT
from tests.running import mcpagent

_TEXT: dict[str, Any] = {"capture_output": True, "text": True, "check": True}


def test_python_dash_m_mcpagent_is_the_command_and_says_version_and_commit() -> None:
    command = [sys.executable, "-m", "mcpagent", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    git = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "HEAD"], capture_output=True, text=True)
    said = re.fullmatch(r"(\S+)(?: \(commit ([0-9a-f]{12})( with changes)?\))?\n", done.stdout)
    assert said is not None and said[1] == __version__
    assert said[2] == (git.stdout[:12] if git.returncode == 0 else None)


@pytest.mark.system
def test_the_commit_and_the_version_go_through_an_sdist_into_its_wheel(tmp_path: Path) -> None:
    hatchling = [sys.executable, "-m", "hatchling", "build", "-d", str(tmp_path)]
    subprocess.run([*hatchling, "-t", "sdist"], cwd=ROOT, check=True, capture_output=True)
    name = f"mcpagent-{__version__}"
    with tarfile.open(tmp_path / f"{name}.tar.gz") as archive:
        archive.extractall(tmp_path, filter="data")
    subprocess.run([*hatchling, "-t", "wheel"], cwd=tmp_path / name, check=True, capture_output=True)
    installed = tmp_path / "installed"
    with zipfile.ZipFile(tmp_path / f"{name}-py3-none-any.whl") as wheel:
        wheel.extractall(installed)
    command = [sys.executable, "-m", "mcpagent", "--version"]
    said = [
        subprocess.run(command, cwd=place, env={**os.environ, "PYTHONPATH": str(place)}, **_TEXT).stdout
        for place in (ROOT, installed)
    ]
    assert said[0] == said[1] != ""


@pytest.mark.parametrize(
    ("typed", "meant"),
    [("trian", "train"), ("gendata", "gen-data"), ("reports", "report"), ("docter", "doctor")],
)
def test_a_command_with_a_typing_error_names_the_near_one(typed: str, meant: str) -> None:
    done = mcpagent(typed)
    assert done.returncode == 2
    assert f"No such command '{typed}'. Did you mean '{meant}'" in done.stderr


@pytest.mark.parametrize(
    ("line", "completed"),
    [
        ("mcpagent tr", {"train"}),
        ("mcpagent d", {"doctor", "data"}),
        ("mcpagent data va", {"validate"}),
        ("mcpagent train --dry", {"--dry-run"}),
        ("mcpagent eval checkpoint --samp", {"--samples"}),
    ],
)
def test_a_shell_completes_commands_subcommands_and_options(line: str, completed: set[str]) -> None:
    words = {"COMP_WORDS": line, "COMP_CWORD": str(len(line.split()) - 1)}
    asked = {**words, "_MCPAGENT_COMPLETE": "complete_bash"}
    if line == "mcpagent tr":  # once by the console script
        command = [Path(sys.executable).with_name("mcpagent")]
        done = subprocess.run(command, env={**os.environ, **asked}, capture_output=True, text=True)
    else:
        done = mcpagent(env=asked)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize(
    ("module", "extra"),
    [
        ("torch", "hf"),
        ("tokenizers", "hf"),
        ("plotly.offline", "report"),
        ("datasketch", "data"),
        ("yaml", None),
    ],
)
def test_a_module_belongs_to_the_smallest_extra_that_brings_it(module: str, extra: str | None) -> None:
    assert extra_with(module) == extra


def test_an_extra_that_is_installed_lacks_nothing() -> None:
    assert missing("hf") == []


def test_an_interrupt_while_options_are_read_is_not_ended_by_typer_without_a_word() -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    group = typer.main.get_command(app)
    group.params[0].callback = interrupted
    with pytest.raises(SystemExit) as raised:
        group.main(["--version"])
    exit_of_typer = raised.value.__context__  # by which `run` finds the interrupt, and says how to go on
    assert exit_of_typer is not None and isinstance(exit_of_typer.__cause__, KeyboardInterrupt)
