from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from filelock import FileLock

from tests.third_party import registries
from tests.third_party.servers import INSTALL, INSTALL_OTHERS, Desk


@pytest.fixture(scope="session")
def environment(pytestconfig: pytest.Config) -> Iterator[dict[str, str]]:
    """What `uvx` and `npx` need here, set for the session: an mcp.json refers to it by name."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("third_party")
    with FileLock(folder / "lock"):
        found = registries.environment(folder)
    with pytest.MonkeyPatch.context() as patch:
        for name, value in found.items():
            patch.setenv(name, value)
        yield found


@pytest.fixture(scope="session")
def installed(environment: dict[str, str], pytestconfig: pytest.Config) -> Callable[[str], None]:
    """Install a program, once in a session. Skips the test if its registry cannot be reached."""
    assert pytestconfig.cache is not None
    folder = pytestconfig.cache.mkdir("third_party")
    done: set[str] = set()

    def install(name: str) -> None:
        if name not in done:
            with FileLock(folder / f"{name}.lock"):  # npm does not install one package twice at a time
                registries.install({**INSTALL, **INSTALL_OTHERS}[name])
            done.add(name)

    return install


@pytest.fixture
def desk(
    tmp_path: Path,
    environment: dict[str, str],
    installed: Callable[[str], None],
    caplog: pytest.LogCaptureFixture,
) -> Iterator[Desk]:
    desk = Desk(tmp_path, passed=tuple(name for name in environment if name != "PATH"), install=installed)
    yield desk
    desk.assert_nothing_runs()
    # asyncio logs what a callback of a transport raised, and nobody else hears of it.
    assert [record.getMessage() for record in caplog.get_records("call") if record.name == "asyncio"] == []
