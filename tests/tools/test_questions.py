"""Servers that ask in the middle of a call: real processes."""

from __future__ import annotations

import json

from mcpagent.core.tools import ToolResult
from mcpagent.tools.pool import ToolPool
from tests.tools.support import call
from tests.tools.wild import script_server


async def _asked(script: str, tool: str) -> ToolResult:
    async with ToolPool([script_server(script, name="curious")]) as pool, pool.session() as session:
        return await call(session, tool, server="curious", title="Emma")


async def test_what_a_server_asks_is_refused_in_words_for_the_model() -> None:
    result = await _asked("curious.py", "delete")
    assert result.is_error
    assert "did not declare the form elicitation capability" in result.content


async def test_requests_of_an_older_server_are_refused_too() -> None:
    for tool in ("delete", "rhyme"):
        result = await _asked("older_curious.py", tool)
        assert "not supported" in json.loads(result.content)["refused"]
