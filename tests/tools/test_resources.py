"""Resources and prompts of a real server, read by tools (`tools.resources`)."""

from __future__ import annotations

import asyncio
import json
import sys

import pytest

from mcpagent.config.schema import ToolsConfig
from mcpagent.core.tools import FailureKind, ToolResult
from mcpagent.tools.pool import ToolPool
from mcpagent.tools.servers_config import StdioServer
from tests.tools.support import call, stdio_echo
from tests.tools.wild import SCRIPTS

LIBRARY = StdioServer(name="library", command=sys.executable, args=(str(SCRIPTS / "library.py"),))
READERS = {"list_resources", "read_resource", "list_prompts", "get_prompt"}


def test_resources_templates_and_prompts_are_listed_and_read() -> None:
    async def run() -> dict[str, ToolResult]:
        async with ToolPool([LIBRARY], ToolsConfig(resources=True)) as pool:
            assert set(pool.tools) == READERS | {"lend"}
            assert all(pool.tools[name].annotations.read_only for name in READERS)
            async with pool.session() as session:
                return {
                    "resources": await call(session, "list_resources", server="library"),
                    "rules": await call(session, "read_resource", server="library", uri="book://rules"),
                    "cover": await call(session, "read_resource", server="library", uri="book://cover"),
                    "page": await call(session, "read_resource", server="library", uri="page://7"),
                    "nothing": await call(session, "read_resource", server="library", uri="book://none"),
                    "no uri": await call(session, "read_resource", server="library"),
                    "prompts": await call(session, "list_prompts", server="library"),
                    "prompt": await call(
                        session, "get_prompt", server="library", name="summary", arguments={"of": "Emma"}
                    ),
                    "lend": await call(session, "lend", server="library", title="Emma"),
                }

    said = asyncio.run(run())
    listed = json.loads(said["resources"].content)
    assert {entry["uri"] for entry in listed["resources"]} == {"book://rules", "book://cover"}
    assert [entry["uriTemplate"] for entry in listed["templates"]] == ["page://{number}"]
    assert said["rules"].content == "Throw the die. Whoever has six begins."
    assert said["cover"].content == "[resource book://cover, image/png, 100 bytes]"
    assert said["page"].content == "This is page 7."
    # The model's own mistakes, which are scored.
    assert said["nothing"].is_error and said["nothing"].failure is FailureKind.TOOL_ERROR
    assert said["no uri"].failure is FailureKind.INVALID_ARGUMENTS
    (prompt,) = json.loads(said["prompts"].content)["prompts"]
    assert prompt["name"] == "summary" and prompt["arguments"][0]["name"] == "of"
    assert said["prompt"].content == "Summarise Emma in one sentence."
    assert said["lend"].content == "lent Emma"


@pytest.mark.parametrize("resources", [False, True])
def test_servers_without_resources_and_runs_that_do_not_ask_have_no_such_tools(*, resources: bool) -> None:
    async def run() -> set[str]:
        server = stdio_echo() if resources else LIBRARY
        async with ToolPool([server], ToolsConfig(resources=resources)) as pool:
            return set(pool.tools)

    assert not {"list_resources", "read_resource"} & asyncio.run(run())
