"""Live servers against the loopback services; and, where a person asks for it, against the real ones."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any

import pytest
from mcp.types import CallToolResult

from mcpagent.servers.names import KEY_NAMES, UpstreamKind, live_variables
from mcpagent.servers.registry import build_server
from tests.servers.calls import with_client
from tests.servers.live.service import ReplayService

REAL = "MCPAGENT_TEST_LIVE"  # set it, and the keys, to run the conformance tests against the real services


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
