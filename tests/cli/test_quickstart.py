"""What the quickstart says at its end."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import pytest

from mcpagent.cli.quickstart import result_blocks
from mcpagent.console import Facts

METRICS = {
    name: {"value": 0.5, "ci_low": 0.4, "ci_high": 0.6, "n": 40}
    for name in (
        *("task_success", "task_success_scored", "task_success_sampled", "task_success_sampled_scored"),
        *("tool_sequence_accuracy", "invalid_call_rate"),
    )
}
DOCUMENT: dict[str, Any] = {
    "run_dir": "outputs/own",
    "warm_start": {"metrics": METRICS},
    "trained": {"metrics": METRICS},
    "tool_calls": {"trajectories": 3, "servers": None},
    "checkpoint": "outputs/own/checkpoints/step-000060",
    "report": "outputs/own/report.html",
}


@pytest.mark.parametrize("servers", [None, Path("my servers/mcp.json")])
def test_the_next_commands_use_the_servers_that_were_learned(servers: Path | None) -> None:
    *_, facts = result_blocks(DOCUMENT, servers)
    assert isinstance(facts, Facts)
    (tools,) = [shlex.split(text) for _, text in facts.rows if text and "tools list" in text]
    named = [] if servers is None else ["--servers", str(servers)]
    assert tools == ["mcpagent", "tools", "list", *named]
