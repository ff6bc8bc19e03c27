"""The servers of others, each as its README says to configure it, and a desk to use them at."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
import uuid
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psutil

from mcpagent.config.schema import ServerSection, ToolsConfig
from mcpagent.core.tools import ToolCall, ToolResult
from mcpagent.tools.contract import ToolSession
from mcpagent.tools.pool import PoolSession, ToolPool
from mcpagent.tools.servers_config import load_servers

_NPM = "@modelcontextprotocol/server-"

# How to install each program without leaving anything running.
INSTALL: dict[str, tuple[str, ...]] = {
    "time": ("uvx", "mcp-server-time", "--help"),
    "git": ("uvx", "mcp-server-git", "--help"),
    "fetch": ("uvx", "mcp-server-fetch", "--help"),
    "sqlite": ("uvx", "--with", "mcp<2", "mcp-server-sqlite", "--help"),
    **{
        name: ("npx", "-y", "-p", f"{_NPM}{name}", "--", "node", "--version")
        for name in ("everything", "filesystem", "memory")
    },
}
INSPECTOR = ("npx", "-y", "@modelcontextprotocol/inspector@2.12.0", "--cli")  # unpinned, npm may choose 0.15
SUITE = ("npx", "-y", "@modelcontextprotocol/conformance@0.1.16")
INSTALL_OTHERS: dict[str, tuple[str, ...]] = {
    "conformance": (*SUITE, "--help"),
    "fastmcp": ("uvx", "fastmcp", "--help"),
    "inspector": (*INSPECTOR, "--help"),
    "mcp-csv-database": ("uvx", "--with", "mcp<2", "mcp-csv-database", "--help"),
    "mcp-sqlite": ("npx", "-y", "-p", "mcp-sqlite", "--", "node", "--version"),
}


def readme_entry(name: str, folder: Path) -> dict[str, Any]:
    """The server's entry of an mcp.json as its README gives it, with `folder` for the paths in it."""
    match name:
        case "time":
            return {"command": "uvx", "args": ["mcp-server-time"]}
        case "git":
            return {"command": "uvx", "args": ["mcp-server-git", "--repository", str(folder / "repo")]}
        case "fetch":
            return {"command": "uvx", "args": ["mcp-server-fetch"]}
        case "sqlite":  # its README's `uv --directory CHECKOUT run` without a checkout; it needs mcp 1.x
            database = str(folder / "test.db")
            return {"command": "uvx", "args": ["--with", "mcp<2", "mcp-server-sqlite", "--db-path", database]}
        case "everything":
            return {"command": "npx", "args": ["-y", f"{_NPM}everything"]}
        case "filesystem":
            return {"command": "npx", "args": ["-y", f"{_NPM}filesystem", str(folder / "files")]}
        case "memory":
            memory = str(folder / "memory.jsonl")
            return {"command": "npx", "args": ["-y", f"{_NPM}memory"], "env": {"MEMORY_FILE_PATH": memory}}
    raise ValueError(name)


class Desk:
    """A folder with a git repository, files and an mcp.json; it knows the processes begun from that."""

    def __init__(self, folder: Path, *, passed: tuple[str, ...], install: Callable[[str], None]) -> None:
        self.folder = folder
        self.repo = folder / "repo"
        self.files = folder / "files"
        self.servers_file = folder / "mcp.json"
        self.install = install
        self._passed = passed
        self._mark = uuid.uuid4().hex
        self.repo.mkdir()
        self.files.mkdir()
        self.git("init", "-b", "main")
        self.git("config", "user.name", "A Person")
        self.git("config", "user.email", "person@example.org")

    def git(self, *arguments: str, date: str = "") -> str:
        command = ["git", "-C", str(self.repo), *arguments]
        env = {**os.environ, "GIT_AUTHOR_DATE": date, "GIT_COMMITTER_DATE": date} if date else None
        return subprocess.run(command, check=True, capture_output=True, text=True, env=env).stdout

    def configure(self, *names: str, **entries: dict[str, Any]) -> Path:
        """Install the named servers and write an mcp.json with their READMEs' entries, and with `entries`."""
        for name in names:
            self.install(name)
        servers = {**{name: readme_entry(name, self.folder) for name in names}, **entries}
        for entry in servers.values():
            if "command" in entry:
                entry["env"] = {**entry.get("env", {}), **self.environment()}
        self.servers_file.write_text(json.dumps({"mcpServers": servers}))
        return self.servers_file

    def environment(self) -> dict[str, str]:
        """What a server's process needs, by name."""
        return {**{name: f"${{{name}:-}}" for name in self._passed}, **self.own_environment()}

    def start(self, command: Sequence[str], *, ready: str) -> str:
        """Run a server in the background; the line of its output in which `ready` says that it serves."""
        process = subprocess.Popen(
            command,
            env={**os.environ, **self.own_environment()},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        assert process.stdout is not None
        said = []
        for line in process.stdout:
            said.append(line)
            if ready in line:
                # Read on, so that it never waits for a reader.
                threading.Thread(target=_drain, args=(process,), daemon=True).start()
                return line
        raise AssertionError("".join(said))

    def stop(self) -> None:
        """Kill whatever was begun here."""
        for process in self.processes():
            with suppress(psutil.NoSuchProcess):
                process.kill()
        self.assert_nothing_runs()

    def own_environment(self) -> dict[str, str]:
        """What is installed starts without asking a registry; the mark is for `processes`."""
        return {"UV_OFFLINE": "1", "npm_config_offline": "true", "TEST_MARK": self._mark}

    @asynccontextmanager
    async def pool(self, *names: str, timeout_s: float = 20.0, **entries: Any) -> AsyncGenerator[ToolPool]:
        """The servers, from their mcp.json; SQL may write. The test ends with an error if one of them still
        runs then."""
        loaded = load_servers(self.configure(*names, **entries))
        sections = {server.name: ServerSection(allow_writes=True) for server in loaded.servers}
        async with ToolPool(loaded.servers, ToolsConfig(timeout_s=timeout_s, per_server=sections)) as pool:
            yield pool

    @asynccontextmanager
    async def session(self, *names: str, **entries: Any) -> AsyncGenerator[PoolSession]:
        """One session of them."""
        async with self.pool(*names, **entries) as pool, pool.session() as session:
            yield session

    def assert_nothing_runs(self) -> None:
        """A server whose wrapper died may take the time to notice that its input ended."""
        _, left = psutil.wait_procs(self.processes(), timeout=5)
        assert left == []

    def processes(self) -> list[psutil.Process]:
        """The living processes of the servers, wherever they moved to: they inherit the mark."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                if process.environ().get("TEST_MARK") == self._mark:
                    found.append(process)
        return found

    def serving(self) -> list[psutil.Process]:
        """The servers themselves, below wrappers such as `uvx` and `npx`."""
        return [process for process in self.processes() if not process.children()]

    def wrappers(self) -> list[psutil.Process]:
        """`uvx` and `npx`, as we started them."""
        ours = {process.pid for process in self.processes()}
        return [process for process in self.processes() if process.ppid() not in ours]


async def call(session: ToolSession, dotted: str, **arguments: Any) -> ToolResult:
    server, _, tool = dotted.partition(".")
    return await session.call(ToolCall(id="c1", server=server, tool=tool, arguments=arguments))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


def _drain(process: subprocess.Popen[str]) -> None:
    assert process.stdout is not None
    with process.stdout as output:
        for _ in output:
            pass
    process.wait()
