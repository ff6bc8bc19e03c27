"""The built-in servers, used by clients that others wrote: the MCP Inspector and fastmcp."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest

from mcpagent.servers.names import BUILTIN_NAMES
from mcpagent.servers.registry import build_server
from tests.servers.calls import GOOD_CALLS, call, tools_of
from tests.third_party.servers import INSPECTOR, Desk

pytestmark = pytest.mark.registry

_FASTMCP_CLIENT = """
import asyncio, json, sys
from fastmcp import Client

async def use(target, tool, arguments):
    async with Client(target) as client:
        tools = [tool.name for tool in await client.list_tools()]
        result = await client.call_tool(tool, arguments)
        return {"tools": tools, "structured": result.structured_content}

async def main(asked):
    return {name: await use(*what) for name, what in asked.items()}

print(json.dumps(asyncio.run(main(json.load(sys.stdin)))))
"""

Target = Callable[[Desk, str], dict[str, Any]]


def _over_stdio(desk: Desk, name: str) -> dict[str, Any]:
    return {"command": sys.executable, "args": ["-m", "mcpagent.cli.main", "serve", name]}


def _over_http(desk: Desk, name: str) -> dict[str, Any]:
    serve = (sys.executable, "-m", "mcpagent.cli.main", "serve", name, "--transport", "http", "--port", "0")
    line = desk.start(serve, ready="/mcp")
    return {"type": "http", "url": line.split()[-1]}


@pytest.fixture(params=[_over_stdio, _over_http], ids=["stdio", "http"])
def target(request: pytest.FixtureRequest) -> Target:
    return request.param


def _run(desk: Desk, *command: str, stdin: str = "") -> dict[str, Any]:
    """The JSON document that a client prints. Its home is the desk: it touches no settings elsewhere."""
    done = subprocess.run(
        command,
        input=stdin,
        cwd=desk.folder,
        env={**os.environ, **desk.own_environment(), "HOME": str(desk.folder)},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    "name", [BUILTIN_NAMES[0], *(pytest.param(n, marks=pytest.mark.slow) for n in BUILTIN_NAMES[1:])]
)
def test_the_inspector_lists_and_calls(desk: Desk, target: Target, name: str) -> None:
    desk.install("inspector")
    tool, arguments = next(iter(GOOD_CALLS[name].items()))
    desk.servers_file.write_text(json.dumps({"mcpServers": {name: target(desk, name)}}))
    server = (*INSPECTOR, "--config", str(desk.servers_file), "--server", name)
    listed = _run(desk, *server, "--method", "tools/list")
    assert [spec["name"] for spec in listed["tools"]] == list(tools_of(build_server(name)))
    given = ("--tool-name", tool, "--tool-args-json", json.dumps(arguments))
    called = _run(desk, *server, "--method", "tools/call", *given)
    assert not called.get("isError", False)
    assert called["structuredContent"] == call(name, tool, **arguments).structured_content
    desk.stop()


def test_fastmcp_lists_and_calls(desk: Desk, target: Target) -> None:
    """One process uses all the servers: importing fastmcp takes seconds."""
    desk.install("fastmcp")
    (desk.folder / "client.py").write_text(_FASTMCP_CLIENT)
    first_calls = {name: next(iter(GOOD_CALLS[name].items())) for name in BUILTIN_NAMES}
    asked = {
        name: ({"mcpServers": {name: target(desk, name)}}, *first) for name, first in first_calls.items()
    }
    said = _run(desk, "uvx", "--from", "fastmcp", "python", "client.py", stdin=json.dumps(asked))
    assert said.keys() == set(BUILTIN_NAMES)
    for name, (tool, arguments) in first_calls.items():
        assert said[name]["tools"] == list(tools_of(build_server(name)))
        assert said[name]["structured"] == call(name, tool, **arguments).structured_content
    desk.stop()
