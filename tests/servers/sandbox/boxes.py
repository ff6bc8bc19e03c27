"""A python server for each sandbox that this machine has, with limits that a test can wait for."""

from __future__ import annotations

from contextlib import AsyncExitStack
from functools import cache
from typing import Any

import pytest
from mcp import Client
from mcp.types import CallToolResult

from mcpagent.errors import UserError
from mcpagent.servers.builtin import BuiltinServer
from mcpagent.servers.python import python_definition
from mcpagent.servers.sandbox.choose import choose_sandbox
from mcpagent.servers.sandbox.contract import Sandbox, SandboxKind, SandboxLimits
from tests.servers.calls import text_of

LIMITS = SandboxLimits(wall_s=3.0, cpu_s=1)
PATIENT = SandboxLimits(wall_s=60.0, cpu_s=20)  # memory runs out before time does, also on a busy machine


@cache
def _reason(kind: SandboxKind) -> str | None:
    """Why this machine does not have it."""
    try:
        choose_sandbox(kind, LIMITS)
    except UserError as error:
        return f"not tested here: {error.message.partition(': ')[2]}"
    return None


KINDS = [
    pytest.param(kind, marks=pytest.mark.skipif(bool(reason := _reason(kind)), reason=str(reason)))
    for kind in (SandboxKind.BUBBLEWRAP, SandboxKind.MONTY)
]
FULL_PYTHON = KINDS[:1]


def sandbox_of(kind: SandboxKind, limits: SandboxLimits = LIMITS) -> Sandbox:
    return choose_sandbox(kind, limits).sandbox


@cache
def server_of(kind: SandboxKind, limits: SandboxLimits = LIMITS) -> BuiltinServer:
    return BuiltinServer(python_definition(sandbox_of(kind, limits)))


async def execute(client: Client, code: str) -> CallToolResult:
    return await client.call_tool("execute_python", {"code": code})


async def result_of(client: Client, code: str) -> Any:
    """What code that must not fail gives."""
    done = await execute(client, code)
    assert not done.is_error, text_of(done)
    return done.structured_content["result"]


async def clients(stack: AsyncExitStack, kind: SandboxKind, count: int) -> list[Client]:
    """As many episodes of one server."""
    return [await stack.enter_async_context(Client(server_of(kind))) for _ in range(count)]
