"""An environment in which mcpagent's wheel is installed with its base packages alone, made without a network:
the packages are linked from the environment that runs the tests."""

from __future__ import annotations

import importlib.metadata as metadata
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from tests.house import ROOT


def build_wheel(folder: Path) -> Path:
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def make_base_environment(folder: Path) -> Path:
    """Returns the interpreter of a new environment in `folder`: the wheel, its base packages and what those
    need, nothing else."""
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "env" / "lib" / version / "site-packages"
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(site)
    for name in _closure("mcpagent"):
        for entry in _entries(name):
            if not (site / entry.name).exists():
                (site / entry.name).symlink_to(entry)
    return python


def _closure(name: str) -> set[str]:
    """The distributions that `name` needs without extras, and those that these need."""
    found: set[str] = set()
    waiting: list[tuple[str, str]] = [(name, "")]
    seen: set[tuple[str, str]] = set()
    while waiting:
        package, extra = waiting.pop()
        if (package, extra) in seen:
            continue
        seen.add((package, extra))
        for text in metadata.requires(package) or ():
            wanted = Requirement(text)
            if wanted.marker is None or wanted.marker.evaluate({"extra": extra}):
                found.add(canonicalize_name(wanted.name))
                waiting += [(canonicalize_name(wanted.name), part) for part in ("", *wanted.extras)]
    return found


def _entries(name: str) -> list[Path]:
    """The files and folders of a distribution directly in site-packages, wherever on the path they lie."""
    files = metadata.distribution(name).files or ()
    tops = {file.parts[0] for file in files if file.parts[0] not in ("..", "__pycache__")}
    folders = [Path(entry) for entry in sys.path if entry and os.path.isdir(entry)]  # noqa: PTH112
    located = [next((f / top for f in folders if (f / top).exists()), None) for top in tops]
    return [path for path in located if path is not None]
