"""Live servers against the loopback services; and, where a person asks for it, against the real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp.types import CallToolResult

from mcpagent.servers.builtin import BuiltinServer
from mcpagent.servers.fmp import FMP
from mcpagent.servers.live import fmp, polygon, slack, tavily
from mcpagent.servers.live.client import Rate, read_settings
from mcpagent.servers.names import KEY_NAMES, UpstreamKind
from mcpagent.servers.polygon import POLYGON
from mcpagent.servers.registry import build_server
from mcpagent.servers.slack import SLACK
from mcpagent.servers.tavily import TAVILY
from tests.run.world import live_variables
from tests.servers.calls import with_client
from tests.servers.live.service import KEYS, ReplayService

REAL = "MCPAGENT_TEST_LIVE"  # set it, and the keys, to run the conformance tests against the real services

_DEFINITIONS = {"polygon": POLYGON, "fmp": FMP, "tavily": TAVILY, "slack": SLACK}
_SERVICES = {"polygon": polygon.SERVICE, "fmp": fmp.SERVICE, "tavily": tavily.SERVICE}


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> Iterator[ReplayService]:
    """The loopback services, to which every live server of the test is pointed."""
    with ReplayService() as service:
        for name, value in service.environment.items():
            monkeypatch.setenv(name, value)
        yield service


def live_call(server: str, tool: str, /, **arguments: Any) -> CallToolResult:
    """One call on a new client of a full live server."""
    built = build_server(server, upstream=UpstreamKind.LIVE)
    return with_client(built, lambda client: client.call_tool(tool, arguments))


def skip_unless_real(server: str) -> None:
    if not os.environ.get(REAL):
        pytest.skip(f"set {REAL}=1 and the keys to ask the real services")
    if not any(os.environ.get(name) for name in KEY_NAMES[server]):
        pytest.skip(f"no key: {' or '.join(KEY_NAMES[server])}")


def without_live_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    for server in KEY_NAMES:
        for name in live_variables(server):
            monkeypatch.delenv(name, raising=False)


def impatient(server: str, *, rate: Rate | None = None, **changes: Any) -> BuiltinServer:
    """The live server with other patience than users have: no pauses of its own, two attempts."""
    patience = {"rate": rate or Rate(1e6, 1), "backoff_s": 0.0, "attempts": 2, **changes}
    settings = replace(read_settings(server, base_url=""), **patience)
    service = _SERVICES.get(server) or slack.slack_service(["general"])
    return BuiltinServer(_DEFINITIONS[server], upstream=service.upstream(settings))


def failure(server: BuiltinServer, tool: str, /, **arguments: Any) -> MCPError:
    """The protocol error in which a call ends."""

    async def work(client: Client) -> MCPError:
        with pytest.raises(MCPError) as raised:
            await client.call_tool(tool, arguments)
        return raised.value

    error: MCPError = with_client(server, work)
    for key in KEYS.values():
        assert key not in error.error.message
    return error
