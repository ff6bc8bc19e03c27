from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.bridges.scripts import write_data, write_time_data
from tests.running import mcpagent
from tests.third_party.conftest import environment as environment
from tests.third_party.conftest import installed as installed
from tests.third_party.servers import readme_entry


@pytest.fixture(scope="session")
def bridge_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """300 tasks of every class over the five built-in servers; in every tenth a server fails."""
    return _made(tmp_path_factory.mktemp("bridges"), count=300)


@pytest.fixture(scope="session")
def few_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """80 such tasks."""
    return _made(tmp_path_factory.mktemp("few"), count=80)


def _made(folder: Path, *, count: int) -> Path:
    sizes = ("--train", str(count), "--validation", "0", "--heldout", "10", "--seed", "5")
    done = mcpagent("gen-data", "--templates", "full", *sizes, "--out", folder / "made")
    assert done.returncode == 0, done.stderr
    return write_data(folder / "data", folder / "made")


@pytest.fixture(scope="session")
def time_data(
    tmp_path_factory: pytest.TempPathFactory, environment: dict[str, str], installed: Callable[[str], None]
) -> Path:
    """Tasks over a server from PyPI. Skips the test if the registry cannot be reached."""
    installed("time")
    folder = tmp_path_factory.mktemp("time")
    passed = {name: f"${{{name}:-}}" for name in environment if name != "PATH"}
    entry = {**readme_entry("time", folder), "env": {**passed, "UV_OFFLINE": "1"}}
    data = write_time_data(folder, entry)
    # A dataset may name programs only if the user has named them before.
    named = mcpagent("tools", "list", "--servers", data / "mcp.json")
    assert named.returncode == 0, named.stderr
    return data
