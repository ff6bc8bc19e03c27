"""A live server as a process over HTTP; over stdio, all of them run in the search for secrets."""

from __future__ import annotations

import asyncio
import os
import subprocess
from typing import Any

import pytest
from mcp import Client

from tests.running import Command
from tests.servers.calls import text_of
from tests.servers.live.service import ReplayService

pytestmark = pytest.mark.system


def test_a_live_server_over_http_writes_to_the_channels_of_its_option_alone(replay: ReplayService) -> None:
    command = ["serve", "slack", "--upstream", "live", "--allow-send", "#random"]
    command += ["--transport", "http", "--port", "0"]
    environment = {**os.environ, "MCPAGENT_SLACK_ALLOW_SEND": ""}
    process = Command(*command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        url = process.stderr.readline().strip().partition(" at ")[2]

        async def main() -> list[Any]:
            async with Client(url) as client:
                return [
                    await client.call_tool("send_slack_message", {"channel": channel, "message": "hello"})
                    for channel in ("random", "general")
                ]

        sent, refused = asyncio.run(main())
    finally:
        process.terminate()
        output, errors = process.communicate(timeout=20)
    assert sent.structured_content == {"channel": "C012AB3CD", "ts": "1763497820.000100"}
    assert refused.is_error and text_of(refused) == "Writing to general is not allowed here."
    posted = [asked.json["channel"] for asked in replay.asked if asked.method == "POST"]
    assert posted == ["C061EG9T2"]
    assert output + errors == ""
