"""Clients of others hold tools as chat APIs do: under names that those take, which lead back to the tools."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path

from mcpagent.bridges.host import open_host

SERVER = """
from mcp.server import MCPServer
server = MCPServer("s")
server.add_tool(lambda: "Budget review", name="calendar.listEvents")
server.run()
"""
TASK = {
    "prompt": [{"role": "user", "content": "What is the title of the event?"}],
    "reward_spec": {"ground_truth": {"task_id": "t", "success": {"must_call_tool": "s.calendar.listEvents"}}},
    "extra_info": {"tools": ["s.calendar.listEvents"]},
}


def test_a_hosted_episode_offers_a_name_that_apis_take_and_calls_the_tool_by_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.jsonl").write_text(json.dumps(TASK) + "\n")
    entry = {"command": sys.executable, "args": ["-c", SERVER]}
    (tmp_path / "mcp.json").write_text(json.dumps({"mcpServers": {"s": entry}}))
    named = [f"tools.servers={tmp_path / 'mcp.json'}"]
    with open_host(tmp_path / "train.jsonl", overrides=named) as host:
        episode = host.episode(host.tasks("train")[0])

        async def play() -> None:
            await episode.start()
            [name] = [schema["function"]["name"] for schema in episode.schemas]
            assert re.fullmatch(r"calendar_listEvents_[0-9a-f]{8}", name)
            out = await episode.act("", [(name, {})])
            assert out is not None and out.observations[0]["content"] == "Budget review"
            await episode.act("Budget review")
            trajectory = await episode.trajectory()
            await episode.close()
            assert trajectory.turns[0].tool_calls[0].tool == "calendar.listEvents" and trajectory.is_success

        host.tools.io.run(asyncio.wait_for(play(), 30))
