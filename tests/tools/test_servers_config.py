from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from mcpagent.errors import UserError
from mcpagent.tools.servers_config import HttpServer, ServersFile, StdioServer, load_servers, server_names


@pytest.fixture(autouse=True)
def _in_an_empty_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _load(document: dict[str, Any], *, name: str = "mcp.json") -> ServersFile:
    path = Path(name)
    path.parent.mkdir(exist_ok=True)
    path.write_text(json.dumps(document, indent=2))
    return load_servers(path)


def _one(**entry: Any) -> StdioServer:
    (server,) = _load({"mcpServers": {"git": {"command": "uvx", **entry}}}).servers
    assert isinstance(server, StdioServer)
    return server


def test_a_claude_desktop_file_loads_unchanged() -> None:
    loaded = _load(
        {
            "mcpServers": {
                "git": {"command": "uvx", "args": ["mcp-server-git", "--repository", "."], "timeout": 5000},
                "memory": {"command": "npx", "env": {"MEMORY_FILE_PATH": "m.json"}, "cwd": "/srv"},
            }
        }
    )
    assert loaded.servers == (
        StdioServer(name="git", command="uvx", args=("mcp-server-git", "--repository", "."), timeout_s=5.0),
        StdioServer(name="memory", command="npx", env={"MEMORY_FILE_PATH": "m.json"}, cwd="/srv"),
    )
    assert loaded.notes == ()


def test_the_servers_key_of_vs_code_is_accepted_with_its_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "8080")
    entry = {"type": "stdio", "command": "node", "args": ["${workspaceFolder}/s.js", "${env:PORT}"]}
    (server,) = _load({"servers": {"s": entry}}, name=".vscode/mcp.json").servers
    assert isinstance(server, StdioServer)
    assert server.args == (f"{Path.cwd()}/s.js", "8080")


_LOCAL = {"command": "npx", "args": ["-y", "pkg"], "env": {"K": "v"}}
_LISTED = {"type": "local", "command": ["npx", "-y", "pkg"], "environment": {"K": "v"}, "enabled": True}
_OBJECT = {"command": {"path": "npx", "args": ["-y", "pkg"], "env": {"K": "v"}}, "settings": {}}
_REMOTE = {"url": "https://h/mcp", "headers": {"A": "b"}}
_BOTH = {"s": _LOCAL, "r": _REMOTE}


@pytest.mark.parametrize(
    "document",
    [
        {"mcpServers": {"s": {"type": "local", **_LOCAL, "tools": ["*"]}, "r": {"type": "http", **_REMOTE}}},
        {"mcpServers": {"s": {"transport": "stdio", **_LOCAL}, "r": {"transport": "http", **_REMOTE}}},
        {"mcpServers": {"s": {"type": "STDIO", **_LOCAL}, "r": {"type": "streamableHttp", **_REMOTE}}},
        {"servers": _BOTH, "inputs": []},
        {
            "context_servers": {"s": {"source": "custom", "enabled": True, **_LOCAL}, "r": _REMOTE},
            "theme": "x",
        },
        {"context_servers": {"s": _OBJECT, "r": _REMOTE}},
        {"mcp": {"servers": _BOTH, "inputs": []}, "editor.fontSize": 12},
        {"mcp.servers": _BOTH},
        {"amp.mcpServers": _BOTH},
        {
            "$schema": "https://opencode.ai/config.json",
            "mcp": {"s": _LISTED, "r": {"type": "remote", **_REMOTE}},
        },
        {"mcp": {"s": {"type": "stdio", **_LOCAL}, "r": {"type": "http", **_REMOTE}}},
        _BOTH,
    ],
    ids=json.dumps,
)
def test_the_files_of_other_clients_load_unchanged(document: dict[str, Any]) -> None:
    loaded = _load(document)
    assert loaded.servers == (
        StdioServer(name="s", command="npx", args=("-y", "pkg"), env={"K": "v"}),
        HttpServer(name="r", url="https://h/mcp", headers={"A": "b"}),
    )
    assert loaded.notes == ()
    assert server_names(Path("mcp.json")) == {"s", "r"}


@pytest.mark.parametrize("name", ["servers", "mcp", "mcpServers"])
def test_a_bare_map_may_hold_a_server_that_is_called_as_a_key_of_others(name: str) -> None:
    assert [server.name for server in _load({name: _LOCAL}).servers] == [name]


def test_an_extension_of_zed_is_left_out_with_a_note() -> None:
    extension = {"source": "extension", "settings": {"token": "t"}}
    loaded = _load({"context_servers": {"a": extension, "b": {"settings": {}}, "s": _LOCAL}})
    assert [server.name for server in loaded.servers] == ["s"]
    assert len(loaded.notes) == 2 and all("is an extension of Zed" in note for note in loaded.notes)


def test_what_vs_code_predefines_has_its_value(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PORT", "8080")
    here, folder = str(Path.cwd()), Path.cwd().name
    values = {
        "${workspaceFolder}${pathSeparator}s.js": f"{here}/s.js",
        "${workspaceFolder}${/}s.js": f"{here}/s.js",
        "${workspaceRoot}/s.js": f"{here}/s.js",
        f"${{workspaceFolder:{folder}}}/s.js": f"{here}/s.js",
        "${workspaceFolderBasename}": folder,
        "${userHome}": str(Path.home()),
        "${cwd}": here,
        "${env:PORT}": "8080",
        "{env:PORT}": "8080",
    }
    entry = {"command": "x", "args": list(values)}
    (server,) = _load({"servers": {"s": entry}}, name=".vscode/mcp.json").servers
    assert isinstance(server, StdioServer)
    assert server.args == tuple(values.values())
    assert server.written is not None  # a command for a shell has the values too, and keeps the variables
    assert server.written[1:] == (*list(values.values())[:-2], '"${PORT}"', '"${PORT}"')


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("${file}", "the VS Code variable 'file', which has a value in an editor only"),
        ("${fileBasenameNoExtension}", "'fileBasenameNoExtension', which has a value in an editor only"),
        ("${relativeFileDirname}", "which has a value in an editor only"),
        ("${lineNumber}", "which has a value in an editor only"),
        ("${config:python.path}", "the VS Code config 'python.path'"),
        ("${command:pick}", "the VS Code command 'pick'"),
        ("${workspaceFolder:elsewhere}", "the VS Code folder 'elsewhere'"),
    ],
)
def test_what_only_an_editor_knows_is_named(text: str, said: str) -> None:
    with pytest.raises(UserError, match=said):
        _one(args=[text])


def test_variables_come_from_the_environment_then_from_dot_env_then_from_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    Path(".env").write_text("BOTH=file\nONLY_FILE=file\n")
    monkeypatch.setenv("BOTH", "real")
    monkeypatch.setenv("EMPTY", "")
    env = {
        "a": "${BOTH}",
        "b": "x-${ONLY_FILE}",
        "c": "${NOWHERE:-d:-e}",
        "d": "${EMPTY:-full}",
        "e": "$BOTH",
    }
    # `:-` also replaces an empty value, as in a shell; `$NAME` without braces is plain text.
    assert _one(env=env).env == {"a": "real", "b": "x-file", "c": "d:-e", "d": "full", "e": "$BOTH"}


def test_an_unset_variable_is_named_with_its_server_key_file_and_line() -> None:
    with pytest.raises(UserError) as error:
        _one(env={"TOKEN": "${NOT_SET_ANYWHERE}"})
    assert error.value.where == "mcp.json:3"  # the line of "git" in the indented file
    assert error.value.message == (
        "server 'git': env.TOKEN needs the environment variable NOT_SET_ANYWHERE, which is not set"
    )
    assert "export NOT_SET_ANYWHERE=" in (error.value.remedy or "")


def test_comments_and_trailing_commas_are_accepted_as_editors_write_them() -> None:
    Path("mcp.json").write_text(
        """// Cursor
{
  /* "off": {"command": "x"}, */
  "mcpServers": {
    "a": {"command": "x", "args": ["//not-a-comment", "/*", "*/", ",]", "say \\"// hi\\"",],}, // last
  },
}
"""
    )
    (server,) = load_servers(Path("mcp.json")).servers
    assert isinstance(server, StdioServer)
    assert server.args == ("//not-a-comment", "/*", "*/", ",]", 'say "// hi"')


def test_bad_json_is_reported_with_its_line_also_below_a_comment() -> None:
    Path("mcp.json").write_text('{\n  /* two\n  lines */ "mcpServers": {\n    "a": {"command" "x"}\n  }\n}\n')
    with pytest.raises(UserError, match="not valid JSON: Expecting ':' delimiter at column 21") as error:
        load_servers(Path("mcp.json"))
    assert error.value.where == "mcp.json:4"


@pytest.mark.parametrize(
    "entry",
    [
        {"url": "https://h/mcp"},
        {"type": "http", "url": "https://h/mcp"},
        {"type": "streamable-http", "url": "https://h/mcp"},
        {"type": "streamableHttp", "url": "https://h/mcp"},
        {"httpUrl": "https://h/mcp"},
        {"serverUrl": "https://h/mcp"},
    ],
)
def test_an_http_server_is_known_by_its_url_or_by_any_of_the_names_of_its_type(entry: dict[str, str]) -> None:
    loaded = _load({"mcpServers": {"remote": entry}})
    assert loaded.servers == (HttpServer(name="remote", url="https://h/mcp"),)
    assert loaded.notes == ()


def test_url_and_headers_take_variables_and_are_never_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKEN", "s3cret")
    entry = {
        "url": "https://h/mcp?key=${TOKEN}",
        "headers": {"Authorization": "Bearer ${TOKEN}", "X-Team": "${TEAM:-core}"},
        "timeout": 90_000,
    }
    (server,) = _load({"mcpServers": {"remote": entry}}).servers
    assert isinstance(server, HttpServer)
    assert server.url == "https://h/mcp?key=s3cret"
    assert server.headers == {"Authorization": "Bearer s3cret", "X-Team": "core"}
    assert server.timeout_s == 90.0
    assert "s3cret" not in repr(server)


def test_a_header_that_cannot_be_sent_is_refused_without_its_value() -> None:
    with pytest.raises(UserError, match=r"headers\.Authorization holds what no HTTP header can") as error:
        _load({"mcpServers": {"r": {"url": "http://h", "headers": {"Authorization": "Bearer s3cret\n"}}}})
    assert "s3cret" not in str(error.value)


def test_the_env_file_of_vs_code_is_read_and_env_wins() -> None:
    Path("keys.env").write_text("A=file\nB=file\n")
    entry = {"type": "stdio", "command": "x", "envFile": "${workspaceFolder}/keys.env", "env": {"B": "own"}}
    (server,) = _load({"servers": {"s": entry}}, name=".vscode/mcp.json").servers
    assert isinstance(server, StdioServer)
    assert server.env == {"A": "file", "B": "own"}


def test_disabled_servers_and_unknown_keys_are_noted_and_not_fatal() -> None:
    loaded = _load(
        {
            "mcpServers": {
                "off": {"url": "http://127.0.0.1:1/mcp", "disabled": True},
                "out": {"command": "x", "enabled": False},
                "on": {"command": "x", "autoApprove": ["read"], "gallery": True, "timeout": 30},
            }
        }
    )
    assert [server.name for server in loaded.servers] == ["on"]
    assert loaded.servers[0].timeout_s is None
    assert loaded.notes == (
        "server 'off' is disabled",
        "server 'out' is disabled",
        "server 'on': unknown key 'autoApprove' is ignored",
        "server 'on': unknown key 'gallery' is ignored",
        "server 'on': timeout 30 is ignored (milliseconds, at least 1000)",
    )


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ({"mcpservers": {}}, "it names no server"),
        ({"mcpServers": {"a": {"command": "x", "disabled": True}}}, "every server in it is disabled"),
        ({"mcpServers": {"a": {"args": []}}}, "command must be a string, and is missing"),
        ({"mcpServers": {"a": {"command": "x", "args": "y"}}}, "args must be a list"),
        ({"mcpServers": {"a": {"command": "x", "env": {"K": True}}}}, "env.K must be a string"),
        ({"mcpServers": {"a": {"command": "${input:token}"}}}, "VS Code input 'token'"),
        (
            {"mcpServers": {"a": {"type": "ws", "url": "ws://h"}}},
            "type must be 'stdio', 'http' or 'sse', not 'ws'",
        ),
        ({"mcpServers": {"a": {"type": "http"}}}, "url must be a string, and is missing"),
        ({"mcpServers": {"a": {"url": "h:8000/mcp"}}}, "url must be of the form"),
        ({"mcpServers": {"a": {"url": "http://h:port/mcp"}}}, "url must be of the form"),
        ({"mcpServers": {"a": {"command": "x", "url": "http://h"}}}, "both a command and a url"),
        ({"mcpServers": {"a": {"command": "x", "envFile": "no.env"}}}, "does not name a file: no.env"),
        ({"mcpServers": {"a": {"url": "http://h", "headers": {"K": "${UNSET}"}}}}, "variable UNSET"),
        ({"mcpServers": {"a": {"command": "x", "timeout": "30s"}}}, "timeout must be a number"),
    ],
)
def test_entries_that_cannot_be_run_are_user_errors(document: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        _load(document)


def test_a_missing_file_is_a_user_error_that_names_it() -> None:
    with pytest.raises(UserError, match="No such file") as error:
        load_servers(Path("nowhere.json"))
    assert error.value.where == "nowhere.json"


def test_values_of_env_are_not_printed() -> None:
    assert "s3cret" not in repr(_one(env={"TOKEN": "s3cret"}))


def test_a_proxy_with_a_password_is_withheld_with_a_note_unless_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HTTPS_PROXY", "http://me:s3cret@proxy.example:8080")
    monkeypatch.setenv("HTTP_PROXY", "http://proxy.example:8080")
    path = tmp_path / "mcp.json"
    path.write_text(json.dumps({"mcpServers": {"time": {"command": "uvx"}}}))
    (note,) = load_servers(path).notes
    assert '"HTTPS_PROXY": "${HTTPS_PROXY}"' in note
    assert "s3cret" not in note
    env = {"HTTPS_PROXY": "${HTTPS_PROXY}"}
    path.write_text(json.dumps({"mcpServers": {"time": {"command": "uvx", "env": env}}}))
    assert load_servers(path).notes == ()
