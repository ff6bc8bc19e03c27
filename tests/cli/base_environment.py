"""An environment in which mcpagent's wheel is installed with its base packages alone, made without a network:
the packages are linked from the environment that runs the tests."""

from __future__ import annotations

import importlib.metadata as metadata
import subprocess
import sys
import venv
import zipfile
from collections.abc import Iterable, Iterator
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
    need, nothing else. Fails where a file of one of them is not there afterwards."""
    venv.create(folder / "env", with_pip=False, symlinks=True)
    python = folder / "env" / "bin" / "python"
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = folder / "env" / "lib" / version / "site-packages"
    with zipfile.ZipFile(build_wheel(folder)) as archive:
        archive.extractall(site)
    (dist_info,) = site.glob("mcpagent-*.dist-info")
    for name in closure(metadata.Distribution.at(dist_info).requires or ()):
        files = list(_files(metadata.distribution(name)))
        for file in files:
            if not (top := site / file.parts[0]).exists():
                top.symlink_to(_folder_of(file) / file.parts[0])
        absent = [str(file) for file in files if not (site / file).exists()]
        assert files, f"{name} lists no file that could be linked: install it anew"
        assert not absent, f"{name} is not whole in {site}: {absent[:3]}"
    return python


def closure(requirements: Iterable[str]) -> set[str]:
    """The installed distributions that these requirements ask for, and those that these need."""
    found: set[str] = set()
    waiting = [(text, "") for text in requirements]
    seen: set[tuple[str, str]] = set()
    while waiting:
        wanted = Requirement((asked := waiting.pop())[0])
        if asked in seen or (wanted.marker is not None and not wanted.marker.evaluate({"extra": asked[1]})):
            continue
        seen.add(asked)
        found.add(canonicalize_name(wanted.name))
        needed = metadata.requires(wanted.name) or ()
        waiting += [(text, extra) for text in needed for extra in ("", *wanted.extras)]
    return found


def _files(distribution: metadata.Distribution) -> Iterator[metadata.PackagePath]:
    """What the distribution put into site-packages; not its scripts, and no compiled files."""
    for file in distribution.files or ():
        if file.parts[0] != ".." and "__pycache__" not in file.parts:
            yield file


def _folder_of(file: metadata.PackagePath) -> Path:
    """The folder on the path that holds this very file. Its first part alone could be another thing: where
    `pytest` was started as a script, its folder is on the path, and the script `typer` beside it."""
    for entry in sys.path:
        if entry and (Path(entry) / file).exists():
            return Path(entry).resolve()
    raise AssertionError(f"{file} is nowhere on the path {sys.path}")
