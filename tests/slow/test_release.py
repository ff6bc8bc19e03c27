"""A release as its users get it: both distributions built and checked, the wheel installed by uv in an empty
home, on every Python that mcpagent names and this machine has."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from mcpagent import __version__
from tests.cli.base_environment import build_wheel
from tests.house import ROOT
from tests.slow.pythons import VERSIONS, interpreter
from tests.third_party import registries

pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home and a working folder with nothing in them; uv's cache is empty too."""
    home = tmp_path / "home"
    home.mkdir()
    for name, value in registries.environment(tmp_path / "cache").items():
        monkeypatch.setenv(name, value)
    for name in (
        "UV_PYTHON",
        "PYTHONPATH",
        "VIRTUAL_ENV",
        "XDG_CONFIG_HOME",
        "XDG_DATA_HOME",
        "XDG_BIN_HOME",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(home)
    return home


def _said(*command: object) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    assert "Traceback" not in done.stderr
    return done.stdout


@pytest.mark.parametrize("version", VERSIONS)
def test_the_wheel_works_in_an_empty_home_by_uv_tool_install_and_by_uvx(
    version: str, empty_home: Path, tmp_path: Path
) -> None:
    if (python := interpreter(version)) is None:
        pytest.skip(f"there is no Python {version} here")
    wheel = str(build_wheel(tmp_path / "wheel"))
    registries.install(["uv", "tool", "install", "--python", python, wheel])
    program = empty_home / ".local" / "bin" / "mcpagent"
    assert _said(program, "--version").startswith(f"{__version__} (commit ")
    _said(program, "data", "samples")
    assert "the gold plan scores 1.0" in _said(program, "env", "check", "--data", "data/samples")
    by_uvx = ["uvx", "--python", python, "--from", wheel, "mcpagent"]
    assert _said(*by_uvx, "--version") == _said(program, "--version")


def test_both_distributions_are_built_and_pass_twine(empty_home: Path) -> None:
    registries.install(["uvx", "--from", "build", "pyproject-build", "--outdir", "dist", str(ROOT)])
    names = sorted(path.name for path in Path("dist").iterdir())
    assert names == [f"mcpagent-{__version__}-py3-none-any.whl", f"mcpagent-{__version__}.tar.gz"]
    registries.install(["uvx", "twine", "check", "--strict", *(f"dist/{name}" for name in names)])
