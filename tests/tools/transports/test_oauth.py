"""OAuth logins at a real server with its authorization server: what a login leaves, what a run does when its
token ends, and that no file holds one."""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx2
import pytest

from mcpagent.errors import UserError
from mcpagent.tools.servers_config import HttpServer, OAuthClient, load_servers
from mcpagent.tools.transports.oauth import check_transport, login_url
from tests.env.world import make_task
from tests.run.world import dataset, with_id
from tests.running import Command, mcpagent
from tests.tools.wild import served

pytestmark = pytest.mark.system


class Guarded(NamedTuple):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/mcp"

    def seen(self) -> dict[str, Any]:
        return httpx2.get(f"http://127.0.0.1:{self.port}/seen", trust_env=False).json()


@contextmanager
def guarded(**env: str) -> Iterator[Guarded]:
    with served("guarded.py", **env) as port:
        yield Guarded(port)


def _file(folder: Path, server: Guarded, **entry: Any) -> Path:
    path = folder / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"shop": {"url": server.url, **entry}}}))
    return path


def _state(folder: Path) -> Path:
    return folder / "state" / "mcpagent" / "logins"


def _env(folder: Path) -> dict[str, str]:
    return {"XDG_STATE_HOME": str(folder / "state")}


def _run(folder: Path, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return mcpagent(*words, "--servers", folder / "mcp.json", cwd=folder, env=_env(folder))


def _login(folder: Path, *options: str) -> tuple[int, str, str]:
    """`mcpagent tools login`, and the person who visits the address that it prints."""
    words = ["tools", "login", "shop", "--servers", str(folder / "mcp.json"), "--no-open", *options]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with Command(*words, cwd=folder, env={**os.environ, **_env(folder)}, text=True, **pipes) as process:
        said = ""
        for line in process.stderr:
            said += line
            if line.startswith("http"):
                page = httpx2.get(line.strip(), follow_redirects=True, trust_env=False)
                said += page.text
        out = process.stdout.read()
    return process.returncode, out, said


def _rollout(folder: Path, *options: str, tasks: int = 12) -> subprocess.CompletedProcess[str]:
    steps = [{"step": 1, "server": "shop", "tool": "add", "params": {"key": f"k{n}"}} for n in range(tasks)]
    made = [
        with_id(make_task(tool_sequence=[step], tools=["shop.add"]), step["params"]["key"]) for step in steps
    ]
    data = dataset(folder / "tasks.jsonl", made)
    command = ("rollout", "--policy", "gold", "--data", data, "--out", folder / "out" / "t.jsonl")
    return _run(folder, *command, "--set", "rollout.num_envs=4", "--json", *options)


def test_a_login_with_a_browser_is_kept_for_the_user_alone_and_calls_use_it(tmp_path: Path) -> None:
    with guarded() as server:
        _file(tmp_path, server)
        code, out, said = _login(tmp_path)
        assert code == 0, said
        assert "logged in at" in out and "You are logged in" in said
        (kept,) = _state(tmp_path).glob("*.json")
        assert stat.S_IMODE(kept.stat().st_mode) == 0o600
        assert stat.S_IMODE(kept.parent.stat().st_mode) == 0o700
        done = _run(tmp_path, "tools", "call", "shop.look", '{"key": "a"}')
        assert done.stdout.strip() == "seen a", done.stderr
        seen = server.seen()
        # PKCE, the resource of RFC 8707 and a loopback redirect were asked for; a public client registered.
        assert seen["resources"] == [server.url]
        assert seen["registered"][0]["token_endpoint_auth_method"] == "none"
        assert re.search(r"redirect_uri=http%3A%2F%2F127\.0\.0\.1%3A\d+%2Fcallback", said)
        assert "code_challenge_method=S256" in said
        assert not [token for token in seen["issued"] if token in out + said]
        gone = _run(tmp_path, "tools", "logout", "shop")
        assert gone.returncode == 0 and list(_state(tmp_path).glob("*.json")) == []


def test_without_a_login_each_command_says_which_one_is_needed(tmp_path: Path) -> None:
    with guarded() as server:
        file = _file(tmp_path, server)
        wanted = f"mcpagent tools login shop --servers {file}"
        done = _rollout(tmp_path)
        assert done.returncode == 2
        assert json.loads(done.stdout)["error"]["remedy"] == wanted
        assert not (tmp_path / "out" / "t.jsonl").exists()
        call = _run(tmp_path, "tools", "call", "shop.look", "{}")
        assert call.returncode == 2 and wanted in call.stderr.replace("\n", " ")
        doctor = _run(tmp_path, "doctor", "--json")
        (check,) = [c for c in json.loads(doctor.stdout) if c["name"] == "server shop"]
        assert check["status"] == "fail" and wanted in json.dumps(check)


def test_a_token_that_ends_in_mid_run_loses_no_call_repeats_no_effect_and_is_in_no_file(
    tmp_path: Path,
) -> None:
    with guarded(USES="5") as server:
        _file(tmp_path, server)
        assert _login(tmp_path)[0] == 0
        cassette = ["--set", f"tools.cassette={tmp_path / 'tape'}", "--set", "tools.cassette_mode=record"]
        done = _rollout(tmp_path, *map(str, cassette))
        assert done.returncode == 0, done.stderr
        seen = server.seen()
        assert seen["refreshes"] >= 2 and seen["refused"] >= 2  # tokens did end in the middle of it
        assert sorted(seen["effects"]) == sorted(f"k{n}" for n in range(12))
        summary = json.loads(done.stdout)
        (tool,) = [t for t in summary["tool_metrics"]["servers"][0]["tools"] if t["tool"] == "add"]
        assert tool["calls"] == 12 and not tool["failures"]
        files = [p for p in tmp_path.rglob("*") if p.is_file() and _state(tmp_path) not in p.parents]
        assert {"t.jsonl"} <= {p.name for p in files} and any(p.parent.name == "tape" for p in files)
        texts = [p.read_text(errors="replace") for p in files] + [done.stdout, done.stderr]
        assert len(seen["issued"]) > 6
        assert [token for token in seen["issued"] for text in texts if token in text] == []


def test_the_scopes_of_an_entry_go_before_those_that_the_server_wants(tmp_path: Path) -> None:
    with guarded() as server:
        _file(tmp_path, server, oauth={"scopes": "shop more"})
        code, _, said = _login(tmp_path)
        assert code == 0 and "scope=shop+more" in said


def test_a_refused_refresh_ends_the_run_with_the_login_as_remedy(tmp_path: Path) -> None:
    with guarded(USES="9", REFRESHES="0") as server:
        file = _file(tmp_path, server)
        assert _login(tmp_path)[0] == 0
        done = _rollout(tmp_path, tasks=40)
        assert done.returncode == 2, done.stderr
        error = json.loads(done.stdout)["error"]
        assert error["remedy"] == f"mcpagent tools login shop --servers {file}"
        assert "invalid_grant" in error["message"] and "shop" in error["where"]
        effects = server.seen()["effects"]
        assert 0 < len(effects) < 40 and len(set(effects)) == len(effects)
        assert [t for t in server.seen()["issued"] if t in done.stdout + done.stderr] == []


def test_a_person_who_refuses_leaves_no_login(tmp_path: Path) -> None:
    with guarded(DENY="1") as server:
        _file(tmp_path, server)
        code, _, said = _login(tmp_path)
        assert code == 2 and ("access_denied" in said or "she said no" in said)
        assert not list(_state(tmp_path).glob("*.json"))


def test_the_ways_in_which_clients_write_a_login_are_read(tmp_path: Path) -> None:
    forms: dict[str, tuple[dict[str, Any], OAuthClient | None]] = {
        "vscode": ({"type": "http"}, None),
        "claude": (
            {"oauth": {"clientId": "c", "callbackPort": 8080, "scopes": "a b"}},
            OAuthClient(client_id="c", scope="a b", callback_port=8080),
        ),
        "cursor": (
            {"auth": {"CLIENT_ID": "c", "CLIENT_SECRET": "s-e-c-r-e-t", "scopes": ["a", "b"]}},
            OAuthClient(client_id="c", client_secret="s-e-c-r-e-t", scope="a b"),
        ),
        "gemini": (
            {"oauth": {"enabled": True, "clientId": "c", "redirectUri": "http://localhost:7777/x"}},
            OAuthClient(client_id="c", callback_port=7777),
        ),
        "fastmcp": ({"auth": "oauth"}, OAuthClient()),
        "off": ({"oauth": False}, None),
    }
    path = tmp_path / "mcp.json"
    entries = {name: {"url": "https://h/mcp", **entry} for name, (entry, _) in forms.items()}
    path.write_text(json.dumps({"mcpServers": entries}))
    loaded = load_servers(path)
    assert loaded.notes == ()
    servers = {s.name: s for s in loaded.servers if isinstance(s, HttpServer)}
    assert {name: server.oauth for name, server in servers.items()} == {n: o for n, (_, o) in forms.items()}
    path.write_text(json.dumps({"mcpServers": {"t": {"url": "https://h/mcp", "auth": "tok-123456"}}}))
    (server,) = load_servers(path).servers
    assert isinstance(server, HttpServer) and server.headers == {"Authorization": "Bearer tok-123456"}


def test_no_token_travels_in_the_clear_and_no_login_is_kept_under_a_key() -> None:
    check_transport("https://example.com/mcp")
    check_transport("http://127.0.0.1:1/mcp")
    with pytest.raises(UserError, match="over TLS"):
        check_transport("http://example.com/mcp")
    assert login_url("https://u:p@Example.COM/mcp?key=1#x") == "https://example.com/mcp"
