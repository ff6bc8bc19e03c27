"""Servers of others that start without a key: each is listed, called once, and clear in `doctor`.

With `-s` it prints the rows of the table in docs/tools.md.
"""

from __future__ import annotations

import json
import os
import shlex
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import FailureKind, ToolCall
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.probes.arguments import harmless_arguments
from mcpagent.tools.servers_config import load_servers
from tests.running import mcpagent

pytestmark = [pytest.mark.registry, pytest.mark.slow]

_START_S = 240.0  # with what it installs


@dataclass(frozen=True)
class Published:
    """A server as its README starts it, and a call that needs nothing outside this machine; without one, of
    the tool that needs the fewest arguments. `{here}` is a git repository with `notes.txt`, a text."""

    command: str
    tool: str = ""
    arguments: dict[str, Any] = field(default_factory=dict)
    env: dict[str, str] = field(default_factory=dict)


_THOUGHT = {"thought": "a", "nextThoughtNeeded": False, "thoughtNumber": 1, "totalThoughts": 1}
PUBLISHED = {
    "mcp-server-time": Published("uvx mcp-server-time", "get_current_time", {"timezone": "UTC"}),
    "mcp-server-fetch": Published("uvx mcp-server-fetch", "fetch", {"url": "http://127.0.0.1:9/"}),
    "mcp-server-git": Published("uvx mcp-server-git", "git_status", {"repo_path": "{here}"}),
    "mcp-server-sqlite": Published("uvx --with mcp<2 mcp-server-sqlite --db-path {here}/a.db", "list_tables"),
    "mcp-server-calculator": Published("uvx mcp-server-calculator", "calculate", {"expression": "2+3"}),
    "mcp-server-motherduck": Published(
        "uvx mcp-server-motherduck --db-path :memory: --read-write", "execute_query", {"sql": "select 1"}
    ),
    "mcp-simple-timeserver": Published("uvx mcp-simple-timeserver", "get_local_time"),
    "excel-mcp-server": Published("uvx excel-mcp-server stdio"),
    "office-word-mcp-server": Published(
        "uvx --from office-word-mcp-server word_mcp_server",
        "list_available_documents",
        {"directory": "{here}"},
    ),
    "markitdown-mcp": Published(
        "uvx markitdown-mcp", "convert_to_markdown", {"uri": "file://{here}/notes.txt"}
    ),
    "mcp-text-editor": Published(
        "uvx --with mcp<2 mcp-text-editor",
        "get_text_file_contents",
        {"files": [{"file_path": "{here}/notes.txt", "ranges": [{"start": 1}]}]},
    ),
    "mcp-shell-server": Published(
        "uvx mcp-shell-server",
        "shell_execute",
        {"command": ["ls"], "directory": "{here}"},
        {"ALLOW_COMMANDS": "ls"},
    ),
    "cli-mcp-server": Published(
        "uvx --with mcp<2 cli-mcp-server", "show_security_rules", {}, {"ALLOWED_DIR": "{here}"}
    ),
    "mcp-server-spreadsheet": Published("uvx mcp-server-spreadsheet"),
    "business-day-mcp": Published("uvx business-day-mcp"),
    "finamatik-ops-mcp": Published("uvx finamatik-ops-mcp"),
    "mcpkmn-showdown": Published("uvx --with mcp<2 mcpkmn-showdown"),
    "slipbox-mcp": Published("uvx slipbox-mcp"),
    "mcp-server-duckdb": Published(
        "uvx --with mcp<2 mcp-server-duckdb --db-path {here}/d.db", "query", {"query": "select 1"}
    ),
    "server-everything": Published(
        "npx -y @modelcontextprotocol/server-everything", "echo", {"message": "a"}
    ),
    "server-filesystem": Published(
        "npx -y @modelcontextprotocol/server-filesystem {here}",
        "read_text_file",
        {"path": "{here}/notes.txt"},
    ),
    "server-memory": Published(
        "npx -y @modelcontextprotocol/server-memory", "read_graph", {}, {"MEMORY_FILE_PATH": "{here}/m.jsonl"}
    ),
    "server-sequential-thinking": Published(
        "npx -y @modelcontextprotocol/server-sequential-thinking", "sequentialthinking", _THOUGHT
    ),
    "@coo-quack/calc-mcp": Published("npx -y @coo-quack/calc-mcp", "math", {"expression": "2+3"}),
    "@wonderwhy-er/desktop-commander": Published("npx -y @wonderwhy-er/desktop-commander", "get_config"),
    "@eslint/mcp": Published("npx -y @eslint/mcp", "lint-files", {"filePaths": ["{here}/notes.txt"]}),
    "@allpepper/memory-bank-mcp": Published(
        "npx -y @allpepper/memory-bank-mcp", "list_projects", {}, {"MEMORY_BANK_ROOT": "{here}"}
    ),
    "mcp-hello-world": Published("npx -y mcp-hello-world", "echo", {"message": "a"}),
    "mcp-server-code-runner": Published(
        "npx -y mcp-server-code-runner", "run-code", {"code": "print(1)", "languageId": "python"}
    ),
    "@agent-infra/mcp-server-filesystem": Published(
        "npx -y @agent-infra/mcp-server-filesystem --allowed-directories {here}", "list_allowed_directories"
    ),
    "@cyanheads/git-mcp-server": Published(
        "npx -y @cyanheads/git-mcp-server", "git_init", {"path": "{here}"}
    ),
    "@sylphx/pdf-reader-mcp": Published(
        "npx -y @sylphx/pdf-reader-mcp", "read_pdf", {"sources": [{"path": "{here}/no.pdf"}]}
    ),
    "@mastra/mcp-docs-server": Published("npx -y @mastra/mcp-docs-server", "getMastraCourseStatus"),
    "@playwright/mcp": Published("npx -y @playwright/mcp", "browser_close"),
}


def _filled(value: Any, folder: Path) -> Any:
    return json.loads(json.dumps(value).replace("{here}", str(folder)))


@pytest.mark.parametrize("name", PUBLISHED)
async def test_a_published_server_is_listed_called_and_clear(
    name: str, tmp_path: Path, environment: dict[str, str]
) -> None:
    server = PUBLISHED[name]
    (tmp_path / "notes.txt").write_text("a text\n")
    subprocess.run(["git", "init", "-q", str(tmp_path)], check=True)
    command, *args = shlex.split(_filled(server.command, tmp_path))
    passed = {key: f"${{{key}:-}}" for key in environment if key != "PATH"}
    entry = {"command": command, "args": args, "env": {**passed, **_filled(server.env, tmp_path)}}
    entry["cwd"] = str(tmp_path)  # where some keep what they hold
    file = tmp_path / "mcp.json"
    file.write_text(json.dumps({"mcpServers": {"s": entry}}))
    (config,) = load_servers(file).servers
    limits = ToolsConfig(per_server={"s": ServerSection(start_timeout_s=_START_S)})
    async with ToolPool([config], limits) as pool, pool.session() as session:
        tool, arguments = server.tool, _filled(server.arguments, tmp_path)
        if not tool:
            made = {
                spec.name: given
                for spec in pool.tools.values()
                if (given := harmless_arguments(spec.input_schema, text="a")) is not None
            }
            tool = min(made, key=lambda name: (len(made[name]), name))
            arguments = made[tool]
        answer = await session.call(ToolCall(id="1", server="s", tool=tool, arguments=arguments))
        listed, version, protocol = sorted(pool.tools), pool.versions.get("s"), pool.protocols["s"]
    print(f"\n| `{name}` | {version} | {protocol} | {len(listed)} | `{tool}` |")
    # A tool may say that it fails at what it was asked, as without a browser, a page or a file.
    assert answer.failure in (None, FailureKind.TOOL_ERROR), (answer.content, listed)
    doctor = mcpagent("doctor", "--servers", file, "--json", cwd=tmp_path, env=dict(os.environ))
    (check,) = [check for check in json.loads(doctor.stdout) if check["name"] == "server s"]
    assert check["status"] in ("pass", "warn"), check
