"""The call ledger: one line for every call that reached a server, by purpose."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError

from mcpagent.core.tools import PURPOSE_META_KEY
from mcpagent.errors import UserError
from mcpagent.servers.registry import build_server
from tests.servers.calls import CHANNEL, COMPANY, nonce_of, read_lines, with_client


def entries(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in read_lines(path)]


async def test_the_main_ledger_holds_the_models_calls_and_the_sibling_the_environments(
    tmp_path: Path,
) -> None:
    path = tmp_path / "calls.jsonl"
    purposes = [None, "episode", "setup", "grade", "synth"]
    nonces: list[str] = []
    async with Client(build_server("slack", ledger=path)) as client:
        for purpose in purposes:
            meta: Any = None if purpose is None else {PURPOSE_META_KEY: purpose}
            result = await client.call_tool("slack_auth_test", {}, meta=meta)
            nonces.append(nonce_of(result))
    assert len(set(nonces)) == len(purposes)
    main, environment = entries(path), entries(tmp_path / "calls.jsonl.env")
    assert [(e["nonce"], e["purpose"]) for e in main] == [(n, "episode") for n in nonces[:2]]
    assert [e["nonce"] for e in environment] == nonces[2:]
    assert [e["purpose"] for e in environment] == purposes[2:]
    assert set(main[0]) == {"server", "tool", "nonce", "purpose", "time_s"}
    assert (main[0]["server"], main[0]["tool"]) == ("slack", "slack_auth_test")


async def test_every_call_that_reached_the_server_has_one_line_whatever_became_of_it(tmp_path: Path) -> None:
    path = tmp_path / "calls.jsonl"
    calls = [
        ("fmp_get_quote", {"symbol": COMPANY.ticker}),
        ("fmp_get_quote", {"symbol": "ABCD"}),
        ("fmp_get_quote", {}),
        ("fmp_get_quote", {"symbol": [1]}),
        ("no_such_tool", {}),
    ]
    async with Client(build_server("fmp", ledger=path)) as client:
        nonces = [nonce_of(await client.call_tool(tool, arguments)) for tool, arguments in calls]
    assert [(e["tool"], e["nonce"]) for e in entries(path)] == [
        (tool, nonce) for (tool, _), nonce in zip(calls, nonces, strict=True)
    ]


def test_the_environment_variable_names_the_ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MCPAGENT_CALL_LEDGER", str(tmp_path / "calls.jsonl"))
    server = build_server("slack")
    with_client(server, lambda client: client.call_tool("slack_auth_test", {}))
    monkeypatch.delenv("MCPAGENT_CALL_LEDGER")
    with_client(build_server("slack"), lambda client: client.call_tool("slack_auth_test", {}))
    assert len(read_lines(tmp_path / "calls.jsonl")) == 1


def test_a_ledger_in_a_missing_folder_is_a_user_error(tmp_path: Path) -> None:
    with pytest.raises(UserError) as raised:
        build_server("slack", ledger=tmp_path / "absent" / "calls.jsonl")
    assert raised.value.remedy == f"mkdir -p {tmp_path / 'absent'}"


async def test_a_ledger_that_cannot_be_written_is_a_protocol_error_not_the_models_fault(
    tmp_path: Path,
) -> None:
    server = build_server("slack", ledger=tmp_path)  # a folder cannot be appended to
    async with Client(server) as client:
        with pytest.raises(MCPError, match="the call ledger cannot be written"):
            await client.call_tool("get_slack_channel_history", {"channel_id": CHANNEL.id})
