"""Servers that ask in the middle of a call: real processes."""

from __future__ import annotations

import json

from mcpagent.config.schema import ServerSection, ToolsConfig
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


async def test_forms_are_answered_with_their_defaults_if_the_user_says_so_and_are_counted() -> None:
    notes: list[str] = []
    names = {"curious": "curious.py", "older": "older_curious.py"}
    config = ToolsConfig(per_server={name: ServerSection(forms="defaults") for name in names})
    servers = [script_server(script, name=name) for name, script in names.items()]
    async with ToolPool(servers, config, on_note=notes.append) as pool, pool.session() as session:
        archived = await call(session, "archive", server="curious", title="Emma")
        assert archived.content == "archived Emma: accept True"
        # A form whose required field proposes nothing is declined.
        kept = await call(session, "delete", server="curious", title="Emma")
        assert kept.content == "kept Emma: decline"
        older = await call(session, "delete", server="older", title="Emma")
        assert json.loads(older.content) == {"action": "accept", "content": {"size": 30}}
        refused = await call(session, "rhyme", server="older", title="Emma")
        assert "not supported" in json.loads(refused.content)["refused"]
        assert {server.server: server.forms for server in pool.metrics().servers} == {
            "curious": 2,
            "older": 1,
        }
    assert len([note for note in notes if "answered with their own defaults" in note]) == 2


async def test_requests_of_an_older_server_are_refused_too() -> None:
    for tool in ("delete", "rhyme"):
        result = await _asked("older_curious.py", tool)
        assert "not supported" in json.loads(result.content)["refused"]
