"""`--servers cursor`: the file of another client, where it lies on this system."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from mcpagent.tools.clients import CLIENTS, client_file, client_places
from mcpagent.tools.servers_config import load_servers
from tests.running import mcpagent
from tests.tools.support import ECHO_SCRIPT

_ECHO = {"command": sys.executable, "args": [str(ECHO_SCRIPT)]}


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home, and a project in it that is the current folder."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    (tmp_path / "project").mkdir()
    monkeypatch.chdir(tmp_path / "project")
    return tmp_path


def _write(path: Path, document: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document))
    return path


@pytest.mark.parametrize("platform", ["linux", "darwin", "win32"])
@pytest.mark.parametrize("client", CLIENTS)
def test_a_client_is_found_wherever_it_keeps_its_servers_the_project_before_the_user(
    client: str, platform: str
) -> None:
    assert client_file(client, platform) is None
    places = client_places(client, platform)
    assert [place.is_absolute() for place in places] == sorted(place.is_absolute() for place in places)
    for place in reversed(places):
        _write(place, {"mcpServers": {"echo": _ECHO}})
        assert client_file(client, platform) == place


@pytest.mark.parametrize(
    ("client", "platform", "place"),
    [
        ("claude", "linux", ".config/Claude/claude_desktop_config.json"),
        ("claude", "darwin", "Library/Application Support/Claude/claude_desktop_config.json"),
        ("claude", "win32", "AppData/Roaming/Claude/claude_desktop_config.json"),
        ("vscode", "darwin", "Library/Application Support/Code/User/mcp.json"),
        ("cursor", "win32", ".cursor/mcp.json"),
        ("zed", "darwin", ".config/zed/settings.json"),
        ("windsurf", "linux", ".codeium/windsurf/mcp_config.json"),
    ],
)
def test_each_system_has_its_own_place(client: str, platform: str, place: str, _home: Path) -> None:
    assert _home / place in client_places(client, platform)


def test_windows_and_xdg_say_where_settings_are(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("APPDATA", str(tmp_path / "roaming"))
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "xdg"))
    assert client_places("claude", "win32")[0].parts[-3] == "roaming"
    assert client_places("claude", "linux")[0].parts[-3] == "xdg"


def test_a_file_without_servers_does_not_hide_one_that_has_some(_home: Path) -> None:
    _write(Path(".vscode/mcp.json"), {"servers": {}})
    user = _write(_home / ".config/Code/User/settings.json", {"mcp": {"servers": {"echo": _ECHO}}})
    assert client_file("vscode", "linux") == user


def test_claude_code_keeps_the_servers_of_a_project_in_the_file_of_its_user(_home: Path) -> None:
    here = {str(Path.cwd()): {"mcpServers": {"near": _ECHO}}, "/elsewhere": {"mcpServers": {"far": _ECHO}}}
    path = _write(_home / ".claude.json", {"mcpServers": {"user": _ECHO}, "projects": here})
    assert [server.name for server in load_servers(path).servers] == ["near"]
    _write(path, {"mcpServers": {"user": _ECHO}, "projects": {str(Path.cwd()): {"mcpServers": {}}}})
    assert [server.name for server in load_servers(path).servers] == ["user"]


def test_the_programs_of_a_client_are_shown_before_their_first_start_alone(_home: Path) -> None:
    remote = {"url": "https://user:pa55@127.0.0.1:1/mcp?key=k3y"}
    place = _write(_home / ".cursor/mcp.json", {"mcpServers": {"echo": _ECHO, "shop": remote}})
    first, second = (mcpagent("tools", "list", "--servers", "cursor", cwd=Path.cwd()) for _ in range(2))
    assert "echo" in first.stdout, first.stderr
    told = f"servers of cursor: {place}"
    assert told in first.stderr.splitlines() and told in second.stderr.splitlines()
    program = f"  echo: {sys.executable} {ECHO_SCRIPT}"
    assert first.stderr.index(told) < first.stderr.index(program)
    assert "  shop: 127.0.0.1" in first.stderr.splitlines()
    assert program not in second.stderr
    assert "pa55" not in first.stderr + first.stdout


def test_a_file_of_that_name_in_the_folder_wins(_home: Path) -> None:
    _write(_home / ".cursor/mcp.json", {"mcpServers": {"of_cursor": _ECHO}})
    _write(Path("cursor"), {"mcpServers": {"of_folder": _ECHO}})
    done = mcpagent("tools", "list", "--servers", "cursor", cwd=Path.cwd())
    assert "of_folder" in done.stdout and "of_cursor" not in done.stdout + done.stderr


def test_a_client_that_keeps_none_is_one_error_with_the_places(_home: Path) -> None:
    done = mcpagent("tools", "list", "--servers", "windsurf", cwd=Path.cwd())
    assert done.returncode == 2
    assert str(_home / ".codeium/windsurf/mcp_config.json") in done.stderr


def test_doctor_lists_the_clients_that_it_finds(_home: Path) -> None:
    _write(_home / ".cursor/mcp.json", {"mcpServers": {"echo": _ECHO, "more": _ECHO}})
    _write(_home / ".config/zed/settings.json", {"theme": "dark"})
    checks = json.loads(mcpagent("doctor", "--json", cwd=Path.cwd()).stdout)
    found = {check["name"]: check["detail"] for check in checks if check["name"].startswith("client ")}
    assert found == {"client cursor": f"2 servers in {_home}/.cursor/mcp.json: --servers cursor"}
