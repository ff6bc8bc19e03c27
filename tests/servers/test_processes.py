"""The servers as real processes, over stdio and HTTP."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from mcpagent.core.tools import PURPOSE_META_KEY
from mcpagent.servers.registry import build_server
from tests.running import mcpagent, refused
from tests.servers.calls import CHANNEL, GOOD_CALLS, nonce_of, over_http, read_lines

pytestmark = pytest.mark.system

SERVE = [sys.executable, "-m", "mcpagent.cli.main", "serve"]
HISTORY = {"channel_id": CHANNEL.id}


def over_stdio(name: str, *options: str, ledger: Path, log: Any) -> Client:
    parameters = StdioServerParameters(
        command=SERVE[0],
        args=[*SERVE[1:], name, *options],
        env={**os.environ, "MCPAGENT_CALL_LEDGER": str(ledger)},
    )
    return Client(stdio_client(parameters, errlog=log))


@pytest.mark.parametrize("name", ["slack", "python"])  # one with the data set, and the one with a sandbox
async def test_every_tool_answers_over_stdio_and_nothing_is_logged(name: str, tmp_path: Path) -> None:
    ledger, log = tmp_path / "calls.jsonl", tmp_path / "log"
    nonces: list[str] = []
    with log.open("w") as stream:
        async with over_stdio(name, ledger=ledger, log=stream) as client:
            async with Client(build_server(name)) as in_memory:
                listed = (await in_memory.list_tools()).tools
            assert (await client.list_tools()).tools == listed
            assert {tool.name for tool in listed} == set(GOOD_CALLS[name])
            for tool, arguments in GOOD_CALLS[name].items():
                # The client checks structured content against the advertised schema.
                result = await client.call_tool(tool, arguments)
                assert not result.is_error and result.structured_content
                nonces.append(nonce_of(result))
    assert [json.loads(line)["nonce"] for line in read_lines(ledger)] == nonces
    # Which sandbox was found is said; nothing else is.
    assert all(line.startswith("python: code runs in the ") for line in read_lines(log))
    assert len(read_lines(log)) == (name == "python")


async def test_processes_share_a_ledger_but_no_workspace(tmp_path: Path) -> None:
    ledger = tmp_path / "calls.jsonl"
    per_process = 40

    async def episode(log: Any, text: str) -> tuple[list[str], list[str]]:
        async with over_stdio("slack", "--limited", ledger=ledger, log=log) as client:
            message = {"channel": CHANNEL.id, "message": text}
            sent = [await client.call_tool("send_slack_message", message) for _ in range(per_process)]
            meta: Any = {PURPOSE_META_KEY: "grade"}
            seen = await client.call_tool("get_slack_channel_history", {**HISTORY, "limit": 100}, meta=meta)
            texts = [m["text"] for m in seen.structured_content["messages"]]
            return [nonce_of(r) for r in sent], texts

    with (tmp_path / "log").open("w") as log:
        one, two = await asyncio.gather(episode(log, "one"), episode(log, "two"))
    (nonces_one, texts_one), (nonces_two, texts_two) = one, two
    assert texts_one == ["one"] * per_process + [CHANNEL.message.text]
    assert texts_two == ["two"] * per_process + [CHANNEL.message.text]
    written = [json.loads(line)["nonce"] for line in read_lines(ledger)]
    assert sorted(written) == sorted(nonces_one + nonces_two)
    assert len(read_lines(tmp_path / "calls.jsonl.env")) == 2


async def test_http_serves_one_workspace_to_all_clients_at_the_address_it_announces() -> None:
    with over_http("slack", "--limited") as (url, _):
        async with Client(url) as client:
            await client.call_tool("send_slack_message", {"channel": CHANNEL.id, "message": "hello"})
        async with Client(url) as client:
            result = await client.call_tool("get_slack_channel_history", HISTORY)
    assert [m["text"] for m in result.structured_content["messages"]] == ["hello", CHANNEL.message.text]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["slak"], "error: unknown built-in server 'slak'\n  did you mean 'slack'?\n"),
        (["slack", "--transport", "http", "--host", "203.0.113.7"], "error: --host/--port: cannot listen"),
    ],
)
def test_a_server_that_cannot_start_says_why_and_exits_2(arguments: list[str], message: str) -> None:
    # 203.0.113.0/24 is reserved for documentation (RFC 5737): no machine has the address.
    assert refused(mcpagent("serve", *arguments)).startswith(message)
