"""The Pythons that mcpagent names, and where they are on this machine."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

from tests.house import ROOT

VERSIONS = [
    text.rpartition(" ")[2]
    for text in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["classifiers"]
    if re.fullmatch(r"Programming Language :: Python :: 3\.\d+", text)
]


def interpreter(version: str) -> str | None:
    """A Python of that version: on the path, or beside the one that runs this."""
    candidates = [shutil.which(f"python{version}")]
    for root in (Path(sys.base_prefix).parent, Path(os.environ.get("PYENV_ROOT", "~/.pyenv")).expanduser()):
        candidates += sorted(map(str, root.glob(f"**/{version}.*/bin/python{version}")))
    for python in filter(None, candidates):
        asked = subprocess.run([python, "-c", "import venv, ensurepip"], capture_output=True)
        if asked.returncode == 0:
            return python
    return None
