"""A live server as a process over HTTP; over stdio, all of them run in the search for secrets."""

from __future__ import annotations

import pytest
from mcp import Client

from tests.servers.calls import over_http, text_of
from tests.servers.live.service import ReplayService

pytestmark = pytest.mark.system


async def test_a_live_server_over_http_writes_to_the_channels_of_its_option_alone(
    replay: ReplayService,
) -> None:
    options = ("--upstream", "live", "--allow-send", "#random")
    with over_http("slack", *options, MCPAGENT_SLACK_ALLOW_SEND="") as (url, _):
        async with Client(url) as client:
            sent, refused = [
                await client.call_tool("send_slack_message", {"channel": channel, "message": "hello"})
                for channel in ("random", "general")
            ]
    assert sent.structured_content == {"channel": "C012AB3CD", "ts": "1763497820.000100"}
    assert refused.is_error and text_of(refused) == "Writing to general is not allowed here."
    posted = [asked.json["channel"] for asked in replay.asked if asked.method == "POST"]
    assert posted == ["C061EG9T2"]
