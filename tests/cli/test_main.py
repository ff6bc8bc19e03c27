"""The entry point: `mcpagent` and `python -m mcpagent`, typing errors, completion, missing packages."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from mcpagent import __version__
from mcpagent.storage.packages import extra_with, missing
from tests.cli.base_environment import make_base_environment
from tests.cli.running import mcpagent


def test_python_dash_m_mcpagent_is_the_command(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mcpagent", "--version"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == __version__


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
    done = subprocess.run(
        [Path(sys.executable).with_name("mcpagent")],
        env={**os.environ, **words, "_MCPAGENT_COMPLETE": "complete_bash"},
        capture_output=True,
        text=True,
        check=True,
    )
    assert set(done.stdout.split()) == completed


@pytest.mark.parametrize(
    ("module", "extra"),
    [("torch", "hf"), ("jinja2", "hf"), ("plotly.offline", "report"), ("datasketch", "data"), ("yaml", None)],
)
def test_a_module_belongs_to_the_smallest_extra_that_brings_it(module: str, extra: str | None) -> None:
    assert extra_with(module) == extra


def test_without_extras_a_command_names_every_package_and_one_install_command(tmp_path: Path) -> None:
    python = make_base_environment(tmp_path)
    for words, extras in {
        ("quickstart",): ("hf", "report"),
        ("data", "dedupe", "x.jsonl", "--out", "y.jsonl"): ("data",),
    }.items():
        (tmp_path / "empty").mkdir(exist_ok=True)
        done = subprocess.run(
            [python, "-m", "mcpagent", *words], cwd=tmp_path / "empty", capture_output=True, text=True
        )
        assert done.returncode == 2, done.stderr
        said, command = done.stderr.splitlines()
        packages = {name.strip() for name in said.rpartition(":")[2].split(",")}
        assert packages == _packages_of(python, extras)
        assert command.strip() == f"{python} -m pip install 'mcpagent[{','.join(extras)}]'"
        assert list((tmp_path / "empty").iterdir()) == []


def _packages_of(python: Path, extras: tuple[str, ...]) -> set[str]:
    """What pip would install for the extras, from the wheel's own metadata."""
    program = "import importlib.metadata as m; print(*m.requires('mcpagent'), sep='\\n')"
    lines = subprocess.run([python, "-c", program], capture_output=True, text=True, check=True).stdout
    marked = [line.partition(";") for line in lines.splitlines()]
    return {
        name.partition(">")[0].partition("<")[0].strip()
        for name, _, marker in marked
        if any(f"extra == '{extra}'" in marker for extra in extras)
    }


def test_an_extra_that_is_installed_lacks_nothing() -> None:
    assert missing("hf") == []
